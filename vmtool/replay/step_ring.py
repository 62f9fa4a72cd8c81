"""The order of sequences that all take one step per period, without a queue of events."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from vmtool.replay.shortcuts import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.replay.sequence import RunningSequence


class StepRing:
    """Sequences sorted by the remainder of their steps' times, the order in which they take turns.

    If every sequence commits the same after the same number of tokens, and all tokens take the same
    time, each sequence has one such step per period. What all of them do until some time is then a
    stretch of a sorted list.

    Args:
        period_ns: The time from one step of a sequence to its next.
        place: Of the class of which each step takes a block.

    Attributes:
        members: The sequences, in order; older ones first at one moment.
        next_ns: When the next step is; far away if there is none.
        last_ns: When the last step was that :meth:`advance` went over.
        swept_ns: The time until which, exclusively, it went over steps.
    """

    def __init__(self, period_ns: int, place: int) -> None:
        self.members: list[RunningSequence] = []
        self.next_ns = NEVER
        self.last_ns = self.swept_ns = 0
        self._period_ns = period_ns
        self._class = place
        self._phases: list[int] = []
        self._takers: list[Any] = []  # the blocks that each has
        self._turn = self._place = 0  # of the next step: its period, and who takes it
        self._before = (0, 0)  # the same before the last advance

    def start(self, steps: list[tuple[int, int, RunningSequence]]) -> None:
        """Begin with sequences: when the next step of each is, all within a period, and its order."""
        period_ns = self._period_ns
        placed = sorted([(at % period_ns, order, seq) for at, order, seq in steps])
        self._phases = [phase for phase, _, _ in placed]
        self.members = [seq for _, _, seq in placed]
        self._takers = [seq.blocks[self._class] for seq in self.members]
        self.next_ns = self.swept_ns = min(steps)[0]
        self._turn, phase = divmod(self.next_ns, period_ns)
        self._place = bisect_left(self._phases, phase)

    def join(self, seq: RunningSequence, first_ns: int, now: int) -> bool:
        """Add *seq*, whose next step is at *first_ns*; ``False`` if that is too early or too late.

        No step of the others is left before *now*.
        """
        phases, members, period_ns = self._phases, self.members, self._period_ns
        turn, phase = divmod(first_ns, period_ns)
        if not phases:
            self._turn, self._place, self.swept_ns = turn, 0, first_ns
        elif first_ns >= self.swept_ns + period_ns and now > self.swept_ns:
            self.swept_ns = now
            self._turn, swept = divmod(now, period_ns)
            self._place = bisect_left(phases, swept)
        if not self.swept_ns <= first_ns < self.swept_ns + period_ns:
            return False
        place = bisect_left(phases, phase)
        while place < len(phases) and phases[place] == phase and members[place].order < seq.order:
            place += 1
        phases.insert(place, phase)
        members.insert(place, seq)
        self._takers.insert(place, seq.blocks[self._class])
        self._place += turn > self._turn
        if first_ns < self.next_ns:  # noqa: PLR1730 - min() takes longer
            self.next_ns = first_ns
        return True

    def leave(self, seq: RunningSequence, first_ns: int) -> None:
        """Remove *seq*, one of whose steps was at *first_ns*."""
        place = bisect_left(self._phases, first_ns % self._period_ns)
        while self.members[place] is not seq:
            place += 1
        del self._phases[place], self.members[place], self._takers[place]
        if place < self._place:
            self._place -= 1
        self.next_ns = self._next() if self.members else NEVER

    def advance(self, until: int, most: int) -> int:
        """Go over the steps before *until* (there is at least one), at most *most*; return how many."""
        phases = self._phases
        turn, phase = divmod(until, self._period_ns)
        place = bisect_left(phases, phase)
        count = place - self._place + (turn - self._turn) * len(phases)
        if count > most:
            turns, place = divmod(self._place + most, len(phases))
            count, turn = most, self._turn + turns
            until = 0  # set below
        self._before = self._turn, self._place
        self._turn, self._place = turn, place
        start_ns = turn * self._period_ns
        if place:
            self.last_ns = start_ns + phases[place - 1]
        else:
            self.last_ns = start_ns - self._period_ns + phases[-1]
        if place < len(phases):
            self.next_ns = start_ns + phases[place]
        else:
            self.next_ns = start_ns + self._period_ns + phases[0]
        self.swept_ns = until or self.next_ns + 1
        return count

    def taken(self) -> Iterator[tuple[RunningSequence, int]]:
        """Yield each sequence and how many periods its next step is after the first moment."""
        turn, place = self._turn, self._place
        for at, seq in enumerate(self.members):
            yield seq, turn + (at < place)

    def passed(self, count: int) -> list[Any]:
        """Return the blocks of those whose *count* steps the last :meth:`advance` went over, in order."""
        takers, (_, start) = self._takers, self._before
        end = start + count
        found = takers[start:end]
        while len(found) < count:
            end -= len(takers)
            found += takers[: max(end, 0)]
        return found

    def time(self, step: int) -> int:
        """Return the time of step number *step* of those that the last :meth:`advance` went over."""
        turn, place = self._before
        turns, place = divmod(place + step, len(self._phases))
        return (turn + turns) * self._period_ns + self._phases[place]

    def _next(self) -> int:
        if self._place < len(self._phases):
            return self._turn * self._period_ns + self._phases[self._place]
        return (self._turn + 1) * self._period_ns + self._phases[0]
