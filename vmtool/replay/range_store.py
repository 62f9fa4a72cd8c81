"""Sequences with ranges of their own: one reservation each, committed granule by granule."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.kv.packing.shapes_and_block_classes import runs_without
from vmtool.replay.growing_bytes import Repeated
from vmtool.replay.prefix_cache import PrefixStore
from vmtool.replay.sequence import MOST_STEPS, Growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vmtool.kv.packing.shapes_and_block_classes import Run, Shape
    from vmtool.replay.account import Account, Piece, Place
    from vmtool.replay.prefix_cache import Node
    from vmtool.replay.sequence import RunningSequence

#: A longer one is not looked for: it would not repeat in most sequences.
_LONGEST_PERIOD: Final = 1 << 13


class _PrefixSize(NamedTuple):
    """What a prefix of some number of blocks commits: granules by shape, in all, of tokens."""

    granules: tuple[int, ...]
    nbytes: int
    live: int


class RangeStore(PrefixStore):
    """The memory of sequences under a policy that gives each its own ranges.

    The reservation of a sequence has its ranges one after the other, each as long as the longest
    sequence needs. The whole granules of a shared prefix have one reservation for each block of
    the prefix; they are committed once, with its first user, and released with its last.

    Args:
        shapes: The ranges of a sequence.
        granule: In bytes.
        max_tokens: The longest sequence.
        account: The byte totals.
        prefix_tokens: Tokens of a named block of a prefix.
        share: Whether prefixes are shared.
        keep: Whether a prefix without users is kept while there is room.
    """

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        granule: int,
        max_tokens: int,
        account: Account,
        *,
        prefix_tokens: int,
        share: bool,
        keep: bool = False,
    ) -> None:
        super().__init__(account, prefix_tokens=prefix_tokens, share=share, keep=keep)
        self._shapes = shapes
        self._granule = granule
        self._steps: dict[tuple[int, int], Growth] = {}
        self._arenas = 0
        self._bases: list[tuple[int, int]] = []  # of each shape: its first range, length of one
        at = 0
        for shape in shapes:
            size = max((end for _, end in shape.runs(max_tokens)), default=0) * granule
            self._bases.append((at, size))
            at += shape.count * size
        #: Address space of one sequence.
        self.reserve_bytes = max(at, granule)
        self._prefix_sizes = [_PrefixSize((0,) * len(shapes), 0, 0)]  # by number of blocks
        self._node_sizes: list[tuple[int, list[Piece]]] = []  # by depth

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Reserve and commit what *seq* needs at *tokens*; ``False`` if the budget refuses."""
        account = self._account
        hit = self._enter(seq)
        path = hit.path
        nbytes, calls, backed, covered, runs, _ = self._own(len(path), tokens)
        lacks = nbytes
        if path:
            lacks += self._prefix_bytes(len(path))[0] - self._prefix_bytes(hit.resident)[0]
        if not account.fits(lacks) and not self._make_room(lacks):
            self._cancel(hit)
            return False
        for depth in range(hit.resident, len(path)):
            self._open_node(path[depth])
        self._take(seq, hit)
        self._arenas += 1
        seq.arena, seq.own_bytes = self._arenas, nbytes
        seq.backed, seq.covered = backed, covered
        account.reserve(seq.arena, self.reserve_bytes, "sequences")
        if account.memory is not None:
            for node in path:
                if node.arena:
                    account.map_shared(seq.arena, node.arena, self._node_places(node.depth))
        account.commit(seq.arena, nbytes, calls, self._spans(runs), None)
        account.own(nbytes)
        return True

    def grow(self, seq: RunningSequence, tokens: int, slack_ns: int) -> bool:
        """Commit what *seq* lacks at *tokens*; ``False`` if the budget refuses."""
        nbytes, calls, backed, covered, runs, _ = self.step(seq.backed, tokens)
        if nbytes:
            account = self._account
            if account.committed + nbytes > account.budget and not self._make_room(nbytes):
                return False
            account.commit(seq.arena, nbytes, calls, self._spans(runs), slack_ns)
            account.own(nbytes)
            seq.own_bytes += nbytes
        seq.backed = backed
        seq.covered = covered
        return True

    def drop(self, seq: RunningSequence) -> None:
        """Release and unreserve everything of *seq*, and what no other sequence shares."""
        account = self._account
        _, calls, _, _, runs, _ = self._own(len(seq.path), seq.backed)
        account.release(seq.arena, seq.own_bytes, calls, self._spans(runs))
        account.own(-seq.own_bytes)
        if seq.path:
            account.unmap_shared(seq.arena)
        account.unreserve(seq.arena, self.reserve_bytes)
        for node in self._leave(seq):
            account.own(-self._free_node(node))
        seq.own_bytes = seq.backed = 0

    # ---- shared prefixes --------------------------------------------------------------------

    def _prefix_bytes(self, blocks: int) -> tuple[int, int]:
        size = self._prefix_size(blocks)
        return size.nbytes, size.live

    def _prefix_size(self, blocks: int) -> _PrefixSize:
        sizes = self._prefix_sizes
        while len(sizes) <= blocks:
            tokens = len(sizes) * self._prefix_tokens
            granules = tuple(
                sum(end - first for first, end in shape.full_runs(tokens)) for shape in self._shapes
            )
            counts = [shape.count for shape in self._shapes]
            nbytes = sum(n * count for n, count in zip(granules, counts, strict=True))
            live = sum(shape.count * shape.full_bytes(tokens) for shape in self._shapes)
            sizes.append(_PrefixSize(granules, nbytes * self._granule, live))
        return sizes[blocks]

    def _node_size(self, depth: int) -> tuple[int, list[Piece]]:
        """Return the bytes of the block at *depth* of a prefix, and its spans in a reservation."""
        while len(self._node_sizes) <= depth:
            blocks = len(self._node_sizes)
            below = self._prefix_size(blocks).granules
            above = self._prefix_size(blocks + 1).granules
            spans: list[Piece] = []
            at = 0
            for shape, low, high in zip(self._shapes, below, above, strict=True):
                size = (high - low) * self._granule
                for _ in range(shape.count if size else 0):
                    spans.append((at, size))
                    at += size
            self._node_sizes.append((at, spans))
        return self._node_sizes[depth]

    def _node_places(self, depth: int) -> list[Place]:
        """Return where the spans of the block at *depth* belong in a sequence's reservation."""
        places: list[Place] = []
        at, tokens = 0, depth * self._prefix_tokens
        for shape, (base, size) in zip(self._shapes, self._bases, strict=True):
            above = shape.full_runs(tokens + self._prefix_tokens)
            runs = runs_without(above, shape.full_runs(tokens))
            for index in range(shape.count if runs else 0):
                for first, end in runs:
                    nbytes = (end - first) * self._granule
                    places.append((base + index * size + first * self._granule, at, nbytes))
                    at += nbytes
        return places

    def _open_node(self, node: Node) -> None:
        nbytes, spans = self._node_size(node.depth)
        if not nbytes:
            return
        account = self._account
        self._arenas += 1
        node.arena = self._arenas
        account.reserve(node.arena, nbytes, "prefixes")
        account.commit(node.arena, nbytes, len(spans), spans, None)
        account.own(nbytes)

    def _free_node(self, node: Node) -> int:
        nbytes, spans = self._node_size(node.depth)
        if nbytes:
            self._account.release(node.arena, nbytes, len(spans), spans)
            self._account.unreserve(node.arena, nbytes)
        return nbytes

    def _make_room(self, nbytes: int) -> bool:
        """Evict kept blocks until *nbytes* fit; ``False``, and none evicted, if they never will."""
        account = self._account
        if account.committed - account.kept + nbytes > account.budget:
            return False
        while not account.fits(nbytes):
            self._evict()
        return True

    # ---- growth -----------------------------------------------------------------------------

    def _own(self, blocks: int, tokens: int) -> Growth:
        """Return what a sequence of *tokens* commits besides its prefix of *blocks*."""
        if not blocks:
            return self._steps.get((-1, tokens)) or self._step(-1, tokens)
        shared = blocks * self._prefix_tokens
        runs = tuple(
            runs_without(shape.runs(tokens), shape.full_runs(shared)) for shape in self._shapes
        )
        return self._counted(runs, tokens)

    def step(self, backed: int, tokens: int) -> Growth:
        """Return what growing from *backed* to *tokens* takes."""
        return self._steps.get((backed, tokens)) or self._step(backed, tokens)

    def calls(self, tokens: int) -> int:
        """Return in how many spans a sequence of *tokens* has its memory."""
        return sum([shape.count * len(shape.runs(tokens)) for shape in self._shapes])

    @property
    def growth(self) -> list[Repeated]:
        """How sequences grow, from the length on from which all of it repeats, until nothing does."""
        caps = {0, *[shape.entries.cap or 0 for shape in self._shapes]}
        found: list[Repeated] = []
        end: int | None = None
        for first in sorted(caps, reverse=True):
            growing = [
                shape
                for shape in self._shapes
                if shape.entries.cap is None or shape.entries.cap > first
                if shape.longest(first) is not None
            ]
            periods = [shape.period for shape in growing]
            if growing or found:
                if None in periods:
                    break
                period = lcm(*[each for each in periods if each])
                if period > _LONGEST_PERIOD:
                    break
                found.append(Repeated(first, end, self._repeated(growing, first, period)))
            end = first
        found.reverse()
        return found

    def _repeated(
        self, growing: list[Shape], first: int, period: int
    ) -> tuple[tuple[int, int], ...]:
        """Return the bytes and spans of each step by its length modulo *period*."""
        steps = [[0, 0] for _ in range(period)]
        for shape in growing:
            cap = shape.entries.cap
            end = first + period if cap is None else min(first + period, cap)
            at = shape.longest(first)
            while at is not None and at < end:
                runs = runs_without(shape.runs(at + 1), shape.runs(at))
                granules = sum(last - start for start, last in runs)
                steps[at % period][0] += shape.count * granules * self._granule
                steps[at % period][1] += shape.count * len(runs)
                at = shape.longest(at + 1)
        return tuple([(nbytes, calls) for nbytes, calls in steps])

    def _step(self, backed: int, tokens: int) -> Growth:
        """Work out and remember growth from *backed*, or from nothing if that is -1."""
        runs = tuple(
            shape.runs(tokens)
            if backed < 0
            else runs_without(shape.runs(tokens), shape.runs(backed))
            for shape in self._shapes
        )
        step = self._counted(runs, tokens)
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
        self._steps[backed, tokens] = step
        return step

    def _counted(self, runs: tuple[tuple[Run, ...], ...], tokens: int) -> Growth:
        granules = calls = 0
        covered: int | None = None
        for shape, found in zip(self._shapes, runs, strict=True):
            for first, end in found:
                granules += shape.count * (end - first)
                calls += shape.count
            longest = shape.longest(tokens)
            if longest is not None and (covered is None or longest < covered):
                covered = longest
        # From the last length that the same granules cover, sequences go on alike.
        backed = tokens if covered is None else covered
        return Growth(granules * self._granule, calls, backed, covered, runs)

    def _spans(self, runs: Iterable[tuple[Run, ...]]) -> Iterator[Piece]:
        """Yield where the granules *runs* of each shape are in a sequence's reservation."""
        for shape, (base, size), found in zip(self._shapes, self._bases, runs, strict=True):
            for index in range(shape.count if found else 0):
                at = base + index * size
                for first, end in found:
                    yield at + first * self._granule, (end - first) * self._granule
