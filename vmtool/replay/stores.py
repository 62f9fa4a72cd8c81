"""The interface of the memory of sequences, and how a sequence in it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.kv.packing.blocks_and_ranges import BlockClass, Run
    from vmtool.replay.sequence import RunningSequence

#: Steps of growth that a store remembers; a sequence of a million tokens takes some 60,000.
MOST_STEPS: Final = 1 << 16


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
