"""Everything on this machine that would stop or slow such memory, with nothing failing yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine.checkup.check import Check, Rating
from vmtool.machine.checkup.huge import check_huge_pages
from vmtool.machine.checkup.limits import check_limits
from vmtool.machine.checkup.memory import check_memory
from vmtool.machine.checkup.platform import check_platform
from vmtool.machine.checkup.windows import check_windows

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts

__all__ = ["Check", "Rating", "examine"]


def examine(facts: MachineFacts) -> tuple[Check, ...]:
    """Return a rating of everything that *facts* tell; what they do not tell is not rated."""
    return (
        *check_memory(facts),
        *check_limits(facts),
        *check_huge_pages(facts),
        *check_platform(facts),
        *check_windows(facts),
    )
