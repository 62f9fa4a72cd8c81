"""The patterns: five orders in which granules are committed and released."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random


class Kind(enum.Enum):
    """What one operation does."""

    COMMIT = "commit"
    RELEASE = "release"


#: One operation: what, the first granule, how many.
Operation: TypeAlias = tuple[Kind, int, int]


@dataclass(slots=True)
class Quota:
    """How many commits a pattern may still make; it releases everything after the last.

    Attributes:
        left: Commits left.
    """

    left: int

    def take(self) -> bool:
        """Take one commit, if there is one."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


#: Yields operations for a range of *granules*, of which at most *live* are committed at once,
#: until the quota is used up and everything is released.
Pattern: TypeAlias = "Callable[[int, int, Quota, Random], Iterator[Operation]]"

# A block of the last pattern grows by this many granules and shrinks to a quarter of them.
_BLOCK: Final = 32


def _tail(_granules: int, live: int, quota: Quota, _random: Random) -> Iterator[Operation]:
    """One sequence: grow to the limit a granule at a time, shrink to nothing the same way."""
    while quota.left > 0:
        top = 0
        while top < live and quota.take():
            yield Kind.COMMIT, top, 1
            top += 1
        while top:
            top -= 1
            yield Kind.RELEASE, top, 1


def _random(granules: int, live: int, quota: Quota, random: Random) -> Iterator[Operation]:
    """Random single granules: the worst order for the number of mappings."""
    taken: list[int] = []
    members: set[int] = set()
    while True:
        grow = len(taken) < live and (not taken or random.random() < 0.5)
        if grow and quota.take():
            at = random.randrange(granules)
            while at in members:
                at = (at + 1) % granules
            taken.append(at)
            members.add(at)
            yield Kind.COMMIT, at, 1
        elif taken:
            pick = random.randrange(len(taken))
            taken[pick], taken[-1] = taken[-1], taken[pick]
            at = taken.pop()
            members.discard(at)
            yield Kind.RELEASE, at, 1
        elif quota.left <= 0:
            return


def _hole_punch(_granules: int, live: int, quota: Quota, random: Random) -> Iterator[Operation]:
    """Fill a prefix, then release its odd granules, commit them again in random order, empty it."""
    while quota.left > 0:
        top = 0
        while top < live and quota.take():
            yield Kind.COMMIT, top, 1
            top += 1
        holes = list(range(1, top, 2))
        for at in holes:
            yield Kind.RELEASE, at, 1
        random.shuffle(holes)
        filled = set(range(0, top, 2))
        for at in holes:
            if not quota.take():
                break
            filled.add(at)
            yield Kind.COMMIT, at, 1
        for at in sorted(filled):
            yield Kind.RELEASE, at, 1


def _sawtooth(_granules: int, live: int, quota: Quota, random: Random) -> Iterator[Operation]:
    """Requests come and go: grow to a random height, drop to a random lower one in one release."""
    top = 0
    while quota.left > 0:
        peak = random.randint(top + 1, live) if top < live else top
        while top < peak and quota.take():
            yield Kind.COMMIT, top, 1
            top += 1
        low = random.randint(0, top - 1) if top else 0
        if top:
            yield Kind.RELEASE, low, top - low
        top = low
    if top:
        yield Kind.RELEASE, 0, top


def _block_grow(_granules: int, live: int, quota: Quota, _random: Random) -> Iterator[Operation]:
    """Grow by a block of granules in one commit, shrink into the middle of it, grow again."""
    block = min(_BLOCK, live)
    keep = max(block // 4, 1)
    while quota.left > 0:
        top = 0
        while top + block <= live and quota.take():
            yield Kind.COMMIT, top, block
            top += block
            if block > keep:
                yield Kind.RELEASE, top - block + keep, block - keep
                top -= block - keep
        if top:
            yield Kind.RELEASE, 0, top


PATTERNS: Final[dict[str, Pattern]] = {
    "tail": _tail,
    "random": _random,
    "hole-punch": _hole_punch,
    "sawtooth": _sawtooth,
    "block-grow-partial-shrink": _block_grow,
}


def live_granules(pattern: str, granules: int, budget_granules: int) -> int:
    """Return how many granules *pattern* keeps committed at most.

    Half the range for ``random``, so that free granules are found at once; else all of it.
    """
    most = max(granules // 2, 1) if pattern == "random" else granules
    return max(min(most, budget_granules), 1)


def largest_commit(pattern: str, live: int) -> int:
    """Return how many granules one commit of *pattern* takes."""
    return min(_BLOCK, live) if pattern == "block-grow-partial-shrink" else 1
