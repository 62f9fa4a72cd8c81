"""The sequence of one request: its length at a given time, and the memory that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vmtool.kv.traces.formats import Request
    from vmtool.replay.growth_pattern import GrowthPattern
    from vmtool.replay.prefixes import Node


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
        path: Its shared prefix.
        hit_tokens: Tokens of it that were there at its admission.
        shared_bytes: What that prefix has committed.
        shared_live: The bytes of tokens therein.
        blocks: Its own blocks, for each class.
        pattern: How it grows, if its steps are taken by that: what it has committed since is not
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
        self.path: list[Node] = []
        self.shared_bytes = self.shared_live = 0
        self.blocks: list[Any] = []
        self.pattern: GrowthPattern | None = None
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
