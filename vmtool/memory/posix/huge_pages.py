"""Reserved huge pages (hugetlb): the flags of mmap, the pool, and the limits of control groups.

They come from a pool of the machine that an administrator fills, in sizes that the processor
offers. A control group may limit them too; its limit is met when a page is first touched, where it
would kill the process with SIGBUS, so what uses them faults them in at commit
(Documentation/admin-guide/mm/hugetlbpage.rst, docs/platform-facts.md#linux-hugetlb-group).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vmtool.memory.cgroup_paths_and_hugetlb import huge_page_groups
from vmtool.memory.errors import Diagnosis
from vmtool.units import GIB, MIB, format_size

#: Above the flags of mmap stands the binary logarithm of the page size (include/uapi/linux/mman.h).
_SIZE_SHIFT: Final = 26
_MAP_HUGETLB: Final = 0x40000


@dataclass(frozen=True, slots=True)
class HugePageLimits:
    """The pool of one size, and the control group's limit on it; ``None`` is not available.

    Attributes:
        page_bytes: The size of a page.
        pool_pages: Pages that the pool has; ``None`` if the kernel does not have this size.
        free_pages: Pages of it that are neither used nor promised to a mapping.
        group_bytes: The lowest limit of the control groups above this process.
        group_used_bytes: What that group uses of it.
        group: Its directory.
    """

    page_bytes: int
    pool_pages: int | None = None
    free_pages: int | None = None
    group_bytes: int | None = None
    group_used_bytes: int | None = None
    group: str | None = None


def mmap_flags(page_bytes: int) -> int:
    """Return the flags that make mmap use reserved huge pages of one size."""
    return _MAP_HUGETLB | (page_bytes.bit_length() - 1) << _SIZE_SHIFT


def page_size_of(flags: int) -> int | None:
    """Return the page size that the flags of an mmap ask for, or ``None`` for normal pages."""
    return 1 << (flags >> _SIZE_SHIFT) if flags & _MAP_HUGETLB else None


def read_huge_limits(page_bytes: int, root: str = "/") -> HugePageLimits:
    """Return what limits reserved huge pages of one size at this moment."""
    files = _Files(root)
    pool = f"/sys/kernel/mm/hugepages/hugepages-{page_bytes >> 10}kB"
    total = files.number(f"{pool}/nr_hugepages")
    free = files.number(f"{pool}/free_hugepages")
    promised = files.number(f"{pool}/resv_hugepages") or 0
    limits = sorted(
        (limit - used, limit, used, group)
        for page, group, limit, used in huge_page_groups(files)
        if page == page_bytes
    )
    limit, used, group = limits[0][1:] if limits else (None, None, None)
    return HugePageLimits(
        page_bytes, total, None if free is None else free - promised, limit, used, group
    )


def diagnose_huge(code: int, nbytes: int, limits: HugePageLimits) -> Diagnosis | None:
    """Return why reserved huge pages could not be mapped (an errno of mmap) or faulted in.

    ``None`` where the pool has enough of them, so that another limit is the reason.

    Args:
        code: ``ENOMEM`` or ``EINVAL`` of mmap; ``EFAULT`` of ``MADV_POPULATE_WRITE``, which is
            SIGBUS where pages are touched instead.
        nbytes: The length that was requested.
        limits: The limits at that moment.
    """
    size = format_size(limits.page_bytes)
    if code == errno.EINVAL:  # of hugetlb_file_setup in fs/hugetlbfs/inode.c, for no such size
        return Diagnosis(
            "huge-page-size",
            f"this kernel or processor has no reserved huge pages of {size}",
            "ls /sys/kernel/mm/hugepages shows the sizes",
        )
    limit, used = limits.group_bytes, limits.group_used_bytes
    if code == errno.EFAULT and limit is not None and used is not None and used + nbytes > limit:
        return Diagnosis(
            "huge-page-group",
            f"the control group {limits.group} allows {format_size(limit)} of huge pages of {size} "
            f"and uses {format_size(used)}",
            f"raise hugetlb.{group_name(limits.page_bytes)}.max of the group "
            f"(Kubernetes: limits, hugepages-{size.replace(' ', '').removesuffix('B')})",
        )
    if limits.pool_pages is None:
        return Diagnosis(
            "huge-page-pool",
            f"the pool of huge pages of {size} does not have {format_size(nbytes)} free; how many "
            "it has is unknown, as /sys is missing or hidden",
            "sysctl -w vm.nr_hugepages=N on the host, for pages of the default size",
        )
    free = max(limits.free_pages or 0, 0) * limits.page_bytes
    if code == errno.ENOMEM and nbytes <= free:
        return None
    needed = limits.pool_pages + -(-nbytes // limits.page_bytes) - max(limits.free_pages or 0, 0)
    pool = f"/sys/kernel/mm/hugepages/hugepages-{limits.page_bytes >> 10}kB/nr_hugepages"
    return Diagnosis(
        "huge-page-pool",
        f"the pool has {limits.pool_pages:,} huge pages of {size}, {limits.free_pages or 0:,} of "
        f"them free; {format_size(nbytes)} was requested",
        f"echo {needed} > {pool}"
        + (
            f", or boot with hugepagesz=1G hugepages={needed}: memory may be too fragmented later"
            if limits.page_bytes >= GIB
            else ""
        ),
    )


def group_name(page_bytes: int) -> str:
    """Return a page size as the files of a control group have it: ``2MB``."""
    for unit, letter in ((GIB, "G"), (MIB, "M")):
        if page_bytes >= unit:
            return f"{page_bytes // unit}{letter}B"
    return f"{page_bytes >> 10}KB"


class _Files:
    """The kernel's files, below a root that a test makes."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def read(self, path: str) -> str | None:
        try:
            return Path(self._root + path).read_text("utf-8", errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in Path(self._root + path).iterdir()))
        except OSError:
            return ()

    def number(self, path: str) -> int | None:
        try:
            return int(self.read(path) or "")
        except ValueError:
            return None
