"""Why a POSIX memory call failed: which limit was reached, or who refused it.

Limits first, as the counters prove them; guesses last. The facts behind each check are in
docs/platform-facts.md#linux-rlimits and #linux-max-map-count.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import errno
import mmap
import os
from typing import TYPE_CHECKING, Final

from vmtool.memory.errors import Diagnosis, no_address_range
from vmtool.memory.rlimits_and_privileges import (
    has_seccomp_filter,
    how_to_raise,
    lift_address_space_limit,
)
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.counter_types import MemoryLimits

_NEVER_OVERCOMMIT: Final = 2
# The kernel refuses the call that would *exceed* the limit, and a split in the middle of an area
# needs two more (mm/vma.c, __split_vma): docs/platform-facts.md#linux-max-map-count
_MAPPING_SLACK: Final = 2
# A few percent of the limit are kept for the administrator (vm.admin_reserve_kbytes) and for ending
# the process (vm.user_reserve_kbytes), so that a commit fails before the limit is reached
# (Documentation/admin-guide/sysctl/vm.rst).
_KEPT_BACK: Final = 16
_RESERVES: Final = frozenset({"reserve", "reserve writable"})


def diagnose_host(call: str, nbytes: int, limits: MemoryLimits) -> Diagnosis:
    """Return the likeliest cause of an out-of-memory error of a POSIX memory call.

    ENOMEM means at least six different things. Causes that a counter proves come before guesses.

    Args:
        call: ``mmap``, ``mprotect``, ``madvise`` or ``munmap``; ``reserve`` for the mmap that only
            takes address space, ``reserve writable`` where what it takes is writable.
        nbytes: The length that was requested.
        limits: The counters at that moment.
    """
    for check in (_mapping_limit, _address_space_limit, _data_limit, _commit_limit, _heuristic):
        diagnosis = check(call, nbytes, limits)
        if diagnosis is not None:
            return diagnosis
    if call in _RESERVES:
        return no_address_range(nbytes) if _can_map(call) else _refused_by_policy()
    available = limits.available_bytes
    return Diagnosis(
        "unknown",
        "the kernel had no memory for it"
        + ("" if available is None else f" ({format_size(available)} available)"),
        "`vmtool doctor` checks every limit on this machine",
    )


def _can_map(call: str) -> bool:
    """Return whether one page can be mapped as a reservation is: its size is then the reason."""
    prot = mmap.PROT_WRITE | mmap.PROT_READ if call == "reserve writable" else 0
    try:
        mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot).close()
    except (OSError, MemoryError):
        return False
    return True


def _refused_by_policy() -> Diagnosis:
    return Diagnosis(
        "refused-by-policy",
        f"not even one page can be reserved, and no limit is reached: {_sandbox()} refuses it",
        "check the profile of the container, or run outside the sandbox",
    )


def _sandbox() -> str:
    """Return what may have refused a call, by what shows in ``/proc`` (``man 5 proc``)."""
    try:
        with open("/proc/version", "rb") as version:
            if b"gvisor" in version.read().lower():
                return "gVisor"
    except OSError:
        pass
    if has_seccomp_filter():
        return "the seccomp filter of this process"
    return "a policy of the system (a sandbox, SELinux or AppArmor)"


def _mapping_limit(_call: str, _nbytes: int, p: MemoryLimits) -> Diagnosis | None:
    if p.mappings is None or p.max_mappings is None:
        return None
    if p.mappings + _MAPPING_SLACK < p.max_mappings:
        return None
    return Diagnosis(
        "mapping-limit",
        f"the process has {p.mappings:,} memory areas and vm.max_map_count is {p.max_mappings:,}; "
        "RAM did not run out",
        f"sysctl -w vm.max_map_count={max(p.max_mappings * 4, 262144)}, or commit larger granules, "
        "or grow at the tail so that neighbours join",
    )


def _address_space_limit(call: str, nbytes: int, p: MemoryLimits) -> Diagnosis | None:
    limit, used = p.address_space_limit_bytes, p.address_space_bytes
    if limit is None or used is None or call not in {"mmap", *_RESERVES} or used + nbytes <= limit:
        return None
    return Diagnosis(
        "address-space-limit",
        f"RLIMIT_AS is {format_size(limit)} and the process uses {format_size(used)}; "
        "reservations count although they hold no memory",
        lift_address_space_limit(linux=sys.platform == "linux"),
    )


def _data_limit(call: str, nbytes: int, p: MemoryLimits) -> Diagnosis | None:
    limit, used = p.data_limit_bytes, p.data_bytes
    if limit is None or used is None or call == "reserve" or used + nbytes <= limit:
        return None
    return Diagnosis(
        "data-limit",
        f"RLIMIT_DATA is {format_size(limit)} and the process has {format_size(used)} of private "
        "writable memory",
        how_to_raise("RLIMIT_DATA"),
    )


def _commit_limit(call: str, nbytes: int, p: MemoryLimits) -> Diagnosis | None:
    limit, used = p.charge_limit_bytes, p.charge_bytes
    if p.overcommit_mode != _NEVER_OVERCOMMIT or call == "reserve" or limit is None or used is None:
        return None
    if used + nbytes + limit // _KEPT_BACK <= limit:
        return None
    return Diagnosis(
        "commit-limit",
        f"vm.overcommit_memory is 2 and {format_size(used)} of the commit limit of "
        f"{format_size(limit)} is charged already",
        "commit less, add swap, or sysctl -w vm.overcommit_ratio=95",
    )


def _heuristic(call: str, nbytes: int, p: MemoryLimits) -> Diagnosis | None:
    total = p.total_bytes
    if p.overcommit_mode != 0 or call in _RESERVES or total is None or nbytes <= total:
        return None
    return Diagnosis(
        "heuristic-overcommit",
        f"one request of {format_size(nbytes)} is more than all RAM and swap "
        f"({format_size(total)}), which vm.overcommit_memory=0 refuses",
        "commit less at once; only reserve what is not used yet",
    )


#: include/uapi/asm-generic/errno.h of Linux; other systems have no such error.
_EHWPOISON: Final = getattr(errno, "EHWPOISON", 133)

_NO_HUGE_PAGES: Final = Diagnosis(
    "no-huge-pages",
    "this kernel has no transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)",
    "leave out --huge",
)
_OLD_KERNEL: Final = Diagnosis(
    "old-kernel",
    "this kernel has no MADV_POPULATE_WRITE, which came with Linux 5.14",
    "leave out pre-faulting, and use --method fixed or protect",
)
_FORBIDDEN: Final = Diagnosis(
    "forbidden",
    "a security policy of this system forbids it (seccomp, SELinux or a sandbox)",
    "check `ausearch -m avc -ts recent` or the profile of the container",
)
_BAD_MEMORY: Final = Diagnosis(
    "bad-memory",
    "the kernel found an uncorrectable error in that memory (hardware poison)",
    "look at `dmesg | grep -i 'hardware error'`; the RAM needs replacing",
)
_NODE_REFUSALS: Final = {
    errno.EINVAL: Diagnosis(
        "no-such-node",
        "this machine has no such NUMA node, or the process's cpuset does not allow it",
        "/sys/devices/system/node/online and Mems_allowed_list in /proc/self/status name the nodes",
    ),
    errno.EPERM: Diagnosis(
        "node-forbidden",
        "a seccomp filter forbids mbind, as Docker's does without CAP_SYS_NICE",
        "docker run --cap-add SYS_NICE, or leave out --node",
    ),
    errno.ENOSYS: Diagnosis(
        "no-numa", "this kernel has no NUMA support (CONFIG_NUMA)", "leave out --node"
    ),
}


def has_huge_pages(directory: str = "/sys/kernel/mm") -> bool | None:
    """Return whether this kernel has transparent huge pages; ``None`` where /sys is hidden."""
    if not os.path.exists(directory):  # noqa: PTH110 - pathlib takes long to load
        return None
    return os.path.exists(f"{directory}/transparent_hugepage")  # noqa: PTH110


def _refused_huge_pages(huge_pages: bool | None) -> Diagnosis:
    """Return why the advice is EINVAL, as it is where the kernel lacks them, or a filter says so."""
    if huge_pages is False:
        return _NO_HUGE_PAGES
    if huge_pages:
        return Diagnosis(
            "forbidden",
            f"this kernel has transparent huge pages, so {_sandbox()} refuses the call",
            "check the profile of the container, or leave out --huge",
        )
    return Diagnosis(
        "no-huge-pages",
        "this kernel has no transparent huge pages, or a sandbox refuses the call; /sys, which "
        "would show which, is missing or hidden",
        "leave out --huge",
    )


def diagnose_refusal(
    call: str,
    code: int,
    address: int,
    *,
    advice: str = "",
    memlock_limit: int | None = None,
    huge_pages: bool | None = None,
) -> Diagnosis | None:
    """Return the cause of an error other than ``ENOMEM``, or ``None`` if it isn't known.

    Args:
        call: ``mmap``, ``mprotect``, ``madvise`` or ``munmap``.
        code: The errno.
        address: The first argument.
        advice: For madvise, the name of its advice.
        memlock_limit: ``RLIMIT_MEMLOCK``, ``None`` for unlimited or unknown.
        huge_pages: Whether this kernel has transparent huge pages; ``None`` if that is hidden.
    """
    if code == errno.EINVAL and call != "mbind":
        if address % mmap.PAGESIZE:
            return Diagnosis(
                "page-size",
                f"address {address:#x} is not a multiple of this system's pages of "
                f"{mmap.PAGESIZE} bytes",
                "query the granularity instead of assuming 4 KiB",
            )
        if advice == "MADV_HUGEPAGE":
            return _refused_huge_pages(huge_pages)
        return _OLD_KERNEL if advice == "MADV_POPULATE_WRITE" else None
    if code == errno.EAGAIN and call in {"mmap", "mprotect"}:
        limit = "" if memlock_limit is None else f" of {format_size(memlock_limit)}"
        return Diagnosis(
            "locked-limit",
            f"this process locks its memory (mlockall), and RLIMIT_MEMLOCK{limit} is reached",
            f"{how_to_raise('RLIMIT_MEMLOCK')}, or do not lock all memory",
        )
    if call == "mbind":
        return _NODE_REFUSALS.get(code)
    if code in {errno.EPERM, errno.EACCES}:
        return _FORBIDDEN
    return _BAD_MEMORY if code == _EHWPOISON else None
