"""The POSIX memory calls through ctypes: prototypes, constants, and the error of one that failed."""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from vmtool.memory.errors import call_failure
from vmtool.memory.posix.counters import read_limits
from vmtool.memory.posix.diagnosis import diagnose_host, diagnose_refusal, has_huge_pages
from vmtool.memory.posix.huge_pages import diagnose_huge, group_name, page_size_of, read_huge_limits
from vmtool.memory.posix.numa import MPOL_BIND, mbind_number, node_mask

if TYPE_CHECKING:
    from vmtool.errors import CallError

PROT_NONE: Final = 0
PROT_RW: Final = 3
MAP_PRIVATE: Final = 0x02
MAP_FIXED: Final = 0x10
FAILED: Final = -1

if sys.platform == "linux":  # include/uapi/asm-generic/mman.h, mman-common.h
    MAP_ANON: Final = 0x20
    MAP_NORESERVE: Final = 0x4000
    MAP_FIXED_NOREPLACE: Final = 0x100000  # before Linux 4.17 the flag is ignored: a mere hint
    MADV_DONTNEED: Final = 4
    MADV_HUGEPAGE: Final = 14
    MADV_POPULATE_WRITE: Final = 23  # Linux 5.14: docs/platform-facts.md#linux-populate-write
    MADV_FREE_REUSABLE: Final = None
    MADV_FREE_REUSE: Final = None
    HAS_HUGETLB: Final = True
else:  # sys/mman.h of macOS
    MAP_ANON: Final = 0x1000
    MAP_NORESERVE: Final = 0x40
    MAP_FIXED_NOREPLACE: Final = 0
    MADV_DONTNEED: Final = 4
    MADV_HUGEPAGE: Final = None
    MADV_POPULATE_WRITE: Final = None
    # Private to macOS's allocator and stable since 10.5: docs/platform-facts.md#macos-footprint
    MADV_FREE_REUSABLE: Final = 7
    MADV_FREE_REUSE: Final = 8
    HAS_HUGETLB: Final = False

# include/uapi/linux/prctl.h, Linux 5.17: docs/platform-facts.md#linux-mapping-names
PR_SET_VMA: Final = 0x53564D41
PR_SET_VMA_ANON_NAME: Final = 0

_PROT_NAMES: Final = {PROT_NONE: "PROT_NONE", PROT_RW: "PROT_READ|PROT_WRITE"}
_FLAG_NAMES: Final = {
    MAP_FIXED: "MAP_FIXED",
    MAP_NORESERVE: "MAP_NORESERVE",
    MAP_FIXED_NOREPLACE or -1: "MAP_FIXED_NOREPLACE",
}
_ADVICE_NAMES: Final = {
    MADV_DONTNEED: "MADV_DONTNEED",
    MADV_HUGEPAGE: "MADV_HUGEPAGE",
    MADV_POPULATE_WRITE: "MADV_POPULATE_WRITE",
    MADV_FREE_REUSABLE: "MADV_FREE_REUSABLE",
    MADV_FREE_REUSE: "MADV_FREE_REUSE",
}

#: A call through ctypes: integers in, an integer out, -1 for failure with errno kept by ctypes.
Call: TypeAlias = Callable[..., int]


@dataclass(frozen=True, slots=True)
class PosixCalls:
    """The calls a POSIX backing makes; a test or ``--inject`` puts failing ones in their place.

    ``mbind(address, nbytes, node)`` binds to one node; the other fields have the signature of the C
    function.
    """

    mmap: Call
    munmap: Call
    mprotect: Call
    madvise: Call
    prctl: Call | None
    mbind: Call | None = None


