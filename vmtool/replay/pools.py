"""Sequences with blocks from pools that all share: the lowest free block first."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from vmtool.kv.traces.request import PREFIX_TOKENS
from vmtool.replay.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vmtool.kv.block_classes import BlockClass, BlockPool
    from vmtool.replay.account import Account
    from vmtool.replay.memory import Piece
    from vmtool.replay.sequence import Sequence

    #: How many granules hold the first so many blocks of a size.
    Granules: TypeAlias = Callable[[int, int], int]


class _Uses:
    """How many blocks in use each granule of a pool holds a part of.

    Attributes:
        pool: The pool, of which there are several alike.
        base: Where the first of them begins in the reservation.
        size: Bytes from one to the next.
        new: Granules that came into use in the change that is being made.
    """

    def __init__(self, pool: BlockPool, granule: int, granules: Granules) -> None:
        self.pool = pool
        self.base = self.size = 0
        self.new: list[int] = []
        self._granule = granule
        self._granules = granules
        self._uses: list[int] = []
        self._places: list[int] = []  # of blocks that lie apart

    def use(self, blocks: Iterable[int]) -> None:
        uses, new = self._uses, self.new
        for first, last in self._where(blocks):
            while len(uses) <= last:
                uses.append(0)
            for at in range(first, last + 1):
                if not uses[at]:
                    new.append(at)
                uses[at] += 1

    def unuse(self, blocks: Iterable[int]) -> list[int]:
        """Return the granules that no block in use lies in any more."""
        uses = self._uses
        gone = []
        for first, last in self._where(blocks):
            for at in range(first, last + 1):
                uses[at] -= 1
                if not uses[at]:
                    gone.append(at)
        return gone

    def _where(self, blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and the last granule of each block."""
        if self.pool.apart:
            for block in blocks:
                at = self._place(block)
                yield at, at
            return
        size, granule = self.pool.block_bytes, self._granule
        for block in blocks:
            start = block * size
            yield start // granule, (start + size - 1) // granule

    def _place(self, block: int) -> int:
        places = self._places
        while len(places) <= block:
            places.append(self._granules(self.pool.block_bytes, len(places) + 1) - 1)
        return places[block]


