"""How a sequence's memory grows at its steps, where that repeats after some tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, NamedTuple

#: So many more lookups in one list are worth another list of sequences.
_FEW_PLACES: Final = 4
#: So many sums are remembered.
_MOST_SUMS: Final = 1 << 16


class Repeated(NamedTuple):
    """How a sequence grows from one length to another.

    Attributes:
        first: The first length.
        end: The length at which the next one applies; ``None`` if none does.
        steps: The bytes, and in how many spans, of the step from each length on. This is of the
            multiples of the number of these, and repeats.
    """

    first: int
    end: int | None
    steps: tuple[tuple[int, int], ...]


class Sums(NamedTuple):
    """What steps up to a length add up to.

    Attributes:
        nbytes: Their bytes.
        calls: Their spans.
        steps: How many of them commit.
        moment: The bytes of each times the length before it.
    """

    nbytes: int
    calls: int
    steps: int
    moment: int


class Ring(NamedTuple):
    """The steps of sequences that are a period apart.

    Attributes:
        period_ns: The period.
        slope: Bytes of a sequence in a period.
        keys: When each sequence would have begun, in its period; ascending.
        places: How long after that there are steps, and their bytes.
    """

    period_ns: int
    slope: int
    keys: list[int]
    places: list[tuple[int, int]]


class GrowthPattern:
    """A repeated growth, and those that grow so.

    Args:
        repeated: The growth.
        step_ns: A decode step.

    Attributes:
        first, end: As given.
        most: The bytes of one step at most.
        rings: Their steps.
        known: Results of :meth:`sums`.
    """

    def __init__(self, repeated: Repeated, step_ns: int) -> None:
        self.first, self.end, steps = repeated
        self._period = len(steps)
        self._sums = [Sums(0, 0, 0, 0)]
        for at, (nbytes, calls) in enumerate(steps):
            a, b, c, d = self._sums[-1]
            self._sums.append(Sums(a + nbytes, b + calls, c + (nbytes > 0), d + nbytes * at))
        self.known: dict[int, Sums] = {}
        sizes = [nbytes for nbytes, _ in steps]
        self._commits = [at for at, nbytes in enumerate(sizes) if nbytes]
        self.most = max(sizes)
        usual, count = Counter(sizes).most_common(1)[0]
        if min(sizes) == 0 or count <= 1 + _FEW_PLACES:
            usual = 0
        self.rings: list[Ring] = []
        if usual:
            self.rings.append(Ring(step_ns, usual, [], [(0, usual)]))
        others = [(at * step_ns, n - usual) for at, n in enumerate(sizes) if n != usual]
        if others:
            slope = sum(nbytes for _, nbytes in others)
            self.rings.append(Ring(self._period * step_ns, slope, [], others))

    def turns(self, room: int) -> int:
        """Return for how many steps a sequence surely fits into *room*."""
        whole = room // self._sums[-1].nbytes - 1
        return max(whole * self._period, room // self.most)

    @property
    def tokens_a_step(self) -> float:
        """Tokens from one step that commits to the next, on average."""
        return self._period / self._sums[-1].steps

    @property
    def tokens_worth(self) -> float:
        """For how many tokens it is worth it to look up all of its places, and not each step."""
        places = sum(len(ring.places) for ring in self.rings)
        return self.tokens_a_step * (3 + places / 4)

    def sums(self, tokens: int) -> Sums:
        """Return the sums of the steps up to *tokens*, as if the pattern began at none."""
        whole, rest = divmod(tokens, self._period)
        nbytes, calls, steps, moment = self._sums[-1]
        more = self._sums[rest]
        before = whole * self._period
        moment = whole * moment + nbytes * (before * (whole - 1) // 2)
        found = Sums(
            whole * nbytes + more.nbytes,
            whole * calls + more.calls,
            whole * steps + more.steps,
            moment + more.moment + before * more.nbytes,
        )
        if len(self.known) >= _MOST_SUMS:
            self.known.clear()
        self.known[tokens] = found
        return found

    def commits_from(self, tokens: int) -> int:
        """Return the first length from *tokens* on whose next step commits."""
        whole, rest = divmod(tokens, self._period)
        places = self._commits
        at = bisect_left(places, rest)
        return whole * self._period + (places[at] if at < len(places) else places[0] + self._period)

    def last_commit(self, tokens: int) -> int:
        """Return the last length below *tokens* whose next step commits."""
        whole, rest = divmod(tokens, self._period)
        at = bisect_left(self._commits, rest) - 1
        return (whole - (at < 0)) * self._period + self._commits[at]