def _declare() -> PosixCalls:
    libc = ctypes.CDLL(None, use_errno=True)
    # Addresses are plain integers here: a pointer type would only turn 0 into None and back.
    size = ctypes.c_size_t
    libc.mmap.argtypes = [size, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.mmap.restype = ctypes.c_ssize_t
    libc.munmap.argtypes = [size, size]
    libc.mprotect.argtypes = [size, size, ctypes.c_int]
    libc.madvise.argtypes = [size, size, ctypes.c_int]
    for call in (libc.munmap, libc.mprotect, libc.madvise):
        call.restype = ctypes.c_int
    prctl: Call | None = None
    mbind: Call | None = None
    if sys.platform == "linux":
        libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, size, size, ctypes.c_char_p]
        libc.prctl.restype = ctypes.c_int
        prctl = libc.prctl
        mbind = _declare_mbind(libc)
    return PosixCalls(libc.mmap, libc.munmap, libc.mprotect, libc.madvise, prctl, mbind)


def _declare_mbind(libc: ctypes.CDLL) -> Call:
    number, size = mbind_number(), ctypes.c_size_t
    syscall = libc["syscall"]  # by index: a function object of its own, for its own prototype
    syscall.restype = ctypes.c_long
    syscall.argtypes = [
        ctypes.c_long,
        *(size, size, ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_uint),
    ]

    def mbind(address: int, nbytes: int, node: int) -> int:
        return int(syscall(number, address, nbytes, MPOL_BIND, *node_mask(node), 0))

    return mbind


CALLS: Final = _declare()


def last_errno() -> int:
    """Return the errno of this thread's last failed call."""
    return ctypes.get_errno()


def describe(call: str, arguments: tuple[int, ...]) -> str:
    """Return the arguments of a call with their symbolic names."""
    if call == "mmap":
        address, nbytes, prot, flags = arguments[:4]
        names = [name for bit, name in _FLAG_NAMES.items() if bit > 0 and flags & bit]
        if (page := page_size_of(flags)) is not None:
            names.append(f"MAP_HUGETLB|MAP_HUGE_{group_name(page)}")
        where = "NULL" if address == 0 else f"{address:#x}"
        return ", ".join(
            [where, str(nbytes), _PROT_NAMES[prot], "|".join([*names, "MAP_PRIVATE|MAP_ANON"])]
        )
    text = [f"{arguments[0]:#x}", str(arguments[1])]
    if call == "mprotect":
        text.append(_PROT_NAMES[arguments[2]])
    elif call == "mbind":
        text.append(f"MPOL_BIND, node {arguments[2]}")
    elif call == "madvise":
        text.append(_ADVICE_NAMES.get(arguments[2], str(arguments[2])))
    return ", ".join(text)


def call_error(
    call: str, *arguments: int, purpose: str = "", huge_page_bytes: int | None = None
) -> CallError:
    """Return the error for a call that just failed, with its likely cause on this machine.

    Args:
        call: The function.
        arguments: Its arguments.
        purpose: For `diagnose_host`, where the call alone does not say what it was for.
        huge_page_bytes: The size of the reserved huge pages that it was to map or fault in.
    """
    code = last_errno()
    symbol = errno.errorcode.get(code, "UNKNOWN")
    text = describe(call, arguments)
    limits = read_limits()
    ran_out = code in {errno.ENOMEM, errno.EAGAIN}
    diagnosis = None
    if huge_page_bytes is not None and code in {errno.ENOMEM, errno.EINVAL, errno.EFAULT}:
        ran_out = code != errno.EINVAL
        diagnosis = diagnose_huge(code, arguments[1], read_huge_limits(huge_page_bytes))
    diagnosis = diagnosis or diagnose_refusal(
        call,
        code,
        arguments[0],
        advice=_ADVICE_NAMES.get(arguments[2], "") if call == "madvise" else "",
        memlock_limit=limits.memlock_limit_bytes,
        huge_pages=has_huge_pages(),
    )
    if diagnosis is None and ran_out:
        diagnosis = diagnose_host(purpose or call, arguments[1], limits)
    return call_failure(
        call,
        text,
        code=code,
        symbol=symbol,
        detail=os.strerror(code),
        diagnosis=diagnosis,
        out_of_memory=ran_out,
    )
