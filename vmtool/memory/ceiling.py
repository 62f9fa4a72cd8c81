"""How large one reservation can be: a bounded search that commits nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, UsageError
from vmtool.memory.wine import wine_version
from vmtool.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.memory.backing import VirtualBacking

_LARGEST: Final = 1 << 62

# Wine keeps a byte for every page of a reservation: 64 TiB would take 16 GiB of memory (seen: a
# machine of 24 GiB ran out of it), and 4 TiB take seconds.
_LARGEST_ON_WINE: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the search for the largest reservation found.

    Attributes:
        works_bytes: The largest size that succeeded; 0 if none did.
        refused_bytes: The smallest size that was refused, or ``None`` if none was.
        tries: How many reservations were tried.
        error: What the platform said to the smallest refused size.
    """

    works_bytes: int
    refused_bytes: int | None
    tries: int
    error: str | None


def largest_reservation(backing: VirtualBacking, *, tries: int = 64) -> Ceiling:
    """Reserve and unreserve ever larger ranges of *backing*, then bisect (B2: nothing is committed).

    64 tries find the exact size where addresses have 48 bits and the granule is a 4 KiB page; the
    answer holds for this process now, as other mappings divide the address space.
    """
    errors: dict[int, str] = {}

    def works(nbytes: int) -> bool:
        try:
            reservation = backing.reserve(nbytes)
        except (CallError, UsageError) as error:
            errors[nbytes] = str(error)
            return False
        backing.unreserve(reservation)
        return True

    most = most_worth_trying()
    good, bad, used = search_ceiling(works, unit=backing.granularity, tries=tries, most=most)
    return Ceiling(good, bad, used, None if bad is None else errors[bad])


def most_worth_trying() -> int:
    """Return the largest reservation that a search should try: beyond it lies only harm."""
    return _LARGEST_ON_WINE if wine_version() else _LARGEST


def search_ceiling(
    works: Callable[[int], bool | None], *, unit: int, tries: int, most: int = _LARGEST
) -> tuple[int, int | None, int]:
    """Return the largest multiple of *unit* that works, the smallest that does not, and the tries.

    Doubles (or halves) from 1 GiB, or from *most*, until the answer changes, then bisects.

    Args:
        works: Tells whether a size works; if one does, all smaller ones must. ``None`` ends the
            search where it is.
        unit: What sizes are multiples of.
        tries: The most calls of *works*.
        most: The largest size to try.
    """
    good, bad, used = 0, None, 0
    size = max(min(GIB, most) // unit, 1) * unit
    while used < tries and (bad is None or (good == 0 and bad > unit)) and size <= most:
        worked = works(size)
        if worked is None:
            return good, bad, used
        used += 1
        if worked:
            good = size
            size *= 2
        else:
            bad = size
            size = max(size // 2 // unit, 1) * unit
    while used < tries and bad is not None and bad - good > unit:
        middle = (good + bad) // 2 // unit * unit
        worked = works(middle)
        if worked is None:
            return good, bad, used
        used += 1
        if worked:
            good = middle
        else:
            bad = middle
    return good, bad, used
