"""The sequence of one request: its memory, how that grows, and the interface of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.kv.packing.shapes_and_block_classes import BlockClass, Run
    from vmtool.kv.traces.request_formats import Request
#: Steps of growth that a store remembers; a sequence of a million tokens takes some 60,000.
MOST_STEPS: Final = 1 << 16


class RunningSequence:
    """A request and its progress.

    Time is divided into segments: in each, the sequence has ``length`` tokens until ``decode_ns`` and
    then one more at each step. A step's token is there from the beginning of the step.

    Attributes:
        request: The request.
        order: Counts admissions; -1 while it is not admitted. Higher is younger.
        length: Tokens at the beginning of the segment.
        total: Tokens at the end of the request.
        start_ns: When the segment began.
        decode_ns: When its first step begins.
        origin_ns: When it would have begun if each token had taken a step.
        admitted_ns: When it was admitted.
        stalled: Whether it waits for memory, so that no step follows.
        admitted_once: Whether it was admitted before.
        answered: Whether its first token is complete.
        refused_once: Whether it was refused memory at its admission.
        backed: The length that memory was last requested for.
        covered: The longest length that its memory is enough for; ``None`` for any.
        target: The length at its next event.
        own_bytes: What it has committed for itself, in ranges of its own.
        arena: The number of its reservation, if it has one.
        path: Its shared prefix, as nodes of :class:`Prefixes`.
        hit_tokens: Tokens of it that were there at its admission.
        shared_bytes: What that prefix has committed.
        shared_live: The bytes of tokens therein.
        blocks: Its own blocks, for each class.
        pattern: The :class:`GrowthPattern` by which it grows, if its steps are taken by that: what it has committed since is not
            in *own_bytes* then.
        joins_ns: When the steps of another pattern begin; -1 if none do.
    """

    __slots__ = (
        *("request", "order", "length", "total", "start_ns", "decode_ns", "origin_ns"),
        *("admitted_ns", "stalled"),
        *("admitted_once", "answered", "refused_once", "backed", "covered", "target"),
        *("own_bytes", "arena", "path", "hit_tokens", "shared_bytes", "shared_live", "blocks"),
        *("pattern", "joins_ns"),
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.order = -1
        _, prompt, output, _ = request
        self.length = prompt
        self.total = prompt + output
        self.start_ns = self.decode_ns = self.origin_ns = self.admitted_ns = 0
        self.stalled = self.admitted_once = self.answered = self.refused_once = False
        self.backed = self.target = 0
        self.covered: int | None = 0
        self.own_bytes = self.arena = self.hit_tokens = 0
        self.path: list[Any] = []
        self.shared_bytes = self.shared_live = 0
        self.blocks: list[Any] = []
        self.pattern: Any = None
        self.joins_ns = -1

    def begin(self, now: int, prefill_ns: int, step_ns: int) -> None:
        """Begin a segment, whose first step is after *prefill_ns*."""
        self.start_ns = now
        self.decode_ns = now + prefill_ns
        self.origin_ns = self.decode_ns - self.length * step_ns

    def steps_before(self, now: int, step_ns: int) -> int:
        """Return the steps of this segment that began before *now*."""
        if self.stalled or now <= self.decode_ns:
            return 0
        return min(-((self.decode_ns - now) // step_ns), self.total - self.length)


class Regular(NamedTuple):
    """How sequences grow alike.

    Attributes:
        start: The length from which they do; their memory is used up there.
        period: The number of tokens after which it is used up again, every time.
    """

    start: int
    period: int


def regular(parts: Sequence[BlockClass]) -> Regular | None:
    """Return how *parts* grow together once windows are full; ``None`` if they never do alike."""
    full = max([part.entries.cap or 0 for part in parts], default=0)
    found = {(part.longest(full), part.period) for part in parts}
    growing = [(start, period) for start, period in found if start is not None]
    if len(growing) != 1 or growing[0][1] is None:
        return None
    return Regular(growing[0][0], growing[0][1])


class Growth(NamedTuple):  # a tuple unpacks fast, and every step does
    """What a sequence takes to grow from one length to another, and its state after that.

    Attributes:
        nbytes: The bytes that it has more after that: it commits them, or takes them as blocks.
        calls: The number of spans; 0 for blocks, because what they commit depends on others.
        backed: The length that memory was requested for.
        covered: The longest length that its memory is enough for; ``None`` for any.
        runs: The granules of each range.
        lacks: How many blocks of which classes.
    """

    nbytes: int
    calls: int
    backed: int
    covered: int | None
    runs: tuple[tuple[Run, ...], ...] = ()
    lacks: tuple[tuple[int, int], ...] = ()


class Store(Protocol):
    """The memory of sequences: :class:`RangeStore` or :class:`PoolStore`."""

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Give a new sequence memory for *tokens*; return ``False`` and change nothing if refused."""

    def grow(self, seq: RunningSequence, tokens: int, slack_ns: int) -> bool:
        """Give it memory for *tokens* in total; return ``False`` and change nothing if refused."""

    def drop(self, seq: RunningSequence) -> None:
        """Take back all of its memory."""

    def step(self, backed: int, tokens: int) -> Growth:
        """Return what growing from *backed*, or from nothing if that is -1, to *tokens* takes."""

    def close(self) -> None:
        """Give back what was there without sequences."""

    @property
    def empty(self) -> bool:
        """Whether no sequence has anything."""
