"""Sequences with ranges of their own: one reservation each, committed granule by granule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.kv.traces.request import PREFIX_TOKENS
from vmtool.replay.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vmtool.kv.packing.growth import Run, Shape
    from vmtool.replay.account import Account, Piece
    from vmtool.replay.prefixes import Node
    from vmtool.replay.sequence import Sequence


#: Steps that are remembered; sequences of a million tokens take some 60,000.
_MOST_STEPS: Final = 1 << 16


class _Step(NamedTuple):
    """What a sequence commits to grow from one length to another, and where that leaves it."""

    nbytes: int
    calls: int
    backed: int
    covered: int | None
    runs: tuple[tuple[Run, ...], ...]


class RangeStore:
    """The memory of sequences under a policy that gives each its own ranges.

    A sequence's reservation has its ranges one after the other, each as long as the longest
    sequence needs. The whole granules of a shared prefix have a reservation for each block of
    the prefix; they are committed once, with the first sequence that has it, and released with
    the last.

    Args:
        shapes: The ranges of a sequence.
        granule: In bytes.
        max_tokens: The longest sequence.
        account: The ledger.
        share: Whether prefixes are shared.
        keep: Whether they are kept, while there is room, when no sequence has them any more.
    """

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        granule: int,
        max_tokens: int,
        account: Account,
        *,
        share: bool,
        keep: bool = False,
    ) -> None:
        self._shapes = shapes
        self._granule = granule
        self._account = account
        self._share = share
        self._keep = keep
        self._prefixes = Prefixes(keep=keep)
        self._steps: dict[tuple[int, int], _Step] = {}
        self._arenas = 0
        self._bases: list[
            tuple[int, int]
        ] = []  # of each shape: the first range, and how long one is
        at = 0
        for shape in shapes:
            size = max((end for _, end in shape.runs(max_tokens)), default=0) * granule
            self._bases.append((at, size))
            at += shape.count * size
        #: Address space of one sequence.
        self.reserve_bytes = max(at, granule)
        # Of a prefix of so many blocks: bytes committed, bytes of tokens, and spans.
        self._whole: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, (0,) * len(shapes))]

    def admit(self, seq: Sequence, tokens: int) -> bool:
        """Reserve and commit what *seq* needs at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        path, known, there = self._prefixes.enter(self._names(seq))
        shared, live, _ = self._whole_of(len(path))
        own = calls = 0
        runs = [
            _minus(shape.runs(tokens), shape.full_runs(len(path) * PREFIX_TOKENS))
            for shape in self._shapes
        ]
        for shape, found in zip(self._shapes, runs, strict=True):
            own += shape.count * sum(end - first for first, end in found)
            calls += shape.count * len(found)
        own *= self._granule
        reused = self._whole_of(there)[0] - self._whole_of(known)[0]
        account.change("kept", -reused)
        lacks = own + shared - self._whole_of(there)[0]
        if not account.fits(lacks) and not self._make_room(lacks):
            account.change("kept", reused)
            self._prefixes.leave(path, there)
            return False
        account.kept_reused += reused
        seq.hit_tokens = there * PREFIX_TOKENS
        for depth in range(there, len(path)):
            self._open_node(path, depth)
        seq.path, seq.shared_bytes, seq.shared_live = path, shared, live
        account.share(self._whole_of(known)[0], self._whole_of(known)[1])
        self._arenas += 1
        seq.arena, seq.own_bytes = self._arenas, own
        seq.covered = self._longest(tokens)
        seq.backed = tokens if seq.covered is None else seq.covered
        account.reserve(self.reserve_bytes)
        account.commit(own, calls)
        account.own(own)
        if account.memory is not None:
            account.memory.reserve(seq.arena, self.reserve_bytes)
            account.memory.commit(seq.arena, list(self._spans(runs)), None)
        return True

    def grow(self, seq: Sequence, tokens: int, slack_ns: int) -> bool:
        """Commit what *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        step = self._steps.get((seq.backed, tokens)) or self._step(seq.backed, tokens)
        if step.nbytes:
            if not account.fits(step.nbytes) and not self._make_room(step.nbytes):
                return False
            account.commit(step.nbytes, step.calls)
            account.own(step.nbytes)
            seq.own_bytes += step.nbytes
            if account.memory is not None:
                account.memory.commit(seq.arena, list(self._spans(step.runs)), slack_ns)
        seq.backed = step.backed
        seq.covered = step.covered
        return True

    def drop(self, seq: Sequence) -> None:
        """Release and unreserve everything of *seq*, and what it shares with nobody else."""
        account = self._account
        whole = len(seq.path) * PREFIX_TOKENS
        runs = [_minus(shape.runs(seq.backed), shape.full_runs(whole)) for shape in self._shapes]
        calls = sum(
            shape.count * len(found) for shape, found in zip(self._shapes, runs, strict=True)
        )
        if account.memory is not None:
            account.memory.release(seq.arena, list(self._spans(runs)))
            account.memory.unreserve(seq.arena)
        account.release(seq.own_bytes, calls)
        account.own(-seq.own_bytes)
        account.unreserve(self.reserve_bytes)
        used = self._prefixes.leave(seq.path, len(seq.path))
        account.unshare(*self._whole_of(used)[:2])
        if self._keep:
            account.keep(self._whole_of(len(seq.path))[0] - self._whole_of(used)[0])
        else:
            for node in reversed(seq.path[used:]):
                account.own(-self._close_node(node))
        seq.path, seq.own_bytes, seq.backed = [], 0, 0
        seq.shared_bytes = seq.shared_live = 0

    def close(self) -> None:
        """Give back what is kept of prefixes."""
        while self._evict():
            pass

    @property
    def empty(self) -> bool:
        """Whether no prefix is in use or kept."""
        return self._prefixes.empty

    # ---- shared prefixes --------------------------------------------------------------------

    def _names(self, seq: Sequence) -> tuple[int, ...]:
        if not self._share:
            return ()
        # The last block may be a part of one; what it holds besides is not known.
        return seq.request.prefix[: seq.request.prompt_tokens // PREFIX_TOKENS]

    def _whole_of(self, blocks: int) -> tuple[int, int, tuple[int, ...]]:
        """Return bytes committed, bytes of tokens and granules by shape of a prefix of *blocks*."""
        while len(self._whole) <= blocks:
            tokens = len(self._whole) * PREFIX_TOKENS
            granules = tuple(
                sum(end - first for first, end in shape.full_runs(tokens)) for shape in self._shapes
            )
            counts = [shape.count for shape in self._shapes]
            nbytes = sum(n * count for n, count in zip(granules, counts, strict=True))
            live = sum(shape.count * shape.full_bytes(tokens) for shape in self._shapes)
            self._whole.append((nbytes * self._granule, live, granules))
        return self._whole[blocks]

    def _node(self, depth: int) -> tuple[int, list[Piece]]:
        """Return the bytes of the block at *depth* of a prefix, and its spans in a reservation."""
        below, above = self._whole_of(depth)[2], self._whole_of(depth + 1)[2]
        spans: list[Piece] = []
        at = 0
        for shape, low, high in zip(self._shapes, below, above, strict=True):
            size = (high - low) * self._granule
            for _ in range(shape.count if size else 0):
                spans.append((at, size))
                at += size
        return at, spans

    def _open_node(self, path: list[Node], depth: int) -> None:
        nbytes, spans = self._node(depth)
        if not nbytes:
            return
        account = self._account
        self._arenas += 1
        path[depth].arena = self._arenas
        account.reserve(nbytes)
        account.commit(nbytes, len(spans))
        account.own(nbytes)
        if account.memory is not None:
            account.memory.reserve(path[depth].arena, nbytes)
            account.memory.commit(path[depth].arena, spans, None)

    def _close_node(self, node: Node) -> int:
        """Release and unreserve what a block of a prefix has; its bytes."""
        nbytes, spans = self._node(node.depth)
        if not nbytes:
            return 0
        account = self._account
        if account.memory is not None:
            account.memory.release(node.arena, spans)
            account.memory.unreserve(node.arena)
        account.release(nbytes, len(spans))
        account.unreserve(nbytes)
        return nbytes

    def _make_room(self, nbytes: int) -> bool:
        """Evict kept blocks until *nbytes* fit; ``False``, and none evicted, if they never will."""
        account = self._account
        if account.committed - account.kept + nbytes > account.budget:
            return False
        while not account.fits(nbytes):
            self._evict()
        return True

    def _evict(self) -> bool:
        node = self._prefixes.evict()
        if node is not None:
            self._account.evict(self._close_node(node))
        return node is not None

    # ---- growth -----------------------------------------------------------------------------

    def _step(self, backed: int, tokens: int) -> _Step:
        """Work out, and remember, what growing from *backed* to *tokens* takes."""
        runs = tuple(_minus(shape.runs(tokens), shape.runs(backed)) for shape in self._shapes)
        granules = calls = 0
        for shape, found in zip(self._shapes, runs, strict=True):
            granules += shape.count * sum(end - first for first, end in found)
            calls += shape.count * len(found)
        covered = self._longest(tokens)
        # From the last length that the same granules cover, sequences go on alike.
        step = _Step(
            granules * self._granule, calls, tokens if covered is None else covered, covered, runs
        )
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    # ---- places -----------------------------------------------------------------------------

    def _longest(self, tokens: int) -> int | None:
        found: int | None = None
        for shape in self._shapes:
            length = shape.longest(tokens)
            if length is not None and (found is None or length < found):
                found = length
        return found

    def _spans(self, runs: Iterable[tuple[Run, ...]]) -> Iterator[Piece]:
        """Yield the places in a sequence's reservation of the granules *runs* of each shape."""
        for shape, (base, size), found in zip(self._shapes, self._bases, runs, strict=True):
            for index in range(shape.count if found else 0):
                at = base + index * size
                for first, end in found:
                    yield at + first * self._granule, (end - first) * self._granule


def _minus(runs: tuple[Run, ...], taken: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the granules of *runs* that are not in *taken*, both ascending."""
    if not taken:
        return runs
    if len(runs) == len(taken) == 1 and runs[0][0] == taken[0][0]:  # filled from the front
        low, high = taken[0][1], runs[0][1]
        return ((low, high),) if low < high else ()
    found: list[Run] = []
    taken_at = iter((*taken, (1 << 64, 1 << 64)))
    start, end = next(taken_at)
    for first, last in runs:
        at = first
        while end <= at:
            start, end = next(taken_at)
        while start < last:
            if at < start:
                found.append((at, start))
            at = end
            if end >= last:
                break
            start, end = next(taken_at)
        if at < last:
            found.append((at, last))
    return tuple(found)
