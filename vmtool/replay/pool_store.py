"""Sequences that take blocks from pools, and the granules that blocks in use keep committed."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from vmtool.replay.stores import MOST_STEPS, PrefixStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.kv.packing.block_pools import BlockClass, BlockPool
    from vmtool.kv.packing.growth import Run
    from vmtool.replay.byte_totals import Account, Piece
    from vmtool.replay.prefixes import Node
    from vmtool.replay.sequence import RunningSequence

    Granules: TypeAlias = Callable[[int, int], int]

#: For so many blocks there is room at first; it grows.
_FIRST_BLOCKS: Final = 64


class PoolUse:
    """How many blocks in use each granule of a pool holds a part of.

    Attributes:
        count: How many pools there are, all alike.
        block_bytes: Bytes of a block in one.
        base: Where the first of them begins in the reservation.
        size: Bytes from one to the next.
    """

    def __init__(self, pool: BlockPool, granule: int, granules: Granules) -> None:
        self.count = pool.count
        self.block_bytes = pool.block_bytes
        self.base = self.size = 0
        self._granule = granule
        self._granules = granules
        self._uses: list[int] = []
        # The granule of each block, where none crosses an edge.
        self._places: list[int] | None = [] if pool.drops_straddling else None

    def granules(self, blocks: int) -> int:
        """Return how many granules the first *blocks* take."""
        if self._places is None:
            return -(-blocks * self.block_bytes // self._granule)
        return self._granules(self.block_bytes, blocks)

    def use(self, runs: Iterable[Run]) -> list[int]:
        """Count the blocks in *runs* as in use; the granules that had none before."""
        uses = self._uses
        new = []
        for at, count in self._granules_of(runs):
            if at >= len(uses):
                uses.extend([0] * (at + 1 - len(uses)))
            if not uses[at]:
                new.append(at)
            uses[at] += count
        return new

    def use_one(self, block: int) -> int:
        """Count one block as in use; how many granules had none before.

        These are next to each other: only the first and the last can hold a part of another block.
        """
        places, uses = self._places, self._uses
        if places is None:
            start = block * self.block_bytes
            at, last = start // self._granule, (start + self.block_bytes - 1) // self._granule
        else:
            if block >= len(places):
                self._place(places, block + 1)
            at = last = places[block]
        if last >= len(uses):
            uses.extend([0] * (last + 1 - len(uses)))
        if at == last:
            uses[at] += 1
            return 1 if uses[at] == 1 else 0
        new = 0
        for each in range(at, last + 1):
            new += not uses[each]
            uses[each] += 1
        return new

    def unuse(self, runs: Iterable[Run]) -> list[int]:
        """Count the blocks in *runs* as free; the granules that have none in use any more."""
        uses = self._uses
        gone = []
        for at, count in self._granules_of(runs):
            uses[at] -= count
            if not uses[at]:
                gone.append(at)
        return gone

    def _granules_of(self, runs: Iterable[Run]) -> list[tuple[int, int]]:
        """Return granules, and how many blocks of a run lie in each, wholly or in part."""
        places = self._places
        if places is not None:
            return self._granules_apart(places, runs)
        size, granule = self.block_bytes, self._granule
        found = []
        for first, end in runs:
            at, last = first * size // granule, (end * size - 1) // granule
            if at == last:
                found.append((at, end - first))
                continue
            for each in range(at, last + 1):
                low = max(first, each * granule // size)
                high = min(end, -(-(each + 1) * granule // size))
                found.append((each, high - low))
        return found

    def _place(self, places: list[int], blocks: int) -> None:
        """Find the granules of the first *blocks*, and of those that lie with the last."""
        granules, nbytes = self._granules, self.block_bytes
        most = self._granule // nbytes  # whole ones in a granule
        while len(places) < blocks:
            first, count = len(places), most
            at = granules(nbytes, first + 1) - 1
            while granules(nbytes, first + count) - 1 > at:
                count -= 1
            places += [at] * count

    def _granules_apart(self, places: list[int], runs: Iterable[Run]) -> list[tuple[int, int]]:
        found = []
        for first, end in runs:
            if end > len(places):
                self._place(places, end)
            if end - first == 1:  # most, as sequences take turns
                found.append((places[first], 1))
                continue
            at = first
            while at < end:
                beyond = min(bisect_right(places, places[at], at), end)
                found.append((places[at], beyond - at))
                at = beyond
        return found


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
        # A byte for each block that was ever in use, and more: 1 while it is. To search bytes is so
        # fast that a heap of free runs, which then were nearly all of one block, took three times
        # as long.
        self._used = bytearray(_FIRST_BLOCKS)
        self._low = 0  # no block below it is free

    def take_one(self) -> int:
        """Take the lowest free block."""
        used = self._used
        block = used.find(0, self._low)
        if block < 0:
            block = len(used)
            used.extend(bytes(block))
        used[block] = 1
        self._low = block + 1
        return block

    def take(self, count: int) -> list[Run]:
        """Take the lowest *count* blocks."""
        used, end = self._used, self._low
        runs: list[Run] = []
        while count:
            first = used.find(0, end)
            if first < 0:
                first = len(used)
                used.extend(bytes(max(first, count)))
            if count == 1 or (first + 1 < len(used) and used[first + 1]):
                end = first + 1
                used[first] = 1
            else:
                end = used.find(1, first, first + count)
                if end < 0:
                    end = min(first + count, len(used))
                used[first:end] = b"\1" * (end - first)
            runs.append((first, end))
            count -= end - first
        self._low = end
        return runs

    def give(self, runs: Iterable[Run]) -> None:
        """Give blocks back."""
        used, low = self._used, self._low
        for first, end in runs:
            if end - first == 1:
                used[first] = 0
            else:
                used[first:end] = bytes(end - first)
            low = min(low, first)
        self._low = low

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""
        return 1 not in self._used


def runs_of(granules: Sequence[int]) -> list[Run]:
    """Return *granules*, in any order, as runs, neighbours as one."""
    found: list[Run] = []
    for at in sorted(granules):
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return found


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
        self._next: dict[int, _BlockStep] = {}  # by the length that was covered
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
            if new:
                taken = [list(runs) for runs in own]
                for node in new:
                    for runs, more in zip(taken, node.blocks, strict=True):
                        runs.extend(more)
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

    def grow_by_one(self, seq: RunningSequence) -> bool:
        """Take the one block of each class that *seq* lacks for a token more than it has room for.

        As :meth:`grow` does, but without real memory, evicting nothing, and fast. ``False``, and
        nothing done, where that is not enough.
        """
        longest = seq.covered
        assert longest is not None  # noqa: S101 - else it needs no step
        lacks, nbytes, backed, covered = self._next.get(longest) or self._step_after(longest)
        account, blocks = self._account, seq.blocks
        if account.owned - account.kept + nbytes > account.budget:
            return False
        granules = calls = 0
        for at, _ in lacks:
            each = self._classes[at]
            block = each.take_one()
            blocks[at].append((block, block + 1))
            for pool in each.pools:
                new = pool.use_one(block)
                if new:
                    granules += new * pool.count
                    calls += pool.count
        if granules:
            nbytes_more = granules * self._granule
            if not account.fits(nbytes_more):
                for at, _ in lacks:
                    run = (blocks[at].pop(),)
                    self._classes[at].give(run)
                    for pool in self._classes[at].pools:
                        pool.unuse(run)
                return False
            account.commit(0, nbytes_more, calls, (), None)
        account.owned += nbytes
        account.owned_moment += nbytes * account.now
        seq.own_bytes += nbytes
        seq.backed, seq.covered = backed, covered
        return True

    def drop(self, seq: RunningSequence) -> None:
        """Give back the blocks of *seq*, and those that no other sequence shares."""
        gone, nbytes = seq.blocks, seq.own_bytes
        for node in self._leave(seq):
            nbytes += self._bytes(node.blocks)
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

    def _step_after(self, covered: int) -> _BlockStep:
        """Work out, and remember, what the token after *covered* takes."""
        if len(self._next) >= MOST_STEPS:
            self._next.clear()
        step = self._next[covered] = self._step(covered, covered + 1)
        return step

    # ---- granules ---------------------------------------------------------------------------

    def _commit(self, taken: Sequence[tuple[ClassUse, list[Run]]], slack_ns: int | None) -> bool:
        """Commit the granules of the blocks *taken*; give all back and say ``False`` if refused."""
        new: list[tuple[PoolUse, list[int]]] = []
        granules = 0
        for each, runs in taken:
            for pool in each.pools:
                found = pool.use(runs)
                if found:
                    new.append((pool, found))
                    granules += pool.count * len(found)
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
        calls = sum([pool.count * len(runs) for pool, runs in runs_found])
        account.commit(0, nbytes, calls, self._spans(runs_found), slack_ns)
        return True

    def _free(self, gone: list[list[Run]]) -> None:
        """Give back blocks, and release the granules that have none in use any more."""
        found: list[tuple[PoolUse, list[Run]]] = []
        freed = calls = 0
        for each, runs in zip(self._classes, gone, strict=True):
            each.give(runs)
            for pool in each.pools:
                empty = runs_of(pool.unuse(runs))
                freed += pool.count * sum([end - first for first, end in empty])
                calls += pool.count * len(empty)
                found.append((pool, empty))
        if freed:
            self._account.release(0, freed * self._granule, calls, self._spans(found))

    def _spans(self, found: Sequence[tuple[PoolUse, Sequence[Run]]]) -> Iterator[Piece]:
        granule = self._granule
        for pool, runs in found:
            for index in range(pool.count):
                at = pool.base + index * pool.size
                for first, end in runs:
                    yield at + first * granule, (end - first) * granule
