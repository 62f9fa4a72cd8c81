"""The free blocks of a class as bytes, where blocks cross the edges of granules or leave gaps."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.kv.packing.shapes_and_block_classes import BlockClass, BlockPool, Run
    from vmtool.replay.account import Piece

    Granules: TypeAlias = Callable[[int, int], int]
    _Found: TypeAlias = list[tuple["PoolFlags", list[Run]]]
    #: Blocks from the first to the end that were taken with one mark; all of them if that is 1.
    Stretch: TypeAlias = tuple[int, int, int]


#: The number of blocks that there is room for at first; it grows.
_FIRST_BLOCKS: Final = 64
#: Fewer blocks at once are listed one by one.
_FEW_BLOCKS: Final = 4
_ZEROS: Final = re.compile(b"\0+")
_ONES: Final = re.compile(b"\1+")
_MARKS: Final = [bytes((mark,)) for mark in range(256)]


class PoolFlags:
    """Which granules of a pool are committed: those that hold a part of a block in use.

    As blocks are taken lowest first, all blocks of a stretch are in use once its free ones are
    taken, and what is found out about many of them takes a few searches in bytes.

    Attributes:
        count: How many pools there are, all alike.
        block_bytes: Bytes of a block in one.
        base: Where the first of them begins in the reservation.
        size: Bytes from one to the next.
        most: The most granules that one block can touch.
        committed: A byte for each granule: 1 while it is, 2 where no block fits into it.
    """

    def __init__(self, pool: BlockPool, granule: int, granules: Granules) -> None:
        self.count = pool.count
        self.block_bytes = pool.block_bytes
        self.base = self.size = 0
        self._granule = granule
        self._granules = granules
        self.committed = bytearray()
        # The granule of each block, where none crosses an edge.
        apart = pool.drops_straddling
        self._places: list[int] | None = [] if apart else None
        fewest = -(-granule // pool.block_bytes)
        self._all_free = bytes(
            max(fewest - 2, 1) if apart else fewest
        )  # each granule holds as many
        self.most = 1 if apart else (pool.block_bytes + granule - 2) // granule + 1

    def granules(self, blocks: int) -> int:
        """Return how many granules the first *blocks* take."""
        if self._places is None:
            return -(-blocks * self.block_bytes // self._granule)
        return self._granules(self.block_bytes, blocks)

    def use(self, first: int, end: int) -> list[Run]:
        """Note that all blocks from *first* to *end* are in use; the granules that had none before."""
        committed, places = self.committed, self._places
        if places is None:
            at = first * self.block_bytes // self._granule
            beyond = (end * self.block_bytes - 1) // self._granule + 1
        else:
            if end > len(places):
                self._place(places, end)
            at, beyond = places[first], places[end - 1] + 1
        if beyond > len(committed):
            committed.extend(bytes(beyond))
        if committed.find(0, at, beyond) < 0:
            return []
        new = [found.span() for found in _ZEROS.finditer(committed, at, beyond)]
        for low, high in new:
            committed[low:high] = b"\1" * (high - low)
        return new

    def undo(self, new: Iterable[Run]) -> None:
        """Note that the granules in *new*, of the last use, have no block in use after all."""
        for first, end in new:
            self.committed[first:end] = bytes(end - first)

    def unuse(self, used: bytearray, first: int, end: int) -> list[Run]:
        """Return which granules have no block in use any more, after some were freed.

        Args:
            used: A byte for each block, 0 while it is free.
            first: The first block that was freed.
            end: The one after the last.
        """
        committed, size, granule = self.committed, self.block_bytes, self._granule
        places = self._places
        if places is None:
            first = first * size // granule * granule // size
            end = -(-(-(-end * size // granule) * granule) // size)
        else:
            first = bisect_left(places, places[first], 0, first)
            last = places[end - 1]
            while places[-1] == last:
                self._place(places, len(places) + 1)
            end = bisect_right(places, last, end - 1)
        if end > len(used):
            used.extend(bytes(end))
        gone: list[Run] = []
        while (first := used.find(self._all_free, first, end)) >= 0:
            found = _ZEROS.match(used, first, end)
            beyond = found.end() if found else end
            if places is None:
                low, high = -(-first * size // granule), beyond * size // granule
            else:
                low, high = places[first - 1] + 1 if first else 0, places[beyond]
            gone += [found.span() for found in _ONES.finditer(committed, low, high)]
            first = beyond
        self.undo(gone)
        return gone

    def _place(self, places: list[int], blocks: int) -> None:
        """Find the granules of the first *blocks*, and of those that lie with the last."""
        granules, nbytes = self._granules, self.block_bytes
        most = self._granule // nbytes  # whole ones in a granule
        while len(places) < blocks:
            first, count = len(places), most
            at = granules(nbytes, first + 1) - 1
            while granules(nbytes, first + count) - 1 > at:
                count -= 1
            beyond = places[-1] + 1 if places else 0
            if at > beyond:
                self.committed.extend(bytes(at))
                self.committed[beyond:at] = b"\2" * (at - beyond)
            places += [at] * count


class BlockFlags:
    """The free blocks of one class, and its pools.

    Attributes:
        kind: The class.
        block_bytes: Bytes of one block in every pool together.
        low: No block below it is free.
        most: Granules that a block commits at most, in all pools together.
    """

    def __init__(self, kind: BlockClass, granule: int, granules: Granules) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self._granule = granule
        self._pools = [PoolFlags(pool, granule, granules) for pool in kind.pools]
        self.most = sum(pool.count * pool.most for pool in self._pools)
        # A byte for each block that was ever in use, and more: 0 while it is free. To search bytes is
        # fast: what is taken at once is free blocks here and there, and has a mark of its own so that
        # taking and giving it back is one replacement. There are few marks; 1 is of what is listed.
        self._used = bytearray(_FIRST_BLOCKS)
        self._marks = list(range(2, 256))
        self.low = 0

    def place(self, at: int, blocks: int) -> int:
        """Place the pools, for *blocks* each, one after the other from *at* on; where the last ends."""
        for pool in self._pools:
            pool.base, pool.size = at, pool.granules(blocks) * self._granule
            at += pool.count * pool.size
        return at

    def take(self, count: int) -> list[Stretch]:
        """Take the lowest *count* blocks."""
        used, low = self._used, self.low
        if not count:
            return []
        if count < _FEW_BLOCKS or not self._marks:
            return self._take_listed(count)
        mark = self._marks.pop()
        window = 4 * count + len(_MARKS) * 16
        while True:
            piece = used[low : low + window].replace(b"\0", _MARKS[mark], count)
            if piece.count(mark) == count:
                break
            if low + window > len(used):
                used.extend(bytes(len(used)))
            window *= 2
        end = self.low = low + piece.rfind(mark) + 1
        used[low:end] = piece[: end - low]
        return [(low, end, mark)]

    def split(self, taken: list[Stretch], counts: Sequence[int]) -> list[list[Stretch]]:
        """Divide what was just *taken* into so many blocks each, the lowest first.

        All but the last do not use up a mark, as they are kept for long.
        """
        self.give(taken)
        *first, last = counts
        return [*map(self._take_listed, first), self.take(last)]

    def _take_listed(self, count: int) -> list[Stretch]:
        used, runs = self._used, []
        end = self.low
        while count:
            first = used.find(0, end)
            if first < 0:
                first = len(used)
                used.extend(bytes(max(first, count)))
            end = first + 1
            if count > 1:
                found = _ZEROS.match(used, first, first + count)
                end = found.end() if found else end
            used[first:end] = b"\1" * (end - first)
            runs.append((first, end, 1))
            count -= end - first
        self.low = end
        return runs

    def add(self, blocks: list[Stretch], count: int, most: int) -> tuple[int, int] | None:
        """Add the lowest *count* blocks to *blocks*, unless they commit more than *most* granules.

        Returns:
            How many they commit, and in how many spans.
        """
        low = self.low
        taken = self.take(count)
        granules, calls, found = self.use(low, taken)
        if granules > most:
            self.undo(found)
            self.give(taken)
            return None
        blocks += taken
        return granules, calls

    def take_each(self, takers: Iterable[list[Stretch]]) -> list[tuple[int, int, int]]:
        """Take the lowest block for each of *takers* in turn.

        Returns:
            For each taker that commits memory: its number, the granules and the spans.
        """
        used, low, found = self._used, self.low, []
        for number, blocks in enumerate(takers):
            block = used.find(0, low)
            if block < 0:
                block = len(used)
                used.extend(bytes(block))
            used[block] = 1
            low = block + 1
            blocks.append((block, low, 1))
            granules = calls = 0
            for pool in self._pools:
                for at, end in pool.use(block, low):
                    granules += pool.count * (end - at)
                    calls += pool.count
            if granules:
                found.append((number, granules, calls))
        self.low = low
        return found

    def give(self, blocks: Iterable[Stretch]) -> None:
        """Give back *blocks*, whose granules are not committed, or stay committed."""
        used, lowest = self._used, self.low
        for first, end, mark in blocks:
            if end - first == 1:
                used[first] = 0
            elif mark == 1:
                used[first:end] = bytes(end - first)
            else:
                used[first:end] = used[first:end].replace(_MARKS[mark], b"\0")
                self._marks.append(mark)
            if first < lowest:  # noqa: PLR1730 - min() takes longer
                lowest = first
        self.low = lowest

    @staticmethod
    def join(blocks: list[Stretch], more: list[Stretch]) -> None:
        """Add the blocks *more* to *blocks*."""
        blocks += more

    def use(self, low: int, _taken: object) -> tuple[int, int, _Found]:
        """Return how many granules what was taken from *low* on commits, in how many spans, and those."""
        found = []
        if self.low > low:
            found = [(pool, pool.use(low, self.low)) for pool in self._pools]
        return self._sum(found)

    def undo(self, found: _Found) -> None:
        """Note that the granules *found*, of the last use, have no block in use after all."""
        for pool, runs in found:
            pool.undo(runs)

    def release(self, blocks: list[Stretch]) -> tuple[int, int, _Found]:
        """Give back blocks; how many granules have none in use any more, in how many spans, those."""
        found = []
        if blocks:
            self.give(blocks)
            first, end = min(blocks)[0], max([end for _, end, _ in blocks])
            found = [(pool, pool.unuse(self._used, first, end)) for pool in self._pools]
        return self._sum(found)

    def spans(self, found: _Found) -> Iterator[Piece]:
        """Yield where the granules *found* lie, a run of them at a time."""
        granule = self._granule
        for pool, runs in found:
            for index in range(pool.count):
                at = pool.base + index * pool.size
                for first, end in runs:
                    yield at + first * granule, (end - first) * granule

    @staticmethod
    def _sum(found: _Found) -> tuple[int, int, _Found]:
        """Return how many granules *found* are, in how many spans, and those."""
        granules = calls = 0
        for pool, runs in found:
            granules += pool.count * sum([end - first for first, end in runs])
            calls += pool.count * len(runs)
        return granules, calls, found

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""
        return self._used.count(0) == len(self._used)
