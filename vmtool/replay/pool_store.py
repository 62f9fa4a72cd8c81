"""Sequences that take blocks from pools, and the granules that blocks in use keep committed."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

from vmtool.replay.stores import MOST_STEPS, Growth, PrefixStore, regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.kv.packing.block_pools import BlockClass, BlockPool
    from vmtool.kv.packing.entry_counts import Run
    from vmtool.replay.account import Account, Piece
    from vmtool.replay.prefixes import Node, Stretch
    from vmtool.replay.sequence import RunningSequence
    from vmtool.replay.stores import Regular

    Granules: TypeAlias = Callable[[int, int], int]
    #: How many granules have no block in use any more, in how many runs, and those.
    _Gone: TypeAlias = tuple[int, int, Iterable[Run]]
    #: What was taken from a class, whose lowest free block was that before.
    _Taken: TypeAlias = tuple["ClassUse", int, list[Stretch]]

#: The number of blocks that there is room for at first; it grows.
_FIRST_BLOCKS: Final = 64
#: Fewer blocks at once are listed one by one.
_FEW_BLOCKS: Final = 4
#: Where that many blocks or fewer make a granule, all of a stretch are looked at, not only free ones.
_FEW_A_GRANULE: Final = 8
_ZEROS: Final = re.compile(b"\0+")
_ONES: Final = re.compile(b"\1+")
_MARKS: Final = [bytes((mark,)) for mark in range(256)]
_IS_USED: Final = bytes([0]) + b"\1" * 255


class PoolUse:
    """Which granules of a pool are committed: those that hold a part of a block in use.

    As blocks are taken lowest first, all blocks of a stretch are in use once its free ones are
    taken, and what is found out about many of them takes a few searches in bytes.

    Attributes:
        count: How many pools there are, all alike.
        block_bytes: Bytes of a block in one.
        base: Where the first of them begins in the reservation.
        size: Bytes from one to the next.
        filling: Blocks of a granule, where those fill it; else 0.
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
        self.filling = 0 if granule % pool.block_bytes else granule // pool.block_bytes
        # The granule of each block, where none crosses an edge, but they don't fill it.
        apart = pool.drops_straddling and not self.filling
        self._places: list[int] | None = [] if apart else None
        fewest = -(-granule // pool.block_bytes)
        self._all_free = bytes(
            max(fewest - 2, 1) if apart else fewest
        )  # each granule holds as many
        self.most = 1 if apart or self.filling else (pool.block_bytes + granule - 2) // granule + 1

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

    def unuse(self, used: bytearray, first: int, end: int) -> _Gone:
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
        if 0 < self.filling <= _FEW_A_GRANULE:
            return self._unuse_all(used[first:end].translate(_IS_USED), first // self.filling)
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
        return sum([end - first for first, end in gone]), len(gone), gone

    def _unuse_all(self, used: bytearray, first: int) -> _Gone:
        """Do so from granule *first*, whose blocks and all until the last are in *used*, as 0 or 1."""
        filling, committed = self.filling, self.committed
        count = len(used) // filling
        full = 0  # a byte for each granule
        for at in range(filling):
            full |= int.from_bytes(used[at::filling], "little")
        old = int.from_bytes(committed[first : first + count], "little")
        gone = old & ~full
        committed[first : first + count] = full.to_bytes(count, "little")
        runs = _ONES.finditer(gone.to_bytes(count, "little"))
        spans = ((first + low, first + high) for low, high in map(re.Match.span, runs))
        return gone.bit_count(), (gone & ~(gone << 8)).bit_count(), spans

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


class ClassUse:
    """The free blocks of one class, and its pools.

    Attributes:
        kind: The class.
        block_bytes: Bytes of one block in every pool together.
        pools: Its pools.
        low: No block below it is free.
    """

    def __init__(self, kind: BlockClass, granule: int, granules: Granules) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self.pools = [PoolUse(pool, granule, granules) for pool in kind.pools]
        # A byte for each block that was ever in use, and more: 0 while it is free. To search bytes is
        # fast: what is taken at once is free blocks here and there, and has a mark of its own so that
        # taking and giving it back is one replacement. There are few marks; 1 is of what is listed.
        self._used = bytearray(_FIRST_BLOCKS)
        self._marks = list(range(2, 256))
        self.low = 0

    def take(self, count: int, *, listed: bool = False) -> list[Stretch]:
        """Take the lowest *count* blocks.

        Args:
            count: How many.
            listed: Do not use up a mark, as they are kept for long.
        """
        used, low = self._used, self.low
        if not count:
            return []
        if listed or count < _FEW_BLOCKS or not self._marks:
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

    def take_each(self, takers: Iterable[list[Stretch]]) -> Iterator[tuple[int, int, int]]:
        """Take the lowest block for each of *takers* in turn.

        Yields:
            For each taker that commits memory: its number, the granules and the spans.
        """
        used, low = self._used, self.low
        first = self.pools[0]
        filling = 0 if self.pools[1:] else first.filling
        committed = first.committed
        for number, blocks in enumerate(takers):
            block = used.find(0, low)
            if block < 0:
                block = len(used)
                used.extend(bytes(block))
            used[block] = 1
            low = block + 1
            blocks.append((block, low, 1))
            if filling and block < filling * len(committed) and committed[block // filling]:
                continue
            granules = calls = 0
            for pool in self.pools:
                for at, end in pool.use(block, low):
                    granules += pool.count * (end - at)
                    calls += pool.count
            if granules:
                yield number, granules, calls
        self.low = low

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
            lowest = min(lowest, first)
        self.low = lowest

    def free(self, blocks: Sequence[Stretch]) -> list[tuple[PoolUse, _Gone]]:
        """Give back blocks; return the granules of each pool that have none in use any more."""
        if not blocks:
            return []
        self.give(blocks)
        first, end = min(blocks)[0], max([end for _, end, _ in blocks])
        return [(pool, pool.unuse(self._used, first, end)) for pool in self.pools]

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""
        return self._used.count(0) == len(self._used)


class PoolStore(PrefixStore):
    """The memory of sequences under a policy of block pools.

    One reservation has every pool, each as long as the budget can fill. A granule is committed
    while a block in use lies in it. Blocks are shared whole, by number.

    Args:
        classes: What sequences take blocks from.
        granule: In bytes.
        granules: How many granules hold the first *n* blocks of a size.
        account: The byte totals.
        prefix_tokens: Tokens of a named block of a prefix.
        share: Whether prefixes are shared.
        keep: Whether a prefix without users is kept while there is room.
    """

    def __init__(
        self,
        classes: tuple[BlockClass, ...],
        granule: int,
        granules: Granules,
        account: Account,
        *,
        prefix_tokens: int,
        share: bool,
        keep: bool = False,
    ) -> None:
        super().__init__(account, prefix_tokens=prefix_tokens, share=share, keep=keep)
        self._classes = [ClassUse(kind, granule, granules) for kind in classes]
        self._granule = granule
        self._steps: dict[tuple[int, int], Growth] = {}
        self._prefix_sizes: list[int] = []  # by number of blocks
        self._lacks = 0  # bytes that the last commit that was refused lacked
        at = 0
        for each in self._classes:
            # Blocks in use lie in committed bytes of their own, so the budget bounds their number.
            most = account.budget // each.block_bytes + 1
            for pool in each.pools:
                pool.base = at
                pool.size = pool.granules(most) * granule
                at += pool.count * pool.size
        #: Address space of all pools.
        self.reserve_bytes = max(at, granule)
        account.reserve(0, self.reserve_bytes, "block pools")

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Take the blocks that *seq* needs at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        hit = self._enter(seq)
        path, new = hit.path, hit.path[hit.resident :]
        all_bytes, _, backed, covered, _, _ = self.step(-1, tokens)
        lacks = all_bytes - self._prefix_bytes(hit.resident)[0]
        while True:
            if account.owned - account.kept + lacks > account.budget:  # even if packed perfectly
                self._cancel(hit)
                return False
            lows = [each.low for each in self._classes]
            for node in new:
                node.blocks = [
                    each.take(self._node_blocks(each, node.depth), listed=True)
                    for each in self._classes
                ]
            shared = len(path) * self._prefix_tokens
            own = [
                each.take(each.kind.blocks(tokens) - each.kind.full_blocks(shared))
                for each in self._classes
            ]
            taken = own
            if new:
                taken = [list(runs) for runs in own]
                for node in new:
                    for runs, more in zip(taken, node.blocks, strict=True):
                        runs.extend(more)
            if self._commit(list(zip(self._classes, lows, taken, strict=True)), None):
                break
            if not self._make_room():
                self._cancel(hit)
                return False
        self._take(seq, hit)
        account.own(lacks)
        seq.blocks, seq.own_bytes = own, all_bytes - self._prefix_bytes(len(path))[0]
        seq.backed, seq.covered = backed, covered
        return True

    def grow(self, seq: RunningSequence, tokens: int, slack_ns: int) -> bool:
        """Take the blocks that *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        nbytes, _, backed, covered, _, lacks = self.step(seq.backed, tokens)
        if nbytes:
            account = self._account
            while True:
                if account.owned - account.kept + nbytes > account.budget:
                    return False
                taken = self._take_lowest(lacks)
                if self._commit(taken, slack_ns):
                    for (at, _), (_, _, runs) in zip(lacks, taken, strict=True):
                        seq.blocks[at] += runs
                    break
                if not self._make_room():
                    return False
            account.own(nbytes)
            seq.own_bytes += nbytes
        seq.backed = backed
        seq.covered = covered
        return True

    def take_now(
        self, seq: RunningSequence, lacks: Iterable[tuple[int, int]], room: int
    ) -> tuple[int, int] | None:
        """Take the blocks that *seq* *lacks*, without the account and without real memory.

        Returns:
            The bytes to commit, and in how many spans; ``None``, and nothing done, if they are more
            than *room*.
        """
        taken = self._take_lowest(lacks)
        found = self._use(taken, room)
        if found is None:
            return None
        if not seq.blocks:
            seq.blocks = [[] for _ in self._classes]
        for (at, _), (_, _, runs) in zip(lacks, taken, strict=True):
            seq.blocks[at] += runs
        return found[0], found[1]

    def take_each(
        self, sequences: Iterable[RunningSequence], at: int
    ) -> list[tuple[int, int, int]]:
        """Take one block of class *at* for each of *sequences* in turn.

        Returns:
            For each sequence that commits memory: its number, the bytes and the spans.
        """
        takers = [seq.blocks[at] for seq in sequences]
        granule = self._granule
        return [
            (n, more * granule, calls) for n, more, calls in self._classes[at].take_each(takers)
        ]

    @property
    def regular(self) -> Regular | None:
        """After how many tokens all sequences take a block; ``None`` unless that holds from the first.

        Which blocks they take depends on the order in which they take them.
        """
        found = regular([each.kind for each in self._classes])
        return None if found is None or found.start else found

    def most(self, step: Growth) -> int:
        """Return the bytes that *step* commits at most."""
        granules = [
            count * sum(pool.count * pool.most for pool in self._classes[at].pools)
            for at, count in step.lacks
        ]
        return sum(granules) * self._granule or 1

    def drop(self, seq: RunningSequence) -> None:
        """Give back the blocks of *seq*, and those that no other sequence shares."""
        gone, nbytes = seq.blocks, seq.own_bytes
        for node in self._leave(seq):
            nbytes += self._node_bytes(node)
            for runs, more in zip(gone, node.blocks, strict=True):
                runs.extend(more)
        self._account.own(-nbytes)
        self._free(gone)
        seq.blocks, seq.own_bytes, seq.backed = [], 0, 0

    def close(self) -> None:
        """Evict every kept prefix, and unreserve the pools."""
        super().close()
        self._account.unreserve(0, self.reserve_bytes)

    @property
    def empty(self) -> bool:
        """Whether no prefix and no block is in use."""
        return super().empty and all(each.all_free for each in self._classes)

    # ---- shared prefixes --------------------------------------------------------------------

    def _prefix_bytes(self, blocks: int) -> tuple[int, int]:
        sizes = self._prefix_sizes
        while len(sizes) <= blocks:
            tokens = len(sizes) * self._prefix_tokens
            sizes.append(sum(e.block_bytes * e.kind.full_blocks(tokens) for e in self._classes))
        return sizes[blocks], sizes[blocks]

    def _node_blocks(self, each: ClassUse, depth: int) -> int:
        full_blocks, tokens = each.kind.full_blocks, self._prefix_tokens
        return full_blocks((depth + 1) * tokens) - full_blocks(depth * tokens)

    def _free_node(self, node: Node) -> int:
        self._free(node.blocks)
        return self._node_bytes(node)

    def _node_bytes(self, node: Node) -> int:
        return self._prefix_bytes(node.depth + 1)[0] - self._prefix_bytes(node.depth)[0]

    def _make_room(self) -> bool:
        """Evict as many bytes of kept prefixes as a commit lacked; ``False`` if there are none.

        That may not be enough yet, as blocks in granules that others use give nothing back.
        """
        before = self._account.kept
        while before - self._account.kept < self._lacks and self._evict():
            pass
        return self._account.kept < before

    # ---- growth -----------------------------------------------------------------------------

    def step(self, backed: int, tokens: int) -> Growth:
        """Return what growing from *backed*, or from nothing if that is -1, to *tokens* takes."""
        found = self._steps.get((backed, tokens))
        if found is not None:
            return found
        kinds = [each.kind for each in self._classes]
        more = [kind.blocks(tokens) - (kind.blocks(backed) if backed >= 0 else 0) for kind in kinds]
        lacks = tuple((at, count) for at, count in enumerate(more) if count)
        nbytes = sum(self._classes[at].block_bytes * count for at, count in lacks)
        lengths = (kind.longest(tokens) for kind in kinds)
        covered = min((length for length in lengths if length is not None), default=None)
        step = Growth(nbytes, 0, tokens if covered is None else covered, covered, lacks=lacks)
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    def _take_lowest(self, lacks: Iterable[tuple[int, int]]) -> list[_Taken]:
        taken = []
        for at, count in lacks:
            each = self._classes[at]
            low = each.low
            taken.append((each, low, each.take(count)))
        return taken

    # ---- granules ---------------------------------------------------------------------------

    def _use(
        self, taken: Sequence[_Taken], room: int
    ) -> tuple[int, int, list[tuple[PoolUse, list[Run]]]] | None:
        """Use the blocks *taken*; give all back and return ``None`` if they commit more than *room*.

        Returns:
            The bytes to commit, in how many spans, and the granules.
        """
        new: list[tuple[PoolUse, list[Run]]] = []
        granules = calls = 0
        for each, low, _ in taken:
            if each.low > low:
                for pool in each.pools:
                    found = pool.use(low, each.low)
                    if found:
                        new.append((pool, found))
                        granules += pool.count * sum([end - first for first, end in found])
                        calls += pool.count * len(found)
        nbytes = granules * self._granule
        if nbytes <= room:
            return nbytes, calls, new
        self._lacks = nbytes - room
        for pool, found in new:
            pool.undo(found)
        for each, _, runs in taken:
            each.give(runs)
        return None

    def _commit(self, taken: Sequence[_Taken], slack_ns: int | None) -> bool:
        """Commit the granules of the blocks *taken*; if refused, give all back and return ``False``."""
        account = self._account
        found = self._use(taken, account.budget - account.committed)
        if found is None:
            return False
        nbytes, calls, new = found
        if nbytes:
            account.commit(0, nbytes, calls, self._spans(new), slack_ns)
        return True

    def give(
        self, given: list[list[Stretch]]
    ) -> tuple[int, int, list[tuple[PoolUse, Iterable[Run]]]]:
        """Give back blocks; return the bytes, spans and granules that have none in use any more."""
        found: list[tuple[PoolUse, Iterable[Run]]] = []
        freed = calls = 0
        for each, blocks in zip(self._classes, given, strict=True):
            for pool, (granules, spans, gone) in each.free(blocks):
                freed += pool.count * granules
                calls += pool.count * spans
                found.append((pool, gone))
        return freed * self._granule, calls, found

    def _free(self, gone: list[list[Stretch]]) -> None:
        """Give back blocks, and release the granules that have none in use any more."""
        nbytes, calls, found = self.give(gone)
        if nbytes:
            self._account.release(0, nbytes, calls, self._spans(found))

    def _spans(self, found: Sequence[tuple[PoolUse, Iterable[Run]]]) -> Iterator[Piece]:
        granule = self._granule
        for pool, gone in found:
            runs = list(gone)
            for index in range(pool.count):
                at = pool.base + index * pool.size
                for first, end in runs:
                    yield at + first * granule, (end - first) * granule
