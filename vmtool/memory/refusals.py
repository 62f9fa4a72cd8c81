"""Why a POSIX memory call was refused although nothing ran out: one cause and one remedy."""

from __future__ import annotations

import errno
import mmap
from typing import Final

from vmtool.memory.diagnosis import Diagnosis

#: Linux only (include/uapi/asm-generic/errno.h); other systems have no such error.
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
    "look at `ausearch -m avc -ts recent` or the profile of the container",
)
_BAD_MEMORY: Final = Diagnosis(
    "bad-memory",
    "the kernel found an uncorrectable error in that memory (hardware poison)",
    "look at `dmesg | grep -i 'hardware error'`; the RAM needs replacing",
)


def diagnose_refusal(
    call: str, code: int, address: int, *, advice: str = "", memlock_limit: int | None = None
) -> Diagnosis | None:
    """Return the cause of an error other than ``ENOMEM``, or ``None`` if it isn't known.

    Args:
        call: ``mmap``, ``mprotect``, ``madvise`` or ``munmap``.
        code: The errno.
        address: The first argument.
        advice: For madvise, the name of its advice.
        memlock_limit: ``RLIMIT_MEMLOCK``, ``None`` for unlimited or unknown.
    """
    if code == errno.EINVAL:
        if address % mmap.PAGESIZE:
            return Diagnosis(
                "page-size",
                f"address {address:#x} is not a multiple of this system's pages of "
                f"{mmap.PAGESIZE} bytes",
                "query the granularity instead of assuming 4 KiB",
            )
        return {"MADV_HUGEPAGE": _NO_HUGE_PAGES, "MADV_POPULATE_WRITE": _OLD_KERNEL}.get(advice)
    if code == errno.EAGAIN and call in {"mmap", "mprotect"}:
        limit = "" if memlock_limit is None else f" of {memlock_limit} bytes"
        return Diagnosis(
            "locked-limit",
            f"this process locks its memory (mlockall), and RLIMIT_MEMLOCK{limit} is reached",
            "ulimit -l unlimited, or do not lock all memory",
        )
    if code in {errno.EPERM, errno.EACCES}:
        return _FORBIDDEN
    return _BAD_MEMORY if code == _EHWPOISON else None
