"""The live bytes of one sequence by length, and of all running ones at a later time, in closed form.

A sequence has ``length + ceil((t - decode_ns) / step_ns)`` tokens while it decodes. With both times
divided by the step into quotient and remainder, the sum over all sequences of that ceiling is a sum
of quotients and the number of remainders below the present one, which a sorted list gives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from vmtool.kv.packing.shapes_and_block_classes import EntryCount

if TYPE_CHECKING:
    from vmtool.kv.sequence_cost import SequenceCost
    from vmtool.replay.sequence import RunningSequence


class UsedBytes:
    """The bytes that *cost* has for a length, fast, and exact as :meth:`SequenceCost.bytes_for`.

    Args:
        cost: What a sequence costs.

    Attributes:
        fixed: Bytes whatever the length.
        slope: Bytes of each token, of what keeps every token.
        steps: Bytes of an entry of everything else, with how many there are.
        capped: Of these, those with an entry for each token up to a cap: the cap and the bytes.
        others: Of these, the others.
        below: Bytes of each token while no cap is reached, but for the others.
    """

    __slots__ = ("below", "capped", "fixed", "others", "slope", "steps")

    def __init__(self, cost: SequenceCost) -> None:
        self.fixed = sum(layer.count * layer.state_bytes for layer in cost.layers)
        self.slope = 0  # of what holds every token
        steps: dict[EntryCount, int] = {}
        for count, tensor in cost.tensors():
            entries = EntryCount.of(tensor.extent, cost.in_flight)
            nbytes = count * tensor.bytes_per_token
            if entries.fixed is not None:
                self.fixed += nbytes * entries.fixed
            elif entries == EntryCount():
                self.slope += nbytes
            else:
                steps[entries] = steps.get(entries, 0) + nbytes
        self.steps = tuple(steps.items())
        self.capped = tuple(
            [(x.cap, n) for x, n in self.steps if x.every == 1 and x.cap is not None]
        )
        self.others = tuple([(x, n) for x, n in self.steps if x.every != 1 or x.cap is None])
        self.below = self.slope + sum(nbytes for _, nbytes in self.capped)

    def at(self, tokens: int) -> int:
        """Return the bytes of a sequence of *tokens*."""
        found = self.fixed + self.slope * tokens
        for entries, nbytes in self.steps:
            found += nbytes * entries.at(tokens)
        return found

    def over(self, tokens: int, more: int) -> int:
        """Return the sum of the bytes at the *more* lengths after *tokens*."""
        end = tokens + more
        found = self.fixed * more + self.slope * (more * (tokens + end + 1) // 2)
        for entries, nbytes in self.steps:
            found += nbytes * entries.over(tokens, more)
        return found


class _Steps:
    """The sum of ``ceil((t - start) / step_ns)`` over all starts before *t*, which never goes back."""

    __slots__ = ("_offset", "_phases", "_step_ns", "ended", "now", "starts")

    def __init__(self, step_ns: int) -> None:
        self.now = -1
        self.starts: list[int] = []  # a heap of those to come: push one to add it
        self.ended: list[int] = []  # and one of those of them that were removed
        self._step_ns = step_ns
        self._offset = 0  # less the quotients of the starts that are over
        self._phases: list[int] = []  # their remainders, ascending

    def remove(self, start: int) -> None:
        """Remove one that was added with *start*."""
        if start >= self.now:
            heappush(self.ended, start)
            return
        quotient, phase = divmod(start, self._step_ns)
        self._offset += quotient
        del self._phases[bisect_left(self._phases, phase)]

    def before(self, now: int) -> int:
        """Return the sum just before *now*."""
        starts, ended, phases, step_ns = self.starts, self.ended, self._phases, self._step_ns
        while starts and starts[0] < now:
            start = heappop(starts)
            if ended and ended[0] == start:
                heappop(ended)
            else:
                quotient, phase = divmod(start, step_ns)
                self._offset -= quotient
                insort(phases, phase)
        self.now = now
        quotient, phase = divmod(now, step_ns)
        return self._offset + len(phases) * quotient + bisect_left(phases, phase)


class _Excess:
    """The tokens beyond *cap*, which hold *nbytes* less each."""

    __slots__ = ("_constant", "_step_ns", "_steps", "cap", "nbytes")

    def __init__(self, cap: int, nbytes: int, step_ns: int) -> None:
        self.cap = cap
        self.nbytes = nbytes
        self._step_ns = step_ns
        self._constant = 0
        self._steps = _Steps(step_ns)

    def add(self, seq: RunningSequence, beyond: bool) -> None:
        """Add *seq*, which grows beyond the cap if it goes on; *beyond*: its steps count elsewhere."""
        over, start = seq.length - self.cap, seq.decode_ns
        if over > 0:
            self._constant += over
            if beyond:
                return
        else:
            start -= over * self._step_ns
        if not seq.stalled and seq.total > seq.length:
            heappush(self._steps.starts, start)

    def remove(self, seq: RunningSequence, beyond: bool) -> None:
        """Remove *seq*, which was added."""
        over, start = seq.length - self.cap, seq.decode_ns
        if over > 0:
            self._constant -= over
            if beyond:
                return
        else:
            start -= over * self._step_ns
        if not seq.stalled and seq.total > seq.length:
            self._steps.remove(start)

    def before(self, now: int) -> int:
        return self._constant + self._steps.before(now)


class LiveBytes:
    """The bytes of tokens of all running sequences, prefixes counted for each.

    Args:
        used: The bytes of a sequence by its length.
        step_ns: A decode step.
    """

    def __init__(self, used: UsedBytes, step_ns: int) -> None:
        self._used = used
        self._step_ns = step_ns
        self._count = 0
        self._tokens = 0  # at the beginning of each segment
        self._origins = 0  # when each would have begun if prefill took no time and tokens a step
        self._steps = _Steps(step_ns)
        self._slope = used.below
        # What is kept up to a cap is what is kept without, less what is beyond. Where several tokens
        # have one entry, each sequence is visited.
        self._excess = [_Excess(cap, nbytes, step_ns) for cap, nbytes in used.capped]
        # With one cap, each step of those who begin beyond it is counted once, here.
        self._beyond = _Steps(step_ns)
        self._one_cap = self._excess[0].cap if len(self._excess) == 1 else 1 << 62
        self._visited = used.others
        self._running: dict[RunningSequence, None] = {}  # if they are visited
        self._plain = not used.steps
        # An admission counts from the moment after it: the last ones.
        self._new_ns = -1
        self._new: list[RunningSequence] = []

    def add(self, seq: RunningSequence) -> None:
        """Add *seq*, at the beginning of a segment."""
        length, start_ns = seq.length, seq.start_ns
        self._count += 1
        self._tokens += length
        self._origins += start_ns - length * self._step_ns
        beyond = length > self._one_cap
        if seq.total > length and not seq.stalled:
            heappush((self._beyond if beyond else self._steps).starts, seq.decode_ns)
        if start_ns == seq.admitted_ns:
            if self._new_ns == start_ns:
                self._new.append(seq)
            else:
                self._new_ns, self._new = start_ns, [seq]
        if not self._plain:
            for excess in self._excess:
                if seq.total > excess.cap:
                    excess.add(seq, beyond)
            if self._visited:
                self._running[seq] = None

    def remove(self, seq: RunningSequence) -> None:
        """Remove *seq*, at the end of a segment, before it changes."""
        length, start_ns = seq.length, seq.start_ns
        self._count -= 1
        self._tokens -= length
        self._origins -= start_ns - length * self._step_ns
        beyond = length > self._one_cap
        if seq.total > length and not seq.stalled:
            (self._beyond if beyond else self._steps).remove(seq.decode_ns)
        if start_ns == self._new_ns == seq.admitted_ns:
            self._new.remove(seq)
        if not self._plain:
            for excess in self._excess:
                if seq.total > excess.cap:
                    excess.remove(seq, beyond)
            if self._visited:
                del self._running[seq]

    def at_most(self, now: int) -> int:
        """Return an upper bound of :meth:`before` that is near and fast, for the same *now*."""
        if self._visited:
            return 1 << 100
        tokens = (self._count * (now + self._step_ns) - self._origins) // self._step_ns
        return self._used.fixed * self._count + self._slope * tokens

    def before(self, now: int) -> int:
        """Return the bytes just before *now*, which never goes back."""
        found = self._used.fixed * self._count
        found += self._slope * (self._tokens + self._steps.before(now))
        for excess in self._excess:
            found -= excess.nbytes * excess.before(now)
        if self._one_cap != 1 << 62:
            found += (self._slope - self._excess[0].nbytes) * self._beyond.before(now)
        for entries, nbytes in self._visited:
            for seq in self._running:
                held = entries.at(seq.length + seq.steps_before(now, self._step_ns))
                found += nbytes * held
        if now == self._new_ns:
            found -= sum(self._used.at(seq.length) for seq in self._new)
        return found
