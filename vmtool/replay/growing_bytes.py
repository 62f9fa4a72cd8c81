"""Sequences whose growth repeats, and what all commit before a later time, in closed form.

At which steps a sequence commits, and how much, repeats after a period of tokens, and a step takes the
same time for all. So before a time, the steps of one kind that all sequences have taken are a quotient
for each, and one more for those whose remainder is below that of the time, which a sorted list tells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.replay.shortcuts import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.replay.sequence import RunningSequence


#: So many more lookups in one list are worth another list of sequences.
_FEW_PLACES: Final = 4
#: So many sums are remembered.
_MOST_SUMS: Final = 1 << 16
#: With fewer steps that commit, it is faster to take them one by one.
_LEAST_STEPS: Final = 4
#: If so many tokens are not worth it that a sequence joins, few sequences have enough of them.
_MOST_TOKENS: Final = 128
#: So many steps are gone through one by one.
_FEW_STEPS: Final = 2


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


class GrowingBytes:
    """The sequences that grow by patterns.

    All times that are given must be at or after any that was given to :meth:`admit`.

    Args:
        growth: How a sequence grows from some length on, ascending and without gaps.
        step_ns: A decode step.

    Attributes:
        start: That length; far away if there is none.
        tokens_a_step: Tokens from one step that commits to the next, on average.
        least: So many tokens are worth it that a sequence joins.
        count: How many have joined.
        pace: The bytes of one step of each of them at most.
        places: In how many places of lists :meth:`before` looks at most.
        most: The bytes of one step at most.
        waiting: Who joins, or goes on with another pattern, when: a heap of times and orders.
        calls, steps, moment: Of those that have left, until somebody takes them: spans, steps that
            committed, and their bytes times their times.
        changed_ns: When the last step was of those who went on with another pattern.
    """

    def __init__(self, growth: Sequence[Repeated], step_ns: int) -> None:
        patterns = [GrowthPattern(each, step_ns) for each in growth]
        if min([each.tokens_worth for each in patterns], default=NEVER) > _MOST_TOKENS:
            patterns = []
        self._patterns = patterns
        self._firsts = [pattern.first for pattern in patterns]
        self._step_ns = step_ns
        self.start = patterns[0].first if patterns else NEVER
        self.tokens_a_step = max([each.tokens_a_step for each in self._patterns], default=0)
        self.least = _LEAST_STEPS * self.tokens_a_step
        self.most = max([pattern.most for pattern in self._patterns], default=0)
        self.count = self.pace = 0
        self.waiting: list[tuple[int, int, RunningSequence]] = []
        self.calls = self.steps = self.moment = 0
        self._rings = [ring for pattern in self._patterns for ring in pattern.rings]
        self.places = sum(len(ring.places) for ring in self._rings)
        self._offset = 0
        self.changed_ns = -1

    def wait(self, seq: RunningSequence, at: int) -> None:
        """Let *seq*, whose memory is used up at *at*, take that step and later ones here."""
        seq.joins_ns = at
        heappush(self.waiting, (at, seq.order, seq))

    def admit(self, until: int) -> None:
        """Let those join, or go on with another pattern, who do before *until*."""
        waiting, patterns = self.waiting, self._patterns
        while waiting and waiting[0][0] < until:
            at, order, seq = heappop(waiting)
            if seq.order != order or seq.joins_ns != at:
                continue  # it was preempted meanwhile
            pattern = seq.pattern
            covered = seq.covered
            assert covered is not None  # noqa: S101 - else it has no steps
            if pattern is not None:
                end = pattern.end
                assert end is not None  # noqa: S101 - else it does not wait
                last_ns = seq.origin_ns + pattern.last_commit(end) * self._step_ns
                self.changed_ns = max(self.changed_ns, last_ns)
                self.leave(seq, end)
                seq.joins_ns, seq.covered = -1, None
                following = patterns.index(pattern) + 1
                if following == len(patterns):
                    continue  # nothing grows any more
                pattern = patterns[following]
                covered = seq.covered = pattern.commits_from(end)
                if covered > end:
                    if covered < seq.total:
                        self.wait(seq, seq.origin_ns + covered * self._step_ns)
                    continue
            else:
                pattern = patterns[bisect_right(self._firsts, covered) - 1]
            seq.pattern = pattern
            self.count += 1
            self.pace += pattern.most
            origin_ns, offset = seq.origin_ns, self._offset
            for period_ns, slope, keys, _ in pattern.rings:
                turn, key = divmod(origin_ns, period_ns)
                insort(keys, key)
                offset -= slope * turn
            sums = pattern.known.get(covered) or pattern.sums(covered)
            self._offset = offset - sums[0]
            if pattern.end is not None and pattern.end < seq.total:
                self.wait(seq, origin_ns + pattern.end * self._step_ns)
            else:
                seq.joins_ns = -1

    def leave(self, seq: RunningSequence, tokens: int) -> None:
        """Remove *seq*, which has *tokens* and has grown for these; :meth:`before` still has them."""
        pattern = seq.pattern
        covered = seq.covered
        assert pattern is not None  # noqa: S101 - it is here
        assert covered is not None  # noqa: S101 - else it has no steps
        origin_ns, offset = seq.origin_ns, self._offset
        for period_ns, slope, keys, _ in pattern.rings:
            turn, key = divmod(origin_ns, period_ns)
            del keys[bisect_left(keys, key)]
            offset += slope * turn
        known = pattern.known
        nbytes, calls, steps, moment = known.get(tokens) or pattern.sums(tokens)
        old_bytes, old_calls, old_steps, old_moment = known.get(covered) or pattern.sums(covered)
        self._offset = offset + nbytes
        nbytes -= old_bytes
        self.calls += calls - old_calls
        self.steps += steps - old_steps
        self.moment += nbytes * origin_ns + (moment - old_moment) * self._step_ns
        seq.own_bytes += nbytes
        seq.backed = seq.covered = tokens
        seq.pattern = None
        self.count -= 1
        self.pace -= pattern.most

    def before(self, now: int) -> int:
        """Return the bytes of all steps before *now*."""
        found = self._offset
        for period_ns, slope, keys, places in self._rings:
            if not keys:
                continue
            turn, at = divmod(now, period_ns)
            count = len(keys)
            found += slope * turn * count
            for shift, nbytes in places:
                if shift < at:
                    found += nbytes * bisect_left(keys, at - shift)
                else:
                    found += nbytes * (bisect_left(keys, at - shift + period_ns) - count)
        return found

    def first_over(self, room: int, low: int, high: int) -> int:
        """Return when the first step is that exceeds *room*, at or after *low* and before *high*."""
        low_bytes, high_bytes = self.before(low), self.before(high)
        while high - low > 1 and high_bytes - low_bytes > _FEW_STEPS * self.most:
            middle = (low + high) // 2
            found = self.before(middle)
            if found > room:
                high, high_bytes = middle, found
            else:
                low, low_bytes = middle, found
        while high - low > 1:
            low = self.around(low)[1]
            if self.before(low + 1) > room:
                break
            low += 1
        return low

    def around(self, now: int) -> tuple[int, int]:
        """Return when the last step was before *now*, and when the next is at or after it.

        This is of those that have joined; of others, only the last before they changed is known.
        """
        last, following = self.changed_ns, NEVER
        for pattern in self._patterns:
            period_ns, _, keys, places = pattern.rings[0]  # all of its steps
            if not keys:
                continue
            turn, at = divmod(now, period_ns)
            start_ns, count = turn * period_ns, len(keys)
            for shift, _ in places:
                place = bisect_left(keys, at - shift)
                if shift > at:
                    place = bisect_left(keys, at - shift + period_ns)
                    shift -= period_ns  # noqa: PLW2901
                shift += start_ns  # noqa: PLW2901
                found = keys[place - 1] + shift - (0 if place else period_ns)
                if found > last:  # noqa: PLR1730 - max() takes longer
                    last = found
                found = keys[place] + shift if place < count else keys[0] + shift + period_ns
                if found < following:  # noqa: PLR1730
                    following = found
        return last, following

    def turns(self, room: int, sequences: int) -> int:
        """Return for how many decode steps so many *sequences* surely fit into *room*."""
        if not self._patterns:
            return NEVER
        each = room // (sequences * len(self._patterns))
        return min(pattern.turns(each) for pattern in self._patterns)
