"""Sequences that take blocks from pools, and the granules that blocks in use keep committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from vmtool.replay.blocks_as_bits import BlockMasks
from vmtool.replay.blocks_as_bytes import BlockFlags
from vmtool.replay.prefix_cache import PrefixStore
from vmtool.replay.sequence import MOST_STEPS, Growth, regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.kv.packing.shapes_and_block_classes import BlockClass
    from vmtool.replay.account import Account, Piece
    from vmtool.replay.prefix_cache import Node
    from vmtool.replay.sequence import Regular, RunningSequence

    #: What was taken from a class, whose lowest free block was there before.
    _Taken: TypeAlias = tuple["Blocks", int, Any]


class Blocks(Protocol):
    """The blocks of one class and the granules of its pools: :class:`BlockMasks` or `BlockFlags`.

    What *taken* blocks look like, and the granules *found*, is its own matter.

    Attributes:
        kind: The class.
        block_bytes: Bytes of one block in every pool together.
        most: Granules that a block commits at most, in all pools together.
        low: Before it nothing is free.
    """

    kind: BlockClass
    block_bytes: int
    most: int
    low: int

    def place(self, at: int, blocks: int) -> int:
        """Place the pools, for *blocks* each, one after the other from *at* on; where the last ends."""

    def take(self, count: int) -> Any:
        """Take the lowest *count* blocks."""

    def split(self, taken: Any, counts: Sequence[int]) -> list[Any]:
        """Divide what was just *taken* into so many blocks each, the lowest first."""

    def use(self, low: int, taken: Any, /) -> tuple[int, int, Any]:
        """Return how many granules *taken*, all since *low*, commit, in how many spans, and those."""

    def undo(self, found: Any) -> None:
        """Undo the last :meth:`use`."""

    def add(self, taken: Any, count: int, most: int) -> tuple[int, int] | None:
        """Add the lowest *count* blocks to *taken*, unless they commit more than *most* granules.

        Returns:
            How many they commit, and in how many spans.
        """

    def take_each(self, takers: Iterable[Any]) -> list[tuple[int, int, int]]:
        """Add the lowest block to each of *takers* in turn.

        Returns:
            The number of each that commits memory, how many granules and in how many spans.
        """

    def join(self, taken: Any, more: Any) -> None:
        """Add the blocks *more* to *taken*."""

    def give(self, taken: Any) -> None:
        """Give back blocks, the granules of which are not committed."""

    def release(self, taken: Any) -> tuple[int, int, Any]:
        """Give back blocks; how many granules have none in use any more, in how many spans, those."""

    def spans(self, found: Any) -> Iterator[Piece]:
        """Yield where the granules *found* lie."""

    @property
    def all_free(self) -> bool:
        """Whether no block is in use."""


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

    Attributes:
        classes: The blocks of each class.
        granule: As given.
        reserve_bytes: Address space of all pools.
    """

    def __init__(
        self,
        classes: tuple[BlockClass, ...],
        granule: int,
        granules: Callable[[int, int], int],
        account: Account,
        *,
        prefix_tokens: int,
        share: bool,
        keep: bool = False,
    ) -> None:
        super().__init__(account, prefix_tokens=prefix_tokens, share=share, keep=keep)
        self.classes: list[Blocks] = [
            BlockMasks.of(kind, granule) or BlockFlags(kind, granule, granules) for kind in classes
        ]
        self.granule = granule
        self._steps: dict[tuple[int, int], Growth] = {}
        self._prefix_sizes: list[int] = []  # by number of blocks
        self._counts: list[list[int]] = []  # by depth
        self._lacks = 0  # bytes that the last commit that was refused lacked
        at = 0
        for each in self.classes:
            # Blocks in use lie in committed bytes of their own, so the budget bounds their number.
            at = each.place(at, account.budget // each.block_bytes + 1)
        self.reserve_bytes = max(at, granule)
        account.reserve(0, self.reserve_bytes, "block pools")

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Take the blocks that *seq* needs at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        all_bytes, _, backed, covered, _, _ = self.step(-1, tokens)
        if not self._keep:  # what is kept would be used now, even if not enough is free
            least = all_bytes - self._prefix_bytes(self._in_use(seq))[0]
            if account.owned + least > account.budget:
                return False
        hit = self._enter(seq)
        path, new = hit.path, hit.path[hit.resident :]
        lacks = all_bytes - self._prefix_bytes(hit.resident)[0]
        classes = self.classes
        shared = len(path) * self._prefix_tokens
        lists = [self._node_counts(node.depth) for node in new]
        lists.append([each.kind.blocks(tokens) - each.kind.full_blocks(shared) for each in classes])
        counts = list(zip(*lists, strict=True))  # for each class
        while True:
            if account.owned - account.kept + lacks > account.budget:  # even if packed perfectly
                self._cancel(hit)
                return False
            taken = self._take_lowest([(at, sum(each)) for at, each in enumerate(counts)])
            if self._commit(taken, None):
                break
            if not self._make_room():
                self._cancel(hit)
                return False
        own = [blocks for _, _, blocks in taken]
        if new:
            parts = [each.split(blocks, counts[at]) for at, (each, _, blocks) in enumerate(taken)]
            own = [blocks[-1] for blocks in parts]
            for number, node in enumerate(new):
                node.blocks = [blocks[number] for blocks in parts]
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
                    for (at, _), (each, _, blocks) in zip(lacks, taken, strict=True):
                        each.join(seq.blocks[at], blocks)
                    break
                if not self._make_room():
                    return False
            account.own(nbytes)
            seq.own_bytes += nbytes
        seq.backed = backed
        seq.covered = covered
        return True

    def take_now(
        self, seq: RunningSequence, lacks: Sequence[tuple[int, int]], room: int
    ) -> tuple[int, int] | None:
        """Take the blocks that *seq* *lacks*, without the account and without real memory.

        Returns:
            The bytes to commit, and in how many spans; ``None``, and nothing done, if they are more
            than *room*.
        """
        classes, granule, held = self.classes, self.granule, seq.blocks
        if not held:
            if len(classes) == len(lacks) == 1:
                (each,), ((_, count),) = classes, lacks
                low = each.low
                blocks = each.take(count)
                granules, calls, found = each.use(low, blocks)
                nbytes = granules * granule
                if nbytes > room:
                    each.undo(found)
                    each.give(blocks)
                    return None
                seq.blocks = [blocks]
                return nbytes, calls
            held = seq.blocks = [each.take(0) for each in classes]
        if len(lacks) == 1:
            at, count = lacks[0]
            added = classes[at].add(held[at], count, room // granule)
            if added is None or not added[0]:
                return added
            return added[0] * granule, added[1]
        taken = []
        nbytes = calls = 0
        for at, count in lacks:
            each = classes[at]
            low = each.low
            blocks = each.take(count)
            granules, spans, found = each.use(low, blocks)
            nbytes += granules * granule
            calls += spans
            taken.append((at, each, blocks, found))
        if nbytes > room:
            for _, each, blocks, found in taken:
                each.undo(found)
                each.give(blocks)
            return None
        for at, each, blocks, _ in taken:
            each.join(held[at], blocks)
        return nbytes, calls

    @property
    def regular(self) -> Regular | None:
        """After how many tokens all sequences take a block; ``None`` unless that holds from the first.

        Which blocks they take depends on the order in which they take them.
        """
        found = regular([each.kind for each in self.classes])
        return None if found is None or found.start else found

    def most(self, step: Growth) -> int:
        """Return the bytes that *step* commits at most."""
        granules = sum(count * self.classes[at].most for at, count in step.lacks)
        return granules * self.granule or 1

    def drop(self, seq: RunningSequence) -> None:
        """Give back the blocks of *seq*, and those that no other sequence shares."""
        gone, nbytes = seq.blocks, seq.own_bytes
        for node in self._leave(seq):
            nbytes += self._node_bytes(node)
            for each, blocks, more in zip(self.classes, gone, node.blocks, strict=True):
                each.join(blocks, more)
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
        return super().empty and all(each.all_free for each in self.classes)

    # ---- shared prefixes --------------------------------------------------------------------

    def _prefix_bytes(self, blocks: int) -> tuple[int, int]:
        sizes = self._prefix_sizes
        while len(sizes) <= blocks:
            tokens = len(sizes) * self._prefix_tokens
            sizes.append(sum(e.block_bytes * e.kind.full_blocks(tokens) for e in self.classes))
        return sizes[blocks], sizes[blocks]

    def _node_counts(self, depth: int) -> list[int]:
        """Return how many blocks of each class hold the block at *depth* of a prefix."""
        counts, tokens = self._counts, self._prefix_tokens
        while len(counts) <= depth:
            at = len(counts) * tokens
            full = [each.kind.full_blocks for each in self.classes]
            counts.append([blocks(at + tokens) - blocks(at) for blocks in full])
        return counts[depth]

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
        lacks = []
        nbytes, covered = 0, None
        for at, each in enumerate(self.classes):
            kind = each.kind
            more = kind.blocks(tokens) - (kind.blocks(backed) if backed >= 0 else 0)
            if more:
                lacks.append((at, more))
                nbytes += more * each.block_bytes
            longest = kind.longest(tokens)
            if longest is not None and (covered is None or longest < covered):
                covered = longest
        step = Growth(nbytes, 0, tokens if covered is None else covered, covered, (), tuple(lacks))
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    def _take_lowest(self, lacks: Iterable[tuple[int, int]]) -> list[_Taken]:
        taken = []
        for at, count in lacks:
            each = self.classes[at]
            low = each.low
            taken.append((each, low, each.take(count)))
        return taken

    # ---- granules ---------------------------------------------------------------------------

    def _use(self, taken: Sequence[_Taken], room: int) -> tuple[int, int, list[Any]] | None:
        """Use the blocks *taken*; give all back and return ``None`` if they commit more than *room*.

        Returns:
            The bytes to commit, in how many spans, and the granules of each class.
        """
        new = [each.use(low, blocks) for each, low, blocks in taken]
        nbytes = self.granule * sum([granules for granules, _, _ in new])
        found = [(each, runs) for (each, _, _), (_, _, runs) in zip(taken, new, strict=True)]
        if nbytes <= room:
            return nbytes, sum([calls for _, calls, _ in new]), found
        self._lacks = nbytes - room
        for each, runs in found:
            each.undo(runs)
        for each, _, blocks in taken:
            each.give(blocks)
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

    def give(self, given: Sequence[Any]) -> tuple[int, int, list[tuple[Blocks, Any]]]:
        """Give back blocks; return the bytes, spans and granules that have none in use any more."""
        if len(given) == 1:
            (each,) = self.classes
            freed, calls, gone = each.release(given[0])
            return freed * self.granule, calls, [(each, gone)]
        freed = calls = 0
        found = []
        for each, blocks in zip(self.classes, given, strict=True):
            granules, spans, gone = each.release(blocks)
            freed += granules
            calls += spans
            found.append((each, gone))
        return freed * self.granule, calls, found

    def _free(self, gone: Sequence[Any]) -> None:
        """Give back blocks, and release the granules that have none in use any more."""
        nbytes, calls, found = self.give(gone)
        if nbytes:
            self._account.release(0, nbytes, calls, self._spans(found))

    @staticmethod
    def _spans(found: Sequence[tuple[Blocks, Any]]) -> Iterator[Piece]:
        for each, granules in found:
            yield from each.spans(granules)
