"""The blocks of one class: which are free, and which granules of its pools hold one in use."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.kv.block_classes import BlockClass, BlockPool
    from vmtool.kv.growth import Run

    #: How many granules hold the first so many blocks of a size.
    Granules: TypeAlias = Callable[[int, int], int]


class PoolUse:
    """How many blocks in use each granule of a pool holds a part of.

    Attributes:
        pool: The pool, of which there are several alike.
        base: Where the first of them begins in the reservation.
        size: Bytes from one to the next.
    """

    def __init__(self, pool: BlockPool, granule: int, granules: Granules) -> None:
        self.pool = pool
        self.base = self.size = 0
        self._granule = granule
        self._granules = granules
        self._uses: list[int] = []
        self._places: list[int] = []  # the granule of each block, where none crosses an edge

    def use(self, runs: Sequence[Run]) -> list[int]:
        """Count the blocks in *runs* as in use; the granules that had none before."""
        uses = self._uses
        new = []
        for at, count in self._granules_of(runs):
            while len(uses) <= at:
                uses.append(0)
            if not uses[at]:
                new.append(at)
            uses[at] += count
        return new

    def use_one(self, block: int) -> Sequence[int]:
        """Count one block as in use, as :meth:`use` does; most steps take one, so this is hot."""
        size, granule, uses = self.pool.block_bytes, self._granule, self._uses
        start = block * size
        at = start // granule
        if self.pool.apart or (start + size - 1) // granule != at:
            return self.use(((block, block + 1),))
        if at >= len(uses):
            uses.extend([0] * (at + 1 - len(uses)))
        uses[at] += 1
        return (at,) if uses[at] == 1 else ()

    def unuse(self, runs: Sequence[Run]) -> list[int]:
        """Count the blocks in *runs* as free; the granules that have none in use any more."""
        uses = self._uses
        gone = []
        for at, count in self._granules_of(runs):
            uses[at] -= count
            if not uses[at]:
                gone.append(at)
        return gone

    def _granules_of(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        """Yield granules, and how many blocks of a run lie in each, wholly or in part."""
        if self.pool.apart:
            yield from self._granules_apart(runs)
            return
        size, granule = self.pool.block_bytes, self._granule
        for first, end in runs:
            at, last = first * size // granule, (end * size - 1) // granule
            if at == last:
                yield at, end - first
                continue
            for each in range(at, last + 1):
                low = max(first, each * granule // size)
                high = min(end, -(-(each + 1) * granule // size))
                yield each, high - low

    def _granules_apart(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        places = self._places
        for first, end in runs:
            while len(places) < end:
                places.append(self._granules(self.pool.block_bytes, len(places) + 1) - 1)
            at = first
            while at < end:
                beyond = min(bisect_right(places, places[at], at), end)
                yield places[at], beyond - at
                at = beyond


class ClassUse:
    """The free blocks of one class, and its pools.

    Attributes:
        kind: The class.
        block_bytes: Bytes of one block in every pool together.
        pools: Its pools.
    """

    def __init__(self, kind: BlockClass, granule: int, granules: Granules) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self.pools = [PoolUse(pool, granule, granules) for pool in kind.pools]
        self._free: list[Run] = []  # a heap: the lowest first; neighbours are not joined
        self._end = 0  # beyond it, no block was ever in use
        self._in_use = 0

    def take(self, count: int) -> list[Run]:
        """Take the lowest *count* blocks."""
        free = self._free
        self._in_use += count
        if count == 1 and free:  # most steps
            first, end = free[0]
            if end - first == 1:
                heappop(free)
            else:
                heapreplace(free, (first + 1, end))
            return [(first, first + 1)]
        runs: list[Run] = []
        while count and free:
            first, end = free[0]
            if end - first > count:
                end = first + count
                heapreplace(free, (end, free[0][1]))
            else:
                heappop(free)
            runs.append((first, end))
            count -= end - first
        if count:
            runs.append((self._end, self._end + count))
            self._end += count
        return runs

    def give(self, runs: Sequence[Run]) -> None:
        """Give blocks back."""
        for run in runs:
            heappush(self._free, run)
            self._in_use -= run[1] - run[0]

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""
        return not self._in_use


def joined(runs: Sequence[Run]) -> list[Run]:
    """Return *runs*, in any order, with neighbours as one."""
    found: list[Run] = []
    for first, end in sorted(runs):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def runs_of(granules: Sequence[int]) -> list[Run]:
    """Return *granules*, in any order, as runs."""
    if len(granules) == 1:
        return [(granules[0], granules[0] + 1)]
    return joined([(at, at + 1) for at in granules])
