"""Rules about the system: its kernel, containers, WSL, gVisor and Wine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor.findings import Finding

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts


#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def kernel(facts: MachineFacts) -> Finding | None:
    """Rate the kernel's version."""
    match = _VERSION.match(facts.system.kernel)
    if facts.system.os != "Linux" or match is None or facts.environment.gvisor:
        return None
    if (int(match[1]), int(match[2])) < _POPULATE_KERNEL:
        return Finding.note(
            "old-kernel",
            f"Linux {facts.system.kernel} has no MADV_POPULATE_WRITE: --method advise is refused",
            "use Linux 5.14 or later; the other methods work",
        )
    return Finding.ok("kernel", f"Linux {facts.system.kernel}")


def container(facts: MachineFacts) -> Finding | None:
    """Rate the container that this process runs in."""
    name = facts.environment.container
    if name is None:
        return None
    return Finding.note(
        "container",
        f"in a container ({name}): limits are set outside it, and sysctls are those of the host",
        "change limits where the container is started, sysctls on the host",
    )


def wsl(facts: MachineFacts) -> Finding | None:
    """Rate Windows Subsystem for Linux."""
    version = facts.environment.wsl
    if version is None:
        return None
    if version == 1:
        return Finding.note(
            "wsl",
            "WSL 1: Windows emulates the Linux calls; times are not those of Linux",
            "wsl --set-version DISTRIBUTION 2",
        )
    return Finding.note(
        "wsl",
        "WSL 2: a virtual machine with half of the RAM by default",
        "set memory= in %UserProfile%\\.wslconfig, then wsl --shutdown",
    )


def gvisor(facts: MachineFacts) -> Finding | None:
    """Rate gVisor, which stands in for the kernel."""
    if not facts.environment.gvisor:
        return None
    return Finding.note(
        "gvisor",
        "gVisor refuses no commit; the sandbox is killed when memory runs out",
        "stay below the sandbox's memory limit with --budget",
    )


def macos(facts: MachineFacts) -> Finding | None:
    """Rate what macOS does not offer."""
    if facts.system.os != "Darwin":
        return None
    return Finding.note(
        "not-available",
        "macOS has no commit limit, no control groups, no transparent huge pages and no limit of "
        "memory areas",
        "watch `memory_pressure` and `vm_stat`: no commit is refused when RAM is short",
    )


def wine(facts: MachineFacts) -> Finding | None:
    """Rate Wine, which stands in for Windows."""
    if facts.system.os != "Wine":
        return None
    return Finding.note(
        "wine",
        f"Wine {facts.system.kernel}, not Windows: it enforces no commit limit, and its times "
        "say nothing about Windows",
        "measure on Windows",
    )
