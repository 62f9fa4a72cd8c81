"""The bytes of tokens of all running sequences together, at any later time, without visiting each.

A sequence has ``length + ceil((t - decode_ns) / step_ns)`` tokens while it decodes. With both times
divided by the step into quotient and remainder, the sum over all sequences of that ceiling is a sum
of quotients and the number of remainders below the present one, which a sorted list gives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from vmtool.replay.sequence import Part

if TYPE_CHECKING:
    from vmtool.kv.packing.growth import UsedBytes
    from vmtool.replay.sequence import RunningSequence


class _TokenSum:
    """The sum of the tokens of sequences, each counted up to *cap*, at times that never go back."""

    def __init__(self, step_ns: int, cap: int | None) -> None:
        self._step_ns = step_ns
        self._cap = cap
        self._constant = 0
        self._offset = 0  # of those that grow: lengths less quotients
        self._phases: list[int] = []  # their remainders, ascending
        # When a part begins to grow, or reaches the cap.
        self._changes: list[tuple[int, int, Part]] = []
        self._count = 0

    def add(self, seq: RunningSequence) -> Part:
        """Add *seq* as it is in its present segment."""
        length, cap = seq.length, self._cap
        full = cap is not None and length >= cap
        part = Part(length, seq.decode_ns, cap if full and cap is not None else length)
        self._constant += part.constant
        if not full and not seq.stalled and seq.total > length:
            self._count += 1
            heappush(self._changes, (part.decode_ns, self._count, part))
        return part

    def remove(self, part: Part) -> None:
        """Remove the sequence that *part* was made for."""
        part.present = False
        if part.growing:
            self._stop(part)
        else:
            self._constant -= part.constant

    def at(self, now: int) -> int:
        """Return the sum just before *now*."""
        changes = self._changes
        while changes and changes[0][0] < now:
            part = heappop(changes)[2]
            if part.present:
                self._change(part)
        quotient, phase = divmod(now, self._step_ns)
        phases = self._phases
        growing = self._offset + len(phases) * quotient + bisect_left(phases, phase)
        return self._constant + growing

    def _change(self, part: Part) -> None:
        if part.growing:
            assert self._cap is not None  # noqa: S101 - only a cap ends growth
            self._stop(part)
            part.growing, part.constant = False, self._cap
            self._constant += self._cap
            return
        self._constant -= part.constant
        part.growing = True
        quotient, phase = divmod(part.decode_ns, self._step_ns)
        self._offset += part.length - quotient
        insort(self._phases, phase)
        if self._cap is not None:
            full_ns = part.decode_ns + (self._cap - part.length) * self._step_ns
            self._count += 1
            heappush(self._changes, (full_ns, self._count, part))

    def _stop(self, part: Part) -> None:
        quotient, phase = divmod(part.decode_ns, self._step_ns)
        self._offset -= part.length - quotient
        del self._phases[bisect_left(self._phases, phase)]


class LiveBytes:
    """The bytes of tokens of all running sequences, prefixes counted for each.

    Args:
        used: The bytes of a sequence by its length.
        step_ns: A decode step.
    """

    def __init__(self, used: UsedBytes, step_ns: int) -> None:
        self._fixed = used.fixed
        self._step_ns = step_ns
        # Bytes for each token of a sum; where several tokens have one entry, each is visited.
        self._sums = [(used.slope, _TokenSum(step_ns, None))]
        self._visited = []
        for entries, nbytes in used.steps:
            if entries.every == 1 and entries.cap is not None:
                self._sums.append((nbytes, _TokenSum(step_ns, entries.cap)))
            else:
                self._visited.append((entries, nbytes))
        # Added, but not yet in the sums: an admission counts from the moment after it.
        self._new: list[RunningSequence] = []
        self._running: dict[RunningSequence, None] = {}

    def add(self, seq: RunningSequence) -> None:
        """Add *seq*, at the beginning of a segment."""
        self._new.append(seq)

    def remove(self, seq: RunningSequence) -> None:
        """Remove *seq*, at the end of a segment, before it changes."""
        if not seq.parts:
            self._new.remove(seq)
            return
        del self._running[seq]
        for (_, tokens), part in zip(self._sums, seq.parts, strict=True):
            tokens.remove(part)
        seq.parts = []

    def before(self, now: int) -> int:
        """Return the bytes just before *now*, which never goes back."""
        if self._new:
            self._admit(now)
        total = self._fixed * len(self._running)
        for nbytes, tokens in self._sums:
            total += nbytes * tokens.at(now)
        for entries, nbytes in self._visited:
            for seq in self._running:
                held = entries.at(seq.length + seq.steps_before(now, self._step_ns))
                total += nbytes * held
        return total

    def _admit(self, now: int) -> None:
        later = []
        for seq in self._new:
            if seq.admitted_ns < now:
                self._running[seq] = None
                seq.parts = [tokens.add(seq) for _, tokens in self._sums]
            else:
                later.append(seq)
        self._new = later
