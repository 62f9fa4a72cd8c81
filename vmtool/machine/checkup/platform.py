"""Page size, kernel, container, virtual machine, WSL and gVisor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vmtool.machine.checkup.check import Check, note, ok
from vmtool.units import KIB, format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts

_USUAL_PAGE: Final = 4 * KIB
#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def check_platform(facts: MachineFacts) -> list[Check]:
    """Return what this system does unlike others."""
    found = [
        _page(facts),
        _allocation(facts),
        _kernel(facts),
        _container(facts),
        _wsl(facts),
        _gvisor(facts),
        _wine(facts),
        _macos(facts),
    ]
    return [check for check in found if check is not None]


def _page(facts: MachineFacts) -> Check:
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == _USUAL_PAGE:
        return ok("page-size", words)
    return note(
        "page-size",
        f"{words}: offsets built for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def _allocation(facts: MachineFacts) -> Check | None:
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return note(
        "allocation-granularity",
        f"addresses are granted in units of {format_size(facts.allocation_bytes)}, although pages "
        f"are {format_size(facts.page_bytes)}: other offsets of a view give error 1132",
        "use the commit granularity that `vmtool granularity` shows",
    )


def _kernel(facts: MachineFacts) -> Check | None:
    match = _VERSION.match(facts.system.kernel)
    if facts.system.os != "Linux" or match is None or facts.environment.gvisor:
        return None
    if (int(match[1]), int(match[2])) < _POPULATE_KERNEL:
        return note(
            "old-kernel",
            f"Linux {facts.system.kernel} has no MADV_POPULATE_WRITE: --method advise is refused",
            "Linux 5.14 or later; the other methods work",
        )
    return ok("kernel", f"Linux {facts.system.kernel}")


def _container(facts: MachineFacts) -> Check | None:
    name = facts.environment.container
    if name is None:
        return None
    return note(
        "container",
        f"in a container ({name}): its limits are set outside, and sysctls are the host's",
        "change limits where the container is started, sysctls on the host",
    )


def _wsl(facts: MachineFacts) -> Check | None:
    version = facts.environment.wsl
    if version is None:
        return None
    if version == 1:
        return note(
            "wsl",
            "WSL 1: Windows emulates the Linux calls, so figures are not those of Linux",
            "wsl --set-version DISTRIBUTION 2",
        )
    return note(
        "wsl",
        "WSL 2: a virtual machine with half of the RAM by default, which grows as it is touched",
        "set memory= in %UserProfile%\\.wslconfig, then wsl --shutdown",
    )


def _gvisor(facts: MachineFacts) -> Check | None:
    if not facts.environment.gvisor:
        return None
    return note(
        "gvisor",
        "gVisor: its kernel does not refuse commits; the sandbox is killed when memory runs out",
        "stay below the sandbox's memory limit with --budget",
    )


def _macos(facts: MachineFacts) -> Check | None:
    if facts.system.os != "Darwin":
        return None
    return note(
        "not-available",
        "macOS has no commit limit, no control groups and no transparent huge pages, and neither "
        "counts nor limits memory areas: not available here",
        "watch `memory_pressure` and `vm_stat` while it runs: no commit is refused when RAM is short",
    )


def _wine(facts: MachineFacts) -> Check | None:
    if facts.system.os != "Wine":
        return None
    return note(
        "wine",
        f"Wine {facts.system.kernel}, not Windows: it has no commit limit, and its figures say "
        "nothing about Windows",
        "measure on Windows",
    )
