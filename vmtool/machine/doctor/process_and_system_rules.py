"""Rules about the limits of this process and about its system: kernel, container, WSL, gVisor, Wine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor.findings import Finding
from vmtool.machine.preflight import (
    descriptors_left,
    safe_mappings,
    tasks_left,
)
from vmtool.memory.rlimits_and_privileges import how_to_raise, lift_address_space_limit
from vmtool.units import MIB, format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts


#: What engines with many small mappings recommend; the kernel's default is 65,530.
_MANY_MAPPINGS: Final = 262_144
#: What a small run with the default options needs.
_MIN_MAPPINGS: Final = 1024
#: A worker of ``vmtool stress`` is a process with a thread of its own, and this one has two for it;
#: it has three pipes.
_LEAST_TASKS: Final = 4
_FEW_TASKS: Final = 16
_FEW_DESCRIPTORS: Final = 32
#: Serving engines lock their staging buffers; less than this is a default, and no decision.
_LITTLE_LOCKED: Final = 64 * MIB
#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def mappings(facts: MachineFacts) -> Finding | None:
    """Rate ``vm.max_map_count`` and what is left of it."""
    limit, used = facts.process.max_mappings, facts.process.mappings or 0
    if limit is None:
        return None
    words = f"{used:,} of {limit:,} memory areas (vm.max_map_count) in use"
    remedy = f"sysctl -w vm.max_map_count={max(4 * limit, _MANY_MAPPINGS)}"
    safe = safe_mappings(facts) or 0
    if limit - used < limit // 10 or safe < _MIN_MAPPINGS:
        return Finding.problem("mapping-limit", words, remedy)
    if limit < _MANY_MAPPINGS:
        return Finding.note(
            "mapping-limit",
            f"{words}: room for about {safe // 2:,} scattered granules; growth at the tail takes "
            "one area",
            remedy,
        )
    return Finding.ok("mapping-limit", words)


def address_space(facts: MachineFacts) -> Finding | None:
    """Rate RLIMIT_AS."""
    if (
        facts.process.address_space_bytes is None
        and facts.process.address_space_limit_bytes is None
    ):
        return None
    limit = facts.process.address_space_limit_bytes
    if limit is None:
        return Finding.ok("address-space-limit", "RLIMIT_AS is unlimited")
    total = facts.memory.total_bytes
    words = f"RLIMIT_AS is {format_size(limit)}: reservations count although they hold no memory"
    remedy = lift_address_space_limit(facts.limits.address_space, linux=facts.system.os == "Linux")
    if total is None or limit < 2 * total:
        return Finding.problem("address-space-limit", words, remedy)
    return Finding.note("address-space-limit", words, remedy)


def data_segment(facts: MachineFacts) -> Finding | None:
    """Rate RLIMIT_DATA."""
    limit, used = facts.process.data_limit_bytes, facts.process.data_bytes
    if limit is None:
        return None if used is None else Finding.ok("data-limit", "RLIMIT_DATA is unlimited")
    words = (
        f"RLIMIT_DATA is {format_size(limit)}, {format_size(used or 0)} in use: committed memory "
        "counts; on Linux an mmap over a reservation (--method fixed) can exceed it, and then every "
        "other call that needs memory fails"
    )
    remedy = how_to_raise("RLIMIT_DATA", limit=facts.limits.data)
    available = facts.machine_available_bytes
    if available is None or limit < available:
        return Finding.problem("data-limit", words, remedy)
    return Finding.note("data-limit", words, remedy)


def tasks(facts: MachineFacts) -> Finding | None:
    """Rate how many processes and threads may still start."""
    found = tasks_left(facts)
    if facts.limits.threads_refused and (found is None or found[0]):
        return Finding.problem(
            "task-limit",
            "no thread can be started, although no limit of tasks is reached: the seccomp filter "
            "of this process refuses clone3 or clone",
            "check the seccomp profile of the container, or update its runtime (clone3)",
        )
    if found is None:
        return _no_task_limit(facts)
    left, words, remedy = found
    words = f"{left:,} more processes and threads can be started: {words}"
    if left < _LEAST_TASKS:
        return Finding.problem("task-limit", words, remedy)
    if left < _FEW_TASKS:
        return Finding.note("task-limit", words, remedy)
    return Finding.ok("task-limit", words)


def _no_task_limit(facts: MachineFacts) -> Finding | None:
    limit = facts.limits.tasks
    if limit is None:
        return None
    if limit.soft is not None and not facts.limits.tasks_exempt:
        return Finding.note(
            "task-limit",
            f"RLIMIT_NPROC is {limit.soft:,}; how many processes and threads this user has is unknown",
            how_to_raise("RLIMIT_NPROC", limit=limit),
        )
    if facts.system.os == "Linux" and facts.memory.total_bytes is None:
        return Finding.note(
            "task-limit",
            "whether processes and threads are limited is unknown: /proc is missing or hidden",
            "mount -t proc proc /proc",
        )
    return Finding.ok("task-limit", "processes and threads are not limited")


def descriptors(facts: MachineFacts) -> Finding | None:
    """Rate RLIMIT_NOFILE."""
    left, limit = descriptors_left(facts), facts.limits.descriptors
    if left is None or limit is None:
        return None
    words = f"RLIMIT_NOFILE is {limit.soft:,} and {facts.limits.descriptors_used:,} files are open"
    if left < _FEW_DESCRIPTORS:
        return Finding.problem(
            "descriptor-limit", words, how_to_raise("RLIMIT_NOFILE", limit=limit)
        )
    return Finding.ok("descriptor-limit", words)


def locked_memory(facts: MachineFacts) -> Finding | None:
    """Rate RLIMIT_MEMLOCK."""
    limit = facts.limits.locked_memory
    if limit is None:
        return None
    if limit.soft is None:
        return Finding.ok("locked-limit", "RLIMIT_MEMLOCK is unlimited")
    if facts.limits.locked_exempt:
        return Finding.ok(
            "locked-limit",
            f"RLIMIT_MEMLOCK is {format_size(limit.soft)}; CAP_IPC_LOCK exempts this process from it",
        )
    words = (
        f"RLIMIT_MEMLOCK is {format_size(limit.soft)}: this process can lock no more than that in "
        "RAM (mlock)"
    )
    if limit.soft < _LITTLE_LOCKED:
        return Finding.note("locked-limit", words, how_to_raise("RLIMIT_MEMLOCK", limit=limit))
    return Finding.ok("locked-limit", words)


def processor_time(facts: MachineFacts) -> Finding | None:
    """Rate RLIMIT_CPU."""
    limit = facts.limits.cpu_s
    if limit is None or limit.soft is None:
        return None
    return Finding.note(
        "cpu-limit",
        (
            f"RLIMIT_CPU is {limit.soft:,} s: a process that has used that much processor time is "
            "killed"
        ),
        how_to_raise("RLIMIT_CPU", limit=limit),
    )


def fork_headroom(facts: MachineFacts) -> Finding | None:
    """In mode 2 a fork is charged all private writable memory of the process once more."""
    used, headroom = facts.process.data_bytes, facts.commit.headroom_bytes
    if facts.commit.mode != 2 or used is None or headroom is None or headroom <= 0:
        return None  # at the limit nothing is left for anything: commit-limit says so
    words = (
        f"a fork of this process is charged another {format_size(used)}, and "
        f"{format_size(max(headroom, 0))} of the commit limit is left"
    )
    if used > headroom:
        return Finding.problem("fork-headroom", words, "start processes before memory is committed")
    return Finding.ok("fork-headroom", words)


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
