"""Facts that are read in the same way on every system: the system, RAM, limits of the process."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Final

from vmtool import __version__
from vmtool.machine.facts import LimitFacts, MemoryFacts, SystemFacts
from vmtool.memory.rlimits_and_privileges import (
    has_capability,
    has_seccomp_filter,
    in_initial_user_namespace,
    read_resource_limit,
)
from vmtool.memory.threads import can_start_thread

# Capabilities of include/uapi/linux/capability.h.
_IPC_LOCK: Final = 14
_SYS_ADMIN: Final = 21
_SYS_RESOURCE: Final = 24


def read_system(cpu_model: str | None) -> SystemFacts:
    """Return the facts of the running system.

    Args:
        cpu_model: The processor's name, from wherever the platform keeps it.
    """
    name, kernel, arch = _identify()
    return SystemFacts(
        os=name,
        kernel=kernel,
        arch=arch,
        cpu_model=cpu_model,
        cpus=os.cpu_count(),
        cpus_usable=_usable_cpus(),
        python=sys.version.split()[0],
        vmtool=__version__,
    )


def _usable_cpus() -> int | None:
    if sys.platform == "linux":
        try:
            return len(os.sched_getaffinity(0))
        except OSError:  # a seccomp filter
            return None
    else:  # mypy needs both branches spelled out
        return None


def _identify() -> tuple[str, str, str]:
    """Return the system's name, its kernel's version and the architecture.

    Not from ``platform``: on Windows it would start ``cmd /c ver``.
    """
    if sys.platform == "win32":
        from vmtool.memory.windows.wine import (
            wine_version,  # it loads much that Linux does not need
        )

        arch = os.environ.get("PROCESSOR_ARCHITECTURE", "unknown")
        wine = wine_version()
        if wine is not None:
            return "Wine", wine, arch
        return "Windows", ".".join(map(str, sys.getwindowsversion().platform_version)), arch
    else:  # mypy needs both branches spelled out
        uname = os.uname()
        return uname.sysname, uname.release, uname.machine


def read_memory() -> MemoryFacts:
    """Return RAM and swap as psutil reads them; unknown where it cannot."""
    # Without /proc, or with too little memory to load it, psutil fails in many ways.
    try:
        import psutil

        ram = psutil.virtual_memory()
    except (ImportError, OSError, MemoryError, ValueError, KeyError):
        return MemoryFacts()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no /proc/vmstat: swap traffic, which is not used
            swap = psutil.swap_memory()
    except (OSError, ValueError, RuntimeError):
        return MemoryFacts(ram.total, ram.available)
    return MemoryFacts(ram.total, ram.available, swap.total, swap.free)


def read_limits() -> LimitFacts:
    """Return the resource limits of this process, with what is used of those that are counted."""
    if sys.platform == "win32":
        return LimitFacts()
    else:  # mypy needs both branches spelled out
        tasks = read_resource_limit("RLIMIT_NPROC")
        root = os.getuid() == 0 and in_initial_user_namespace()
        exempt = root or any(map(has_capability, (_SYS_ADMIN, _SYS_RESOURCE)))
        return LimitFacts(
            address_space=read_resource_limit("RLIMIT_AS"),
            data=read_resource_limit("RLIMIT_DATA"),
            locked_memory=read_resource_limit("RLIMIT_MEMLOCK"),
            locked_exempt=has_capability(_IPC_LOCK),
            descriptors=read_resource_limit("RLIMIT_NOFILE"),
            descriptors_used=_count_descriptors(),
            tasks=tasks,
            # Counting reads a file of every process, which is not worth it without a limit.
            tasks_used=None if exempt or tasks is None or tasks.soft is None else _count_tasks(),
            tasks_exempt=exempt,
            threads_refused=has_seccomp_filter() and not can_start_thread(),
            cpu_s=read_resource_limit("RLIMIT_CPU"),
        )


def _count_descriptors() -> int | None:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory)) - 1  # noqa: PTH208 - without the one that lists it
        except OSError:
            continue
    return None


def _count_tasks() -> int | None:
    """Return the processes and threads of this user; those in other containers are not visible."""
    if sys.platform == "win32":
        return None
    else:  # mypy needs both branches spelled out
        try:
            import psutil

            uid = os.getuid()
            found = psutil.process_iter(["uids", "num_threads"])
            return sum(
                each.info["num_threads"] or 1
                for each in found
                if each.info["uids"] is not None and each.info["uids"].real == uid
            )
        except (ImportError, OSError, MemoryError, RuntimeError):
            return None
