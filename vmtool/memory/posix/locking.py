"""Locked memory: pages that mlock(2) keeps in RAM, and what limits them.

Linux compares what a process has locked with RLIMIT_MEMLOCK, unless it has CAP_IPC_LOCK
(``can_do_mlock`` and ``mlock_fixup`` in mm/mlock.c); macOS compares with the same limit and one of
the machine (``vm.user_wire_limit``). Locking faults every page in.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
import errno
import os
from typing import Final

from vmtool.memory.errors import Diagnosis, call_failure
from vmtool.memory.posix.calls import last_errno
from vmtool.memory.posix.counters import read_kib
from vmtool.memory.rlimits_and_privileges import has_capability, how_to_raise, soft_limit
from vmtool.units import format_size

_CAP_IPC_LOCK: Final = 14  # include/uapi/linux/capability.h
_LIMIT: Final = "RLIMIT_MEMLOCK"
_MLOCK_ONFAULT: Final = 1  # include/uapi/asm-generic/mman-common.h, Linux 4.4
#: Files whose code every line of Python runs: 6 of the 10 MiB that are mapped.
_ALWAYS_NEEDED: Final = ("python", "libpython", "libc.", "libc-", "ld-")


def lock_memory(address: int, nbytes: int) -> None:
    """Fault ``address..address + nbytes`` in and keep it in RAM, until it is unmapped.

    Raises:
        CallError: If the platform refuses; ``cause`` names the limit.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    if not libc.mlock(address, nbytes):
        return
    code = last_errno()
    diagnosis = diagnose_lock(code, nbytes)
    raise call_failure(
        "mlock",
        f"{address:#x}, {nbytes}",
        code=code,
        symbol=errno.errorcode.get(code, "UNKNOWN"),
        detail=os.strerror(code),
        diagnosis=diagnosis,
        out_of_memory=code in {errno.ENOMEM, errno.EAGAIN},
    )


def lock_code() -> None:
    """Keep the code of this process in RAM, as far as RLIMIT_MEMLOCK allows (Linux).

    A control group that is above ``memory.high`` or at ``memory.max`` drops it first, and to read it
    back is charged to the group again (docs/platform-facts.md#linux-cgroup-high).
    """
    lock = getattr(ctypes.CDLL(None), "mlock2", None)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            areas = [line.split(maxsplit=5) for line in maps]
    except OSError:
        return
    found = []
    for area in areas:
        start, end = (int(part, 16) for part in area[0].split("-"))
        if len(area) > 5 and "w" not in area[1] and area[4] != "0":
            needed = os.path.basename(area[5]).startswith(_ALWAYS_NEEDED)  # noqa: PTH119 - a string
            found.append((not needed, end - start, start))
    for _, nbytes, start in sorted(found):
        if lock is not None:
            lock(ctypes.c_size_t(start), ctypes.c_size_t(nbytes), _MLOCK_ONFAULT)


def lock_limit() -> int | None:
    """Return how many bytes this process may lock; ``None`` if RLIMIT_MEMLOCK does not limit it."""
    return None if exempt_from_limit() else soft_limit(_LIMIT)


def exempt_from_limit() -> bool:
    """Return whether RLIMIT_MEMLOCK does not apply, because of CAP_IPC_LOCK (Linux)."""
    return has_capability(_CAP_IPC_LOCK)


def diagnose_lock(code: int, nbytes: int) -> Diagnosis:
    """Return why mlock failed, from the limit and what is locked now.

    Args:
        code: The errno: ENOMEM over the limit, EPERM where the limit is zero, EAGAIN where pages
            are not available (mlock(2)).
        nbytes: The length that was to be locked.
    """
    limit, locked = lock_limit(), read_kib("/proc/self/status").get("VmLck", 0)
    if limit is not None and (code == errno.EPERM or locked + nbytes > limit):
        return Diagnosis(
            "locked-limit",
            f"{_LIMIT} is {format_size(limit)} and the process has locked {format_size(locked)}",
            f"{how_to_raise(_LIMIT)}, or give the process CAP_IPC_LOCK",
        )
    if code == errno.EPERM:
        return Diagnosis(
            "forbidden",
            "a security policy of this system forbids locking memory",
            "docker run --cap-add IPC_LOCK",
        )
    return Diagnosis(
        "unknown",
        "the pages are not available, or locking splits areas and vm.max_map_count is reached",
        "lock less; `vmtool doctor` shows every limit",
    )
