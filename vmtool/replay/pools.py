"""The blocks of one class: which are free, and which granules of its pools hold one in use."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from vmtool.kv.traces.request import PREFIX_TOKENS
from vmtool.replay.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.kv.packing.growth import BlockClass, BlockPool, Run

    Granules: TypeAlias = Callable[[int, int], int]
    from vmtool.replay.account import Account, Piece
    from vmtool.replay.sequence import Sequence as Growing


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
        if self.pool.drops_straddling or (start + size - 1) // granule != at:
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


#: Steps that are remembered; sequences of a million tokens take some 60,000.
_MOST_STEPS: Final = 1 << 16


class _Step(NamedTuple):
    """How many blocks of which classes a sequence lacks to grow, and where they leave it."""

    lacks: tuple[tuple[int, int], ...]
    nbytes: int
    backed: int
    covered: int | None


class PoolStore:
    """The memory of sequences under a policy of block pools.

    One reservation has every pool, each as long as the budget can fill. A granule is committed
    while a block in use lies in it. Blocks are shared whole, by number.

    Args:
        classes: What sequences take blocks from.
        granule: In bytes.
        granules: How many granules hold the first so many blocks of a size.
        account: The ledger.
        share: Whether prefixes are shared.
        keep: Whether they are kept, while there is room, when no sequence has them any more.
    """

    def __init__(
        self,
        classes: tuple[BlockClass, ...],
        granule: int,
        granules: Granules,
        account: Account,
        *,
        share: bool,
        keep: bool = False,
    ) -> None:
        self._classes = [ClassUse(kind, granule, granules) for kind in classes]
        self._granule = granule
        self._account = account
        self._share = share
        self._keep = keep
        self._prefixes = Prefixes(keep=keep)
        self._steps: dict[tuple[int, int], _Step] = {}
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
        account.reserve(self.reserve_bytes)
        if account.memory is not None:
            account.memory.reserve(0, self.reserve_bytes)

    def admit(self, seq: Growing, tokens: int) -> bool:
        """Take the blocks that *seq* needs at *tokens*; ``False`` if the budget refuses."""
        names = seq.request.prefix[: seq.request.prompt_tokens // PREFIX_TOKENS]
        path, known, there = self._prefixes.enter(names if self._share else ())
        reused = self._shared(there) - self._shared(known)
        self._account.change("kept", -reused)
        lacks = self._bytes_at(tokens) - self._shared(there)
        while True:
            if not self._may_fit(lacks):
                self._account.change("kept", reused)
                self._prefixes.leave(path, there)
                return False
            for node in path[there:]:
                node.blocks = [
                    each.take(self._node_blocks(each, node.depth)) for each in self._classes
                ]
            own = [
                each.take(
                    each.kind.blocks(tokens) - each.kind.full_blocks(len(path) * PREFIX_TOKENS)
                )
                for each in self._classes
            ]
            taken = own
            for node in path[there:]:
                taken = [a + b for a, b in zip(taken, node.blocks, strict=True)]
            if self._commit(list(zip(self._classes, taken, strict=True)), None):
                break
            if not self._make_room():
                lacks = self._account.budget + 1
        self._account.kept_reused += reused
        seq.hit_tokens = there * PREFIX_TOKENS
        self._account.own(self._bytes(taken))
        seq.path, seq.blocks, seq.own_bytes = path, own, self._bytes(own)
        seq.covered = self._longest(tokens)
        seq.backed = tokens if seq.covered is None else seq.covered
        seq.shared_bytes = seq.shared_live = self._shared(len(path))
        shared = self._shared(known)
        self._account.share(shared, shared)
        return True

    def grow(self, seq: Growing, tokens: int, slack_ns: int) -> bool:
        """Take the blocks that *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        step = self._steps.get((seq.backed, tokens)) or self._step(seq.backed, tokens)
        if step.nbytes:
            while True:
                if not self._may_fit(step.nbytes):
                    return False
                taken = [
                    (self._classes[at], self._classes[at].take(more)) for at, more in step.lacks
                ]
                if self._commit(taken, slack_ns):
                    break
                if not self._make_room():
                    return False
            self._account.own(step.nbytes)
            seq.own_bytes += step.nbytes
            for (at, _), (_, runs) in zip(step.lacks, taken, strict=True):
                seq.blocks[at] += runs
        seq.backed = step.backed
        seq.covered = step.covered
        return True

    def drop(self, seq: Growing) -> None:
        """Give back the blocks of *seq*, and those that it shares with nobody else."""
        account = self._account
        used = self._prefixes.leave(seq.path, len(seq.path))
        shared = self._shared(used)
        account.unshare(shared, shared)
        gone = seq.blocks
        if self._keep:
            account.keep(self._shared(len(seq.path)) - shared)
        else:
            for node in seq.path[used:]:
                gone = [own + more for own, more in zip(gone, node.blocks, strict=True)]
        account.own(-self._bytes(gone))
        self._free(gone)
        seq.path, seq.blocks, seq.backed = [], [], 0
        seq.own_bytes = seq.shared_bytes = seq.shared_live = 0

    def _make_room(self) -> bool:
        """Evict as many bytes of kept prefixes as a commit lacked; ``False`` if there are none.

        That may not be enough yet, as blocks in granules that others use give nothing back.
        """
        before = self._account.kept
        while before - self._account.kept < self._lacks and self._evict():
            pass
        return self._account.kept < before

    def _evict(self) -> bool:
        """Free the blocks of the prefix that is unused for longest; ``False`` if there is none."""
        node = self._prefixes.evict()
        if node is not None:
            self._account.evict(self._bytes(node.blocks))
            self._free(node.blocks)
        return node is not None

    def _free(self, gone: list[list[Run]]) -> None:
        """Give back blocks, and release the granules that have none in use any more."""
        account = self._account
        spans: list[Piece] = []
        freed = calls = 0
        for each, blocks in zip(self._classes, gone, strict=True):
            runs = joined(blocks)
            each.give(runs)
            for pool in each.pools:
                empty = runs_of(pool.unuse(runs))
                freed += pool.pool.count * sum(end - first for first, end in empty)
                calls += pool.pool.count * len(empty)
                spans.extend(self._spans(pool, empty))
        if freed:
            if account.memory is not None:
                account.memory.release(0, spans)
            account.release(freed * self._granule, calls)

    def close(self) -> None:
        """Give back what is kept of prefixes, and the pools' addresses."""
        while self._evict():
            pass
        if self._account.memory is not None:
            self._account.memory.unreserve(0)
        self._account.unreserve(self.reserve_bytes)

    @property
    def empty(self) -> bool:
        """Whether no prefix and no block is in use."""
        return self._prefixes.empty and all(each.all_free for each in self._classes)

    def _node_blocks(self, each: ClassUse, depth: int) -> int:
        kind = each.kind
        return kind.full_blocks((depth + 1) * PREFIX_TOKENS) - kind.full_blocks(
            depth * PREFIX_TOKENS
        )

    def _shared(self, blocks: int) -> int:
        """Return the bytes of the blocks of a prefix."""
        if not blocks:
            return 0
        return sum(
            e.block_bytes * e.kind.full_blocks(blocks * PREFIX_TOKENS) for e in self._classes
        )

    def _bytes(self, blocks: list[list[Run]]) -> int:
        return sum(
            each.block_bytes * sum(end - first for first, end in runs)
            for each, runs in zip(self._classes, blocks, strict=True)
        )

    def _bytes_at(self, tokens: int) -> int:
        return sum(each.block_bytes * each.kind.blocks(tokens) for each in self._classes)

    def _longest(self, tokens: int) -> int | None:
        lengths = (each.kind.longest(tokens) for each in self._classes)
        return min((length for length in lengths if length is not None), default=None)

    def _step(self, backed: int, tokens: int) -> _Step:
        """Work out, and remember, what growing from *backed* to *tokens* takes."""
        more = [each.kind.blocks(tokens) - each.kind.blocks(backed) for each in self._classes]
        lacks = tuple((at, count) for at, count in enumerate(more) if count)
        nbytes = sum(self._classes[at].block_bytes * count for at, count in lacks)
        covered = self._longest(tokens)
        step = _Step(lacks, nbytes, tokens if covered is None else covered, covered)
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    def _commit(self, taken: Sequence[tuple[ClassUse, list[Run]]], slack_ns: int | None) -> bool:
        """Commit the granules of the blocks *taken*; give all back and say ``False`` if refused."""
        account = self._account
        new: list[tuple[PoolUse, Sequence[int]]] = []
        granules = 0
        for each, runs in taken:
            one = len(runs) == 1 and runs[0][1] - runs[0][0] == 1
            for pool in each.pools if runs else ():
                found = pool.use_one(runs[0][0]) if one else pool.use(runs)
                if found:
                    new.append((pool, found))
                    granules += pool.pool.count * len(found)
        if not granules:
            return True
        if not account.fits(granules * self._granule):
            self._lacks = account.committed + granules * self._granule - account.budget
            for each, runs in taken:
                each.give(runs)
                for pool in each.pools:
                    pool.unuse(runs)
            return False
        spans: list[Piece] = []
        calls = 0
        for pool, found in new:
            runs = runs_of(found)
            calls += pool.pool.count * len(runs)
            spans.extend(self._spans(pool, runs))
        account.commit(granules * self._granule, calls)
        if account.memory is not None:
            account.memory.commit(0, spans, slack_ns)
        return True

    def _may_fit(self, nbytes: int) -> bool:
        """Tell whether blocks of *nbytes* could fit if none was between those in use."""
        account = self._account
        return account.owned - account.kept + nbytes <= account.budget

    def _spans(self, pool: PoolUse, runs: Sequence[Run]) -> Iterator[Piece]:
        if self._account.memory is None:
            return
        granule = self._granule
        for index in range(pool.pool.count):
            at = pool.base + index * pool.size
            for first, end in runs:
                yield at + first * granule, (end - first) * granule
