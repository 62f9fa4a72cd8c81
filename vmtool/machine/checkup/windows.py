"""Page file and large pages of Windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine.checkup.check import Check, note, ok
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts

_PAGE_FILE = "System Properties > Advanced > Performance > Advanced > Virtual memory"


def check_windows(facts: MachineFacts) -> list[Check]:
    """Return what only Windows does to such memory; nothing elsewhere."""
    found = [_page_file(facts), _large_pages(facts)]
    return [check for check in found if check is not None]


def _page_file(facts: MachineFacts) -> Check | None:
    total = facts.memory.swap_total_bytes
    if total is None or facts.system.os != "Windows":
        return None
    if total == 0:
        return note(
            "no-page-file",
            "no page file: the commit limit is RAM alone, and error 1455 comes while RAM is free",
            f"let Windows manage one: {_PAGE_FILE}",
        )
    return ok("page-file", f"page files of {format_size(total)}, part of the commit limit")


def _large_pages(facts: MachineFacts) -> Check | None:
    size, allowed = facts.huge_pages.large_bytes, facts.huge_pages.large_privilege
    if size is None or allowed is None:
        return None
    words = f"large pages of {format_size(size)}"
    if allowed:
        return ok("large-pages", f"{words} are allowed for this user; vmtool does not use them")
    return note(
        "large-page-privilege",
        f"{words} need the right to lock pages (SeLockMemoryPrivilege), which this user lacks; "
        "vmtool does not use them, engines may",
        "secpol.msc > Local Policies > User Rights Assignment > Lock pages in memory, then log on "
        "again",
    )