class _Class:
    """The free blocks of one class, and the granules of its pools."""

    def __init__(self, kind: BlockClass, granule: int, granules: Granules) -> None:
        self.kind = kind
        self.block_bytes = kind.block_bytes
        self.pools = [_Uses(pool, granule, granules) for pool in kind.pools]
        self._free: list[int] = []
        self._next = 0

    def take(self, count: int) -> list[int]:
        """Take the lowest *count* blocks into use."""
        free = self._free
        blocks = [heappop(free) for _ in range(min(count, len(free)))]
        fresh = count - len(blocks)
        blocks.extend(range(self._next, self._next + fresh))
        self._next += fresh
        for pool in self.pools:
            pool.use(blocks)
        return blocks

    def give(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            heappush(self._free, block)

    @property
    def all_free(self) -> bool:
        return len(self._free) == self._next


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
    """

    def __init__(
        self,
        classes: tuple[BlockClass, ...],
        granule: int,
        granules: Granules,
        account: Account,
        *,
        share: bool,
    ) -> None:
        self._classes = [_Class(kind, granule, granules) for kind in classes]
        self._granule = granule
        self._account = account
        self._share = share
        self._prefixes = Prefixes()
        at = 0
        for each in self._classes:
            # Blocks in use lie in committed bytes of their own, so the budget bounds their number.
            most = account.budget // each.block_bytes + 1
            for pool in each.pools:
                pool.base = at
                nbytes = pool.pool.block_bytes
                end = granules(nbytes, most) if pool.pool.apart else -(-most * nbytes // granule)
                pool.size = end * granule
                at += pool.pool.count * pool.size
        #: Address space of all pools.
        self.reserve_bytes = max(at, granule)
        account.reserve(self.reserve_bytes)
        if account.memory is not None:
            account.memory.reserve(0, self.reserve_bytes)

    def admit(self, seq: Sequence, tokens: int) -> bool:
        """Take the blocks that *seq* needs at *tokens*; ``False`` if the budget refuses."""
        names = seq.request.prefix[: seq.request.prompt_tokens // PREFIX_TOKENS]
        path, known = self._prefixes.enter(names if self._share else ())
        for depth in range(known, len(path)):
            path[depth].blocks = [
                each.take(self._node_blocks(each, depth)) for each in self._classes
            ]
        seq.blocks = [
            each.take(each.kind.blocks(tokens) - each.kind.whole(len(path) * PREFIX_TOKENS))
            for each in self._classes
        ]
        if not self._commit_new(None):
            for node in path[known:]:
                self._undo(node.blocks)
            self._undo(seq.blocks)
            self._prefixes.leave(path)
            return False
        account = self._account
        account.owned += self._bytes(seq.blocks) + sum(self._bytes(n.blocks) for n in path[known:])
        seq.path, seq.backed, seq.covered = path, tokens, self._longest(tokens)
        seq.shared_bytes = seq.shared_live = self._shared(len(path))
        shared = self._shared(known)
        account.share(shared, shared)
        return True

    def grow(self, seq: Sequence, tokens: int, slack_ns: int) -> bool:
        """Take the blocks that *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        taken = []
        for each in self._classes:
            more = each.kind.blocks(tokens) - each.kind.blocks(seq.backed)
            taken.append(each.take(more) if more else [])
        if not self._commit_new(slack_ns):
            self._undo(taken)
            return False
        self._account.owned += self._bytes(taken)
        for own, blocks in zip(seq.blocks, taken, strict=True):
            own.extend(blocks)
        seq.backed = tokens
        seq.covered = self._longest(tokens)
        return True

    def drop(self, seq: Sequence) -> None:
        """Give back the blocks of *seq*, and those that it shares with nobody else."""
        account = self._account
        kept = self._prefixes.leave(seq.path)
        shared = self._shared(kept)
        account.unshare(shared, shared)
        gone = seq.blocks
        for node in seq.path[kept:]:
            gone = [own + more for own, more in zip(gone, node.blocks, strict=True)]
        account.owned -= self._bytes(gone)
        spans: list[Piece] = []
        freed = calls = 0
        for each, blocks in zip(self._classes, gone, strict=True):
            each.give(blocks)
            for pool in each.pools:
                runs = _joined(pool.unuse(blocks))
                freed += pool.pool.count * sum(end - first for first, end in runs)
                calls += pool.pool.count * len(runs)
                spans += self._spans(pool, runs)
        if freed:
            if account.memory is not None:
                account.memory.release(0, spans)
            account.release(freed * self._granule, calls)
        seq.path, seq.blocks, seq.backed = [], [], 0
        seq.shared_bytes = seq.shared_live = 0

    def enough(self, seq: Sequence, tokens: int, live: int) -> bool:
        """Tell whether *seq* has room for the *live* bytes of *tokens*."""
        del tokens
        return live <= self._bytes(seq.blocks) + seq.shared_bytes

    def close(self) -> None:
        """Give the pools' addresses back."""
        if self._account.memory is not None:
            self._account.memory.unreserve(0)
        self._account.unreserve(self.reserve_bytes)

    @property
    def empty(self) -> bool:
        """Whether no prefix and no block is in use."""
        return self._prefixes.empty and all(each.all_free for each in self._classes)

    def _node_blocks(self, each: _Class, depth: int) -> int:
        kind = each.kind
        return kind.whole((depth + 1) * PREFIX_TOKENS) - kind.whole(depth * PREFIX_TOKENS)

    def _shared(self, blocks: int) -> int:
        """Return the bytes of the blocks of a prefix."""
        return sum(e.block_bytes * e.kind.whole(blocks * PREFIX_TOKENS) for e in self._classes)

    def _bytes(self, blocks: list[list[int]]) -> int:
        return sum(
            each.block_bytes * len(own) for each, own in zip(self._classes, blocks, strict=True)
        )

    def _longest(self, tokens: int) -> int | None:
        lengths = (each.kind.longest(tokens) for each in self._classes)
        return min((length for length in lengths if length is not None), default=None)

    def _commit_new(self, slack_ns: int | None) -> bool:
        """Commit the granules that came into use; ``False``, and nothing done, if refused."""
        account = self._account
        pools = [pool for each in self._classes for pool in each.pools if pool.new]
        nbytes = sum(pool.pool.count * len(pool.new) for pool in pools) * self._granule
        if not nbytes:
            return True
        fits = account.fits(nbytes)
        if fits:
            runs = [_joined(pool.new) for pool in pools]
            calls = sum(p.pool.count * len(found) for p, found in zip(pools, runs, strict=True))
            account.commit(nbytes, calls)
            if account.memory is not None:
                spans: list[Piece] = []
                for pool, found in zip(pools, runs, strict=True):
                    spans += self._spans(pool, found)
                account.memory.commit(0, spans, slack_ns)
        for pool in pools:
            pool.new.clear()
        return fits

    def _undo(self, blocks: list[list[int]]) -> None:
        for each, taken in zip(self._classes, blocks, strict=True):
            each.give(taken)
            for pool in each.pools:
                pool.unuse(taken)

    def _spans(self, pool: _Uses, runs: list[tuple[int, int]]) -> Iterator[Piece]:
        if self._account.memory is None:
            return
        granule = self._granule
        for index in range(pool.pool.count):
            at = pool.base + index * pool.size
            for first, end in runs:
                yield at + first * granule, (end - first) * granule


def _joined(granules: list[int]) -> list[tuple[int, int]]:
    """Return *granules*, in any order, as runs."""
    if len(granules) == 1:
        return [(granules[0], granules[0] + 1)]
    runs: list[tuple[int, int]] = []
    for at in sorted(granules):
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs
