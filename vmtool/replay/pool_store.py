"""Sequences that take blocks from pools, and the granules that blocks in use keep committed."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from vmtool.replay.stores import MOST_STEPS, PrefixStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.kv.packing.growth import BlockClass, BlockPool, Run
    from vmtool.replay.account import Account, Piece
    from vmtool.replay.prefixes import Node
    from vmtool.replay.sequence import RunningSequence

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
        self._block_bytes = pool.block_bytes
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
        uses = self._uses
        if self.pool.drops_straddling:
            places = self._places
            if block >= len(places):
                self._place(block + 1)
            at = places[block]
        else:
            start = block * self._block_bytes
            at = start // self._granule
            if (start + self._block_bytes - 1) // self._granule != at:
                return self.use(((block, block + 1),))
        if at >= len(uses):
            uses.extend([0] * (at + 1 - len(uses)))
        uses[at] += 1
        return (at,) if uses[at] == 1 else ()

    def use_within(self, block: int) -> bool:
        """Count one block as in use if the one granule that it lies in has another block in use."""
        if self.pool.drops_straddling:
            if block >= len(self._places):
                return False
            at = self._places[block]
        else:
            start = block * self._block_bytes
            at = start // self._granule
            if (start + self._block_bytes - 1) // self._granule != at:
                return False
        uses = self._uses
        if at >= len(uses) or not uses[at]:
            return False
        uses[at] += 1
        return True

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
        if self.pool.drops_straddling:
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

    def _place(self, blocks: int) -> None:
        """Find the granules of the first *blocks*, and of those that lie with the last."""
        places, granules, nbytes = self._places, self._granules, self._block_bytes
        most = self._granule // nbytes  # whole ones in a granule
        while len(places) < blocks:
            first, count = len(places), most
            at = granules(nbytes, first + 1) - 1
            while granules(nbytes, first + count) - 1 > at:
                count -= 1
            places += [at] * count

    def _granules_apart(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        places = self._places
        for first, end in runs:
            if end > len(places):
                self._place(end)
            if end - first == 1:  # most, as sequences take turns
                yield places[first], 1
                continue
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
        free: Free blocks, a heap: the lowest first; neighbours are not joined.
        end: Beyond it, no block was ever in use.
    """

    def __init__(self, kind: BlockClass, granule: int, granules: Granules) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self.pools = [PoolUse(pool, granule, granules) for pool in kind.pools]
        self.free: list[Run] = []
        self.end = 0
        self._in_use = 0

    def take_next(self) -> None:
        """Take the lowest free block."""
        self._in_use += 1
        free = self.free
        if not free:
            self.end += 1
            return
        first, end = free[0]
        if end - first == 1:
            heappop(free)
        else:
            heapreplace(free, (first + 1, end))

    def take(self, count: int) -> list[Run]:
        """Take the lowest *count* blocks."""
        free = self.free
        self._in_use += count
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
            runs.append((self.end, self.end + count))
            self.end += count
        return runs

    def give(self, runs: Sequence[Run]) -> None:
        """Give blocks back."""
        for run in runs:
            heappush(self.free, run)
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


class _BlockStep(NamedTuple):  # a tuple unpacks fast, and every step does
    """How many blocks of which classes a sequence lacks to grow, and its state after that."""

    lacks: tuple[tuple[int, int], ...]
    nbytes: int
    backed: int
    covered: int | None


