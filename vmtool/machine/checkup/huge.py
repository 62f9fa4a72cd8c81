"""Transparent and reserved huge pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine.checkup.check import Check, note, ok
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import HugePageFacts, MachineFacts

_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"


def check_huge_pages(facts: MachineFacts) -> list[Check]:
    """Return what huge pages do to commits and releases here; nothing where there are none."""
    huge = facts.huge_pages
    found = [_transparent(huge, facts), *_pools(huge, facts)]
    return [check for check in found if check is not None]


def _transparent(huge: HugePageFacts, facts: MachineFacts) -> Check | None:
    if facts.system.os != "Linux":
        return None
    if huge.thp_mode is None:
        return note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if huge.thp_disabled_here:
        return note(
            "huge-pages-disabled",
            "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)",
            "start it from a parent that does not set PR_SET_THP_DISABLE",
        )
    size = "" if huge.pmd_bytes is None else f" of {format_size(huge.pmd_bytes)}"
    if huge.thp_mode == "always":
        filled = huge.collapse_empty_pages
        how = "" if filled is None else f" (max_ptes_none is {filled})"
        return note(
            "huge-pages-always",
            f"transparent huge pages{size} are always on: khugepaged may fill what was released "
            f"inside one{how}, and resident memory climbs back",
            f"echo madvise > {_ENABLED}",
        )
    if huge.thp_mode == "never":
        return note(
            "huge-pages-never",
            f"transparent huge pages{size} are off: --huge changes nothing, and touching 2 MiB "
            "takes 512 faults",
            f"echo madvise > {_ENABLED}",
        )
    return ok("huge-pages", f"transparent huge pages{size} on request (madvise): --huge asks")


def _pools(huge: HugePageFacts, facts: MachineFacts) -> list[Check]:
    total = facts.memory.total_bytes
    idle = sum(pool.page_bytes * pool.free for pool in huge.pools)
    held = sum(pool.page_bytes * pool.total for pool in huge.pools)
    if not held or total is None:
        return []
    words = f"{format_size(held)} of RAM is reserved as huge pages, {format_size(idle)} of it idle"
    if idle > total // 10:
        return [
            note(
                "reserved-huge-pages",
                f"{words}: ordinary commits cannot have it",
                "sysctl -w vm.nr_hugepages=0, if no program uses them",
            )
        ]
    return [ok("reserved-huge-pages", words)]
