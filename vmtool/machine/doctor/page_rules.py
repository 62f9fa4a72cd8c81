"""Rules about page sizes, huge pages and NUMA nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor.findings import Finding
from vmtool.units import KIB, format_size

if TYPE_CHECKING:
    from vmtool.machine.cgroups import GroupLimit
    from vmtool.machine.facts import MachineFacts


_ENABLED: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


def transparent_huge_pages(facts: MachineFacts) -> Finding | None:
    """Rate when the kernel uses transparent huge pages."""
    huge = facts.huge_pages
    if facts.system.os != "Linux":
        return None
    if huge.hidden:
        works = {
            True: "--huge works",
            False: "--huge is refused",
            None: "unknown whether --huge works",
        }
        return Finding.note(
            "huge-pages-unknown",
            (
                "/sys is missing or hidden, so the settings of huge pages are unknown; "
                f"{works[huge.advice_works]}"
            ),
            "mount -t sysfs sysfs /sys",
        )
    if huge.thp_mode is None:
        return Finding.note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if huge.thp_disabled_here:
        return Finding.note(
            "huge-pages-disabled",
            "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)",
            "start it from a parent that does not set PR_SET_THP_DISABLE",
        )
    size = "" if huge.pmd_bytes is None else f" of {format_size(huge.pmd_bytes)}"
    if huge.thp_mode == "always":
        filled = huge.collapse_empty_pages
        how = "" if filled is None else f" (max_ptes_none is {filled})"
        return Finding.note(
            "huge-pages-always",
            f"transparent huge pages{size} are always on: khugepaged may fill released "
            f"pages inside one{how}, and resident memory grows back",
            f"echo madvise > {_ENABLED}",
        )
    if huge.thp_mode == "never":
        return Finding.note(
            "huge-pages-never",
            f"transparent huge pages{size} are off: --huge changes nothing, and touching 2 MiB "
            "takes 512 page faults",
            f"echo madvise > {_ENABLED}",
        )
    return Finding.ok(
        "huge-pages",
        f"transparent huge pages{size} are given on request (madvise); --huge requests them",
    )


def reserved_huge_pages(facts: MachineFacts) -> Finding | None:
    """Rate the pools of reserved huge pages."""
    total = facts.memory.total_bytes
    pools = facts.huge_pages.pools
    reserved = sum(pool.page_bytes * pool.total for pool in pools)
    if not reserved or total is None:
        return None
    free = sum(pool.page_bytes * pool.free for pool in pools)
    words = (
        f"{format_size(reserved)} of RAM is reserved as huge pages, {format_size(free)} of it free"
    )
    refused = [pool for pool in pools if pool.free and pool.works is False]
    if refused:
        size = format_size(refused[0].page_bytes)
        return Finding.note(
            "reserved-huge-pages",
            f"{words}; mapping one of {size} (MAP_HUGETLB) is still refused",
            "raise nr_hugepages: free pages may be reserved by another program already",
        )
    for group in facts.cgroup.huge_pages:
        if any(pool.page_bytes == group.page_bytes for pool in pools):
            return _huge_page_group(words, group)
    if free > total // 10:
        return Finding.note(
            "reserved-huge-pages",
            f"{words}: ordinary commits cannot use it",
            "sysctl -w vm.nr_hugepages=0, if no program uses them",
        )
    return Finding.ok("reserved-huge-pages", words)


def _huge_page_group(words: str, group: GroupLimit) -> Finding:
    """Return the limit of a group: what exceeds it maps, and is SIGBUS at the first touch."""
    size = format_size(group.page_bytes or 0)
    return Finding.note(
        "huge-page-group",
        f"{words}; control group {group.path} may use {format_size(group.limit)} of those of {size} "
        f"({format_size(group.used)} used): touching more raises SIGBUS and returns no error",
        "raise its hugetlb limit: resources.limits.hugepages-SIZE of the pod",
    )


def numa_nodes(facts: MachineFacts) -> Finding | None:
    """Rate the NUMA nodes."""
    nodes = facts.memory.nodes
    if not nodes:
        return None
    if len(nodes) == 1:
        return Finding.ok("numa", "one NUMA node")
    free = ", ".join(f"node {node.number} {format_size(node.free_bytes)}" for node in nodes)
    return Finding.ok("numa", f"{len(nodes)} NUMA nodes, free: {free}")


def page_size(facts: MachineFacts) -> Finding:
    """Rate the size of a page."""
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == 4 * KIB:
        return Finding.ok("page-size", words)
    return Finding.note(
        "page-size",
        f"{words}: offsets made for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def allocation_granularity(facts: MachineFacts) -> Finding | None:
    """Rate what the base of a reservation is a multiple of."""
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return Finding.note(
        "allocation-granularity",
        f"addresses are reserved in units of {format_size(facts.allocation_bytes)}, although pages "
        f"are {format_size(facts.page_bytes)}: a view at another offset fails with error 1132",
        "use the commit granularity that `vmtool granularity` shows",
    )


def large_pages(facts: MachineFacts) -> Finding | None:
    """Rate whether this user may lock large pages on Windows."""
    size, allowed = facts.huge_pages.large_bytes, facts.huge_pages.large_privilege
    if size is None or allowed is None:
        return None
    words = f"large pages of {format_size(size)}"
    if allowed:
        return Finding.ok(
            "large-pages", f"{words} are allowed for this user; vmtool does not use them"
        )
    return Finding.note(
        "large-page-privilege",
        f"{words} need the right to lock pages (SeLockMemoryPrivilege), which this user lacks; "
        "vmtool does not use them, engines may",
        "secpol.msc > Local Policies > User Rights Assignment > Lock pages in memory, then log on "
        "again",
    )
