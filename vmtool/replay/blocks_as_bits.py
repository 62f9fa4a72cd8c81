"""The free blocks of a class as bits of integers, where granules hold whole numbers of blocks."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vmtool.kv.packing.shapes_and_block_classes import BlockClass, BlockPool
    from vmtool.replay.account import Piece

    #: Blocks or granules: bits by the number of the section that they lie in.
    Masks: TypeAlias = dict[int, int]
    _Found: TypeAlias = list[tuple["PoolMasks", Masks]]

#: About so many blocks are the bits of one integer: operations on fewer take as long.
SECTION_BLOCKS: Final = 1024
#: The most, where pools with granules of different numbers of blocks need more.
_LONGEST: Final = 1 << 16
#: From so few bits more or less on they are added or removed one by one.
_NEAR: Final = 4


class PoolMasks:
    """Which granules of a pool are committed: those with a block in use.

    Args:
        pool: The pool.
        filling: Blocks of a granule.
        section: Blocks of a section, a multiple of them.

    Attributes:
        count: How many pools there are, all alike.
        filling: As given.
        tops: The last block of each granule of a section, as bits.
        below: All others.
        busy: For each section the last blocks of granules that are committed.
    """

    def __init__(self, pool: BlockPool, filling: int, section: int) -> None:
        self.count = pool.count
        self.filling = filling
        blocks = (1 << section) - 1
        self.tops = blocks // ((1 << filling) - 1) << (filling - 1)
        self.below = blocks ^ self.tops
        self.busy: list[int] = []
        self._section = section
        self._base = self._size = 0

    def place(self, base: int, size: int) -> None:
        """Let the first pool begin at *base*, and each be of *size* bytes."""
        self._base, self._size = base, size

    def update(self, sections: Iterable[int], free: list[int], blocks: int) -> Masks:
        """Find out what is committed in *sections*; return the last blocks of granules that changed.

        Args:
            sections: Their numbers.
            free: The free blocks of each section.
            blocks: All blocks of one.
        """
        below, tops, busy = self.below, self.tops, self.busy
        changed = {}
        for at in sections:
            used = free[at] ^ blocks
            # The sum carries into the last block of a granule where one below it is in use.
            now = (((used & below) + below) | used) & tops
            if now != busy[at]:
                changed[at] = now ^ busy[at]
                busy[at] = now
        return changed

    def idle(self, at: int) -> int:
        """Return the blocks of section *at* whose granules are not committed."""
        tops = self.busy[at] ^ self.tops
        return (tops << 1) - (tops >> (self.filling - 1))

    def count_runs(self, found: Masks) -> tuple[int, int]:
        """Return how many granules *found* are, by their last blocks, and how many runs of them."""
        granules = joined = 0
        for tops in found.values():
            granules += tops.bit_count()
            joined += (tops & (tops << self.filling)).bit_count()
        if len(found) > 1:
            first, last = 1 << (self.filling - 1), 1 << (self._section - 1)
            for at, tops in found.items():
                if tops & first and found.get(at - 1, 0) & last:
                    joined += 1
        return granules, granules - joined

    def spans(self, found: Masks, granule: int) -> Iterator[Piece]:
        """Yield where the granules *found* lie, a run of them at a time."""
        runs: list[list[int]] = []
        for at, tops in sorted(found.items()):
            left, first = tops, at * (self._section // self.filling) - 1
            while left:
                number = first + (left & -left).bit_length() // self.filling
                left &= left - 1
                if runs and runs[-1][1] == number:
                    runs[-1][1] += 1
                else:
                    runs.append([number, number + 1])
        for index in range(self.count):
            base = self._base + index * self._size
            for number, end in runs:
                yield base + number * granule, (end - number) * granule


class BlockMasks:
    """The free blocks of one class, and its pools, whose granules hold whole blocks only.

    Only numbers of granules and their runs are worked out, many blocks at once: free blocks are bits
    of integers, each for a *section* of all blocks, and what a sequence has is bits as well.

    Args:
        kind: The class.
        granule: In bytes.
        section: Blocks of a section.

    Attributes:
        kind: As given.
        block_bytes: Bytes of one block in every pool together.
        most: Granules that a block commits at most, in all pools together.
        low: No section before it has a free block.
    """

    def __init__(self, kind: BlockClass, granule: int, section: int) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self.most = sum(pool.count for pool in kind.pools)
        self.low = 0
        self._granule = granule
        self._all = (1 << section) - 1
        self._pools = [PoolMasks(pool, granule // pool.block_bytes, section) for pool in kind.pools]
        self._free: list[int] = []
        self._idle: list[int] = []  # those of them that commit a granule
        self._extend()

    @classmethod
    def of(cls, kind: BlockClass, granule: int) -> BlockMasks | None:
        """Return them, or ``None`` where blocks don't fill granules, or alike too seldom."""
        if any(granule % pool.block_bytes for pool in kind.pools):
            return None
        least = lcm(*[granule // pool.block_bytes for pool in kind.pools])
        if least > _LONGEST:
            return None
        return cls(kind, granule, least * max(SECTION_BLOCKS // least, 1))

    def place(self, at: int, blocks: int) -> int:
        """Place the pools, for *blocks* each, one after the other from *at* on; where the last ends."""
        for pool in self._pools:
            size = -(-blocks // pool.filling) * self._granule
            pool.place(at, size)
            at += pool.count * size
        return at

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""
        return self._free.count(self._all) == len(self._free)

    def spans(self, found: _Found) -> Iterator[Piece]:
        """Yield where the granules *found* lie."""
        for pool, masks in found:
            yield from pool.spans(masks, self._granule)

    # ---- take -----------------------------------------------------------------------------------

    def take(self, count: int) -> Masks:
        """Take the lowest *count* blocks."""
        taken = {}
        free, at = self._free, self.low
        while count:
            if at == len(free):
                self._extend()
            mask = free[at]
            found = mask.bit_count()
            if found > count:
                taken[at] = lowest = _lowest(mask, count)
                free[at] = mask ^ lowest
                break
            if found:
                taken[at] = mask
                free[at] = 0
                count -= found
            at += 1
        self.low = at
        return taken

    @staticmethod
    def split(taken: Masks, counts: Iterable[int]) -> list[Masks]:
        """Divide what was *taken* into so many blocks each, the lowest first."""
        parts, sections = [], iter(taken.items())
        at = mask = left = 0
        for count in counts:
            part: Masks = {}
            lacks = count
            while lacks:
                if not left:
                    at, mask = next(sections)
                    left = mask.bit_count()
                if left > lacks:
                    part[at] = lowest = _lowest(mask, lacks)
                    mask ^= lowest
                    left -= lacks
                    break
                part[at] = mask
                lacks -= left
                left = 0
            parts.append(part)
        return parts

    def use(self, _low: int, taken: Masks) -> tuple[int, int, _Found]:
        """Return how many granules the blocks *taken* commit, in how many spans, and those."""
        idle = self._idle
        for at, mask in taken.items():
            if mask & idle[at]:
                return self._update(taken)
        return 0, 0, []

    def undo(self, found: _Found) -> None:
        """Note that the granules *found*, of the last use, have no block in use after all."""
        for pool, masks in found:
            for at, tops in masks.items():
                pool.busy[at] ^= tops
                self._idle[at] |= pool.idle(at)

    def add(self, masks: Masks, count: int, most: int) -> tuple[int, int] | None:
        """Add the lowest *count* blocks to *masks*, unless they commit more than *most* granules.

        Returns:
            How many they commit, and in how many spans.
        """
        free, idle, at = self._free, self._idle, self.low
        granules = calls = 0
        if count > 1:
            taken = self.take(count)
            granules, calls, found = self.use(at, taken)
            if granules > most:
                self.undo(found)
                self.give(taken)
                return None
            if masks:
                self.join(masks, taken)
            else:
                masks.update(taken)
            return granules, calls
        while at == len(free) or not (mask := free[at]):
            if at == len(free):
                self._extend()
            else:
                at += 1
        self.low = at
        free[at] = rest = mask & (mask - 1)
        block = mask ^ rest
        if block & idle[at]:
            granules, calls, found = self._update((at,))
            if granules > most:
                self.undo(found)
                free[at] = mask
                return None
        masks[at] = masks.get(at, 0) | block
        return granules, calls

    def take_each(self, takers: Iterable[Masks]) -> list[tuple[int, int, int]]:
        """Add the lowest block to each of *takers* in turn.

        Returns:
            The number of each that commits memory, how many granules and in how many spans.
        """
        free, at = self._free, self.low
        if at == len(free):
            self._extend()
        mask = free[at]
        idle = mask & self._idle[at]
        found = []
        for number, masks in enumerate(takers):
            while not mask:
                free[at] = 0
                at += 1
                if at == len(free):
                    self._extend()
                mask = free[at]
                idle = mask & self._idle[at]
            rest = mask & (mask - 1)
            block = mask ^ rest
            if at in masks:
                masks[at] |= block
            else:
                masks[at] = block
            mask = rest
            if idle and block & idle:
                found.append((number, granules := self._begin(at, block), granules))
                idle = mask & self._idle[at]
        free[at], self.low = mask, at
        return found

    # ---- give -----------------------------------------------------------------------------------

    @staticmethod
    def join(masks: Masks, more: Masks) -> None:
        """Add the blocks *more* to *masks*."""
        for at, mask in more.items():
            masks[at] = masks.get(at, 0) | mask

    def give(self, masks: Masks) -> None:
        """Give back blocks, whose granules are not committed, or stay committed."""
        free = self._free
        for at, mask in masks.items():
            free[at] |= mask
        self.low = min(self.low, *masks, self.low)

    def release(self, masks: Masks) -> tuple[int, int, _Found]:
        """Give back blocks; how many granules have none in use any more, in how many spans, those."""
        free, low = self._free, self.low
        for at, mask in masks.items():
            free[at] |= mask
            if at < low:  # noqa: PLR1730 - min() takes longer
                low = at
        self.low = low
        return self._update(masks)

    # ---- granules -------------------------------------------------------------------------------

    def _update(self, sections: Iterable[int]) -> tuple[int, int, _Found]:
        """Find out what is committed in *sections* now.

        Returns:
            How many granules have changed, in how many spans, and those.
        """
        pools = self._pools
        if len(pools) == 1:
            (pool,) = pools
            changed = pool.update(sections, self._free, self._all)
            if not changed:
                return 0, 0, []
            for at in changed:
                self._idle[at] = pool.idle(at)
            granules, calls = pool.count_runs(changed)
            return pool.count * granules, pool.count * calls, [(pool, changed)]
        granules = calls = 0
        found: _Found = []
        for pool in pools:
            changed = pool.update(sections, self._free, self._all)
            if changed:
                number, runs = pool.count_runs(changed)
                granules += pool.count * number
                calls += pool.count * runs
                found.append((pool, changed))
        for _, changed in found:
            for at in changed:
                idle = 0
                for pool in pools:
                    idle |= pool.idle(at)
                self._idle[at] = idle
        return granules, calls, found

    def _begin(self, at: int, block: int) -> int:
        """Note that *block*, the lowest free one, commits granules: it is their first; how many."""
        granules = idle = 0
        for pool in self._pools:
            top = block << (pool.filling - 1)
            if top & pool.tops and not top & pool.busy[at]:
                pool.busy[at] |= top
                granules += pool.count
            idle |= pool.idle(at)
        self._idle[at] = idle
        return granules

    def _extend(self) -> None:
        """Add a section, all of whose blocks are free."""
        self._free.append(self._all)
        self._idle.append(self._all)
        for pool in self._pools:
            pool.busy.append(0)


def _lowest(mask: int, count: int) -> int:
    """Return the lowest *count* bits of *mask*, which has more."""
    below = (mask & -mask).bit_length() - 1
    mask >>= below
    part = mask & ((1 << count) - 1)  # often all of these are set
    more = count - part.bit_count()
    if more > _NEAR:
        low, high = count, mask.bit_length()
        at = low + (high - low) * more // (mask.bit_count() - count + more)
        while True:
            part = mask & ((1 << at) - 1)
            more = count - part.bit_count()
            if more > _NEAR:
                low = at
            elif more < -_NEAR:
                high = at
            else:
                break
            at = (low + high) // 2
    if more > 0:
        rest = mask ^ part
        while more > 0:
            rest &= rest - 1
            more -= 1
        part = mask ^ rest
    while more < 0:
        part ^= 1 << (part.bit_length() - 1)
        more += 1
    return part << below
