"""The order of sequences that all take one step per period, without a queue of events."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vmtool.replay.sequence import RunningSequence

#: Bits of a key for the order of the sequence.
ORDER_BITS: Final = 40
_ORDER: Final = (1 << ORDER_BITS) - 1


class StepRing:
    """Sequences sorted by the remainder of their steps' times, the order in which they take turns.

    If every sequence commits the same after the same number of tokens, and all tokens take the same
    time, each sequence has one such step per period. What all of them do until some time is then a
    stretch of a sorted list. The fast path goes over such stretches itself.

    Args:
        period_ns: The time from one step of a sequence to its next.
        place: Of the class of which each step takes a block.

    Attributes:
        period_ns: As given.
        keys: The remainder of each sequence, and its order in the lowest bits; ascending.
        takers: The blocks of each.
        turn: The number of the period of the next step.
        place: Whose step that is, by its place in *keys*; the end if it is the first of the next period.
        swept_ns: The time until which, exclusively, all steps were taken.
    """

    def __init__(self, period_ns: int, place: int) -> None:
        self.period_ns = period_ns
        self.keys: list[int] = []
        self.takers: list[Any] = []
        self.turn = self.place = self.swept_ns = 0
        self._class = place

    def start(self, steps: list[tuple[int, int, RunningSequence]]) -> None:
        """Begin with sequences: when the next step of each is, all within a period, and its order."""
        period_ns = self.period_ns
        placed = sorted([(at % period_ns << ORDER_BITS | order, seq) for at, order, seq in steps])
        self.keys = [key for key, _ in placed]
        self.takers = [seq.blocks[self._class] for _, seq in placed]
        self.swept_ns = min(steps)[0]
        self.turn, phase = divmod(self.swept_ns, period_ns)
        self.place = bisect_left(self.keys, phase << ORDER_BITS)

    def time(self, step: int) -> int:
        """Return the time of step number *step* of those to come."""
        turns, place = divmod(self.place + step, len(self.keys))
        return (self.turn + turns) * self.period_ns + (self.keys[place] >> ORDER_BITS)

    def orders(self) -> list[tuple[int, int]]:
        """Return the order of each sequence, and the number of the period of its next step."""
        return [(key & _ORDER, self.turn + (at < self.place)) for at, key in enumerate(self.keys)]