class PoolStore(PrefixStore):
    """The memory of sequences under a policy of block pools.

    One reservation has every pool, each as long as the budget can fill. A granule is committed
    while a block in use lies in it. Blocks are shared whole, by number.

    Args:
        classes: What sequences take blocks from.
        granule: In bytes.
        granules: How many granules hold the first so many blocks of a size.
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
        self._steps: dict[tuple[int, int], _BlockStep] = {}
        self._prefix_sizes: list[int] = []  # by number of blocks
        self._lacks = 0  # bytes that the last commit that was refused lacked
        at = 0
        for each in self._classes:
            # Blocks in use lie in committed bytes of their own, so the budget bounds their number.
            most = account.budget // each.block_bytes + 1
            for pool in each.pools:
                pool.base = at
                nbytes = pool.pool.block_bytes
                end = (
                    granules(nbytes, most)
                    if pool.pool.drops_straddling
                    else -(-most * nbytes // granule)
                )
                pool.size = end * granule
                at += pool.pool.count * pool.size
        #: Address space of all pools.
        self.reserve_bytes = max(at, granule)
        account.reserve(0, self.reserve_bytes, "block pools")

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Take the blocks that *seq* needs at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        hit = self._enter(seq)
        path, new = hit.path, hit.path[hit.resident :]
        lacks = self._bytes_at(tokens) - self._prefix_bytes(hit.resident)[0]
        while True:
            if account.owned - account.kept + lacks > account.budget:  # even if packed perfectly
                self._cancel(hit)
                return False
            for node in new:
                node.blocks = [
                    each.take(self._node_blocks(each, node.depth)) for each in self._classes
                ]
            shared = len(path) * self._prefix_tokens
            own = [
                each.take(each.kind.blocks(tokens) - each.kind.full_blocks(shared))
                for each in self._classes
            ]
            taken = own
            for node in new:
                taken = [a + b for a, b in zip(taken, node.blocks, strict=True)]
            if self._commit(list(zip(self._classes, taken, strict=True)), None):
                break
            if not self._make_room():
                self._cancel(hit)
                return False
        self._take(seq, hit)
        account.own(self._bytes(taken))
        seq.blocks, seq.own_bytes = own, self._bytes(own)
        seq.covered = self._longest(tokens)
        seq.backed = tokens if seq.covered is None else seq.covered
        return True

    def grow(self, seq: RunningSequence, tokens: int, slack_ns: int) -> bool:
        """Take the blocks that *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        step = self._steps.get((seq.backed, tokens))
        lacks, nbytes, backed, covered = step or self._step(seq.backed, tokens)
        if nbytes:
            account = self._account
            while True:
                if account.owned - account.kept + nbytes > account.budget:
                    return False
                taken = [(self._classes[at], self._classes[at].take(more)) for at, more in lacks]
                if self._commit(taken, slack_ns):
                    for (at, _), (_, runs) in zip(lacks, taken, strict=True):
                        seq.blocks[at] += runs
                    break
                if not self._make_room():
                    return False
            account.own(nbytes)
            seq.own_bytes += nbytes
        seq.backed = backed
        seq.covered = covered
        return True

    def grow_within(self, seq: RunningSequence, tokens: int) -> bool:
        """Take the one block that *seq* lacks at *tokens*, if its granules are committed already.

        So nearly all steps are. ``False``, and nothing done, where more is needed.
        """
        lacks, nbytes, backed, covered = self._steps.get((seq.backed, tokens)) or self._step(
            seq.backed, tokens
        )
        account = self._account
        if len(lacks) != 1 or lacks[0][1] != 1:
            return False
        if account.owned - account.kept + nbytes > account.budget:
            return False
        at = lacks[0][0]
        each = self._classes[at]
        free = each.free
        block = free[0][0] if free else each.end
        for pool in each.pools:
            if not pool.use_within(block):
                for used in each.pools:
                    if used is pool:
                        return False
                    used.unuse(((block, block + 1),))
        each.take_next()
        seq.blocks[at].append((block, block + 1))
        account.owned += nbytes
        account.owned_moment += nbytes * account.now
        seq.own_bytes += nbytes
        seq.backed = backed
        seq.covered = covered
        return True

    def drop(self, seq: RunningSequence) -> None:
        """Give back the blocks of *seq*, and those that no other sequence shares."""
        gone = seq.blocks
        for node in self._leave(seq):
            gone = [own + more for own, more in zip(gone, node.blocks, strict=True)]
        self._account.own(-self._bytes(gone))
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
        return self._bytes(node.blocks)

    def _make_room(self) -> bool:
        """Evict as many bytes of kept prefixes as a commit lacked; ``False`` if there are none.

        That may not be enough yet, as blocks in granules that others use give nothing back.
        """
        before = self._account.kept
        while before - self._account.kept < self._lacks and self._evict():
            pass
        return self._account.kept < before

    # ---- growth -----------------------------------------------------------------------------

    def _bytes(self, blocks: list[list[Run]]) -> int:
        return sum(
            each.block_bytes * sum([end - first for first, end in runs])
            for each, runs in zip(self._classes, blocks, strict=True)
        )

    def _bytes_at(self, tokens: int) -> int:
        return sum(each.block_bytes * each.kind.blocks(tokens) for each in self._classes)

    def _longest(self, tokens: int) -> int | None:
        lengths = (each.kind.longest(tokens) for each in self._classes)
        return min((length for length in lengths if length is not None), default=None)

    def _step(self, backed: int, tokens: int) -> _BlockStep:
        """Work out, and remember, what growing from *backed* to *tokens* takes."""
        more = [each.kind.blocks(tokens) - each.kind.blocks(backed) for each in self._classes]
        lacks = tuple((at, count) for at, count in enumerate(more) if count)
        nbytes = sum(self._classes[at].block_bytes * count for at, count in lacks)
        covered = self._longest(tokens)
        step = _BlockStep(lacks, nbytes, tokens if covered is None else covered, covered)
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    # ---- granules ---------------------------------------------------------------------------

    def _commit(self, taken: Sequence[tuple[ClassUse, list[Run]]], slack_ns: int | None) -> bool:
        """Commit the granules of the blocks *taken*; give all back and say ``False`` if refused."""
        new: list[tuple[PoolUse, Sequence[int]]] = []
        granules = 0
        for each, runs in taken:
            if not runs:
                continue
            first, end = runs[0]
            one = end - first == 1 and len(runs) == 1
            for pool in each.pools:
                found = pool.use_one(first) if one else pool.use(runs)
                if found:
                    new.append((pool, found))
                    granules += pool.pool.count * len(found)
        if not granules:
            return True
        account = self._account
        nbytes = granules * self._granule
        if not account.fits(nbytes):
            self._lacks = account.committed + nbytes - account.budget
            for each, runs in taken:
                each.give(runs)
                for pool in each.pools:
                    pool.unuse(runs)
            return False
        runs_found = [(pool, runs_of(found)) for pool, found in new]
        calls = sum([pool.pool.count * len(runs) for pool, runs in runs_found])
        account.commit(0, nbytes, calls, self._spans(runs_found), slack_ns)
        return True

    def _free(self, gone: list[list[Run]]) -> None:
        """Give back blocks, and release the granules that have none in use any more."""
        found: list[tuple[PoolUse, list[Run]]] = []
        freed = calls = 0
        for each, blocks in zip(self._classes, gone, strict=True):
            runs = joined(blocks)
            each.give(runs)
            for pool in each.pools:
                empty = runs_of(pool.unuse(runs))
                freed += pool.pool.count * sum([end - first for first, end in empty])
                calls += pool.pool.count * len(empty)
                found.append((pool, empty))
        if freed:
            self._account.release(0, freed * self._granule, calls, self._spans(found))

    def _spans(self, found: Sequence[tuple[PoolUse, Sequence[Run]]]) -> Iterator[Piece]:
        granule = self._granule
        for pool, runs in found:
            for index in range(pool.pool.count):
                at = pool.base + index * pool.size
                for first, end in runs:
                    yield at + first * granule, (end - first) * granule
