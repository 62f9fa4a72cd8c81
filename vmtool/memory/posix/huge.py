"""Reserved huge pages (hugetlb): the flags of mmap, the pool, and the limits of control groups.

They come from a pool of the machine that an administrator fills, in sizes that the processor
offers. A control group may limit them too; its limit is met when a page is first touched, where it
would kill the process with SIGBUS, so what uses them faults them in at commit
(Documentation/admin-guide/mm/hugetlbpage.rst, docs/platform-facts.md#linux-hugetlb-group).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from vmtool.memory.diagnosis import Diagnosis
from vmtool.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Above the flags of mmap stands the binary logarithm of the page size (include/uapi/linux/mman.h).
_SIZE_SHIFT: Final = 26
_MAP_HUGETLB: Final = 0x40000
#: Where distributions mount the hierarchies that can have the controller.
_MOUNTS: Final = (
    "sys/fs/cgroup",  # version 2
    "sys/fs/cgroup/unified",  # version 2 beside version 1
    "sys/fs/cgroup/hugetlb",  # version 1
)


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
    pool = Path(root, f"sys/kernel/mm/hugepages/hugepages-{page_bytes >> 10}kB")
    total = _read_int(pool / "nr_hugepages")
    free = _read_int(pool / "free_hugepages")
    promised = _read_int(pool / "resv_hugepages") or 0
    limits = sorted(_group_limits(page_bytes, Path(root)))
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


def _group_limits(page_bytes: int, root: Path) -> Iterator[tuple[int, int, int, str]]:
    """Yield what is left, limit, use and directory of every control group that has a limit."""
    name = group_name(page_bytes)
    for path in _groups(root):
        for mount in _MOUNTS:
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                directory = root / mount / str(group).lstrip("/")
                for limit_name, used_name in (
                    ("max", "current"),
                    ("limit_in_bytes", "usage_in_bytes"),
                ):
                    limit = _read_int(directory / f"hugetlb.{name}.{limit_name}")
                    used = _read_int(directory / f"hugetlb.{name}.{used_name}")
                    if limit is not None and used is not None:
                        yield limit - used, limit, used, str(directory)


def _groups(root: Path) -> set[str]:
    """Return the groups of this process that may have the controller."""
    try:
        text = (root / "proc/self/cgroup").read_text("utf-8", errors="replace")
    except OSError:
        return set()
    fields = (line.split(":", 2) for line in text.splitlines())
    return {f[2] for f in fields if len(f) == 3 and (not f[1] or "hugetlb" in f[1].split(","))}


def group_name(page_bytes: int) -> str:
    """Return a page size as the files of a control group have it: ``2MB``."""
    for unit, letter in ((GIB, "G"), (MIB, "M")):
        if page_bytes >= unit:
            return f"{page_bytes // unit}{letter}B"
    return f"{page_bytes >> 10}KB"


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
