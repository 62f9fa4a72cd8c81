"""What a replay measures: outcomes of requests, waits, live bytes, and points over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from vmtool.histograms import BatchedHistogram
from vmtool.replay.live_bytes import LiveBytes
from vmtool.results.kv_replay import Point

if TYPE_CHECKING:
    from vmtool.replay.account import Account
    from vmtool.replay.live_bytes import UsedBytes
    from vmtool.replay.sequence import RunningSequence


#: The most points of the timeline; once it had that many, it keeps at least half of them.
MOST_POINTS: Final = 512
_FIRST_INTERVAL_NS: Final = 10**6
#: The values of a :class:`Point`, which is made once it is needed: that takes much longer.
_Row: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Counts:
    """How requests ended, and what delayed them; see :class:`vmtool.results.kv_replay.Requests`."""

    arrived: int = 0
    finished: int = 0
    too_long: int = 0
    too_large: int = 0
    rejected: int = 0
    cut: int = 0
    refused_admissions: int = 0
    refused_steps: int = 0
    refused_ahead: int = 0
    stalled_ns: int = 0
    preemptions: int = 0
    deadlocks: int = 0
    recomputed_tokens: int = 0
    decode_steps: int = 0
    saved_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(slots=True)
class Recorder:
    """Everything that a replay measures except the bytes of the account.

    Attributes:
        counts: Of requests and refusals.
        waits: From arrival to first admission, in nanoseconds.
        first_tokens: From arrival to the end of the first decode step.
        ends: From arrival to the last token, of those that got all.
        live_area: Integral of the bytes of tokens over time, prefixes counted for each sequence.
        peak_live: The most bytes of tokens at once, shared ones once.
        interval_ns: About how far points of the timeline are apart.
        most_points: The most points that it may have.
        last_ns: When its last point was; -1 without one.
        due_ns: When the next point is due.
    """

    counts: Counts = field(default_factory=Counts)
    waits: BatchedHistogram = field(default_factory=BatchedHistogram)
    first_tokens: BatchedHistogram = field(default_factory=BatchedHistogram)
    ends: BatchedHistogram = field(default_factory=BatchedHistogram)
    live_area: int = 0
    peak_live: int = 0
    interval_ns: int = _FIRST_INTERVAL_NS
    most_points: int = MOST_POINTS
    last_ns: int = -1
    due_ns: int = 0
    _points: list[_Row] = field(default_factory=list)

    def add(self, point: _Row) -> None:
        """Add one point to the timeline; when there are too many, those close together are joined."""
        self._points.append(point)
        self.last_ns = point[0]
        while len(self._points) >= self.most_points:
            self._thin()
        self.due_ns = point[0] + self.interval_ns

    def _thin(self) -> None:
        """Double the interval, and join neighbours whose stretches together are no longer."""
        self.interval_ns = max(2 * self.interval_ns, self.last_ns // self.most_points)
        first, *others = self._points
        kept = [first]
        start = first[0]  # the first stays alone
        for point in others:
            if len(kept) > 1 and point[0] - start <= self.interval_ns:
                kept[-1] = _joined(kept[-1], point)
            else:
                start = kept[-1][0]
                kept.append(point)
        self._points = kept

    @property
    def points(self) -> tuple[Point, ...]:
        """The timeline so far."""
        return tuple([Point(*row) for row in self._points])


def _joined(first: _Row, second: _Row) -> _Row:
    """Return one point about the stretches of two neighbours."""
    _, _, _, _, _, live, low, high, reserved_low, reserved_high, least, most, refused = first
    at, now_live, committed, reserved, sequences, *more = second
    return (
        *(at, now_live, committed, reserved, sequences),
        max(live, more[0]),
        min(low, more[1]),
        max(high, more[2]),
        min(reserved_low, more[3]),
        max(reserved_high, more[4]),
        min(least, more[5]),
        max(most, more[6]),
        refused + more[7],
    )


class Sampler:
    """Adds up the sequences of a replay, which also grow between its calls.

    Args:
        recorder: Where what is seen goes.
        account: The byte totals.
        used: The bytes of a sequence by its length.
        step_ns: A decode step.

    Attributes:
        live: The bytes of tokens of the sequences that run.
        most_live: The most of them since the last point of the timeline, where something went.
    """

    def __init__(
        self,
        recorder: Recorder,
        account: Account,
        used: UsedBytes,
        step_ns: int,
    ) -> None:
        self._recorder = recorder
        self._account = account
        self._used = used
        self._step_ns = step_ns
        self.live = LiveBytes(used, step_ns)
        self.most_live = 0
        self._refused = 0  # until then

    def sample(self, since: int, now: int) -> None:
        """Add a point to the timeline, as one is due: nothing changed from *since* to *now*.

        Where nothing happened for long, what was before has a point of its own, so that the quiet
        stretch does not seem to have its most.
        """
        recorder = self._recorder
        if since > recorder.last_ns and now - since >= recorder.interval_ns:
            self._add_point(since, self.live_before(since + 1))
        self._add_point(now, self.live_before(now))

    def finish(self) -> None:
        """Add the last point of the timeline, of what is left."""
        now = self._account.now
        self._add_point(now, self.live_before(now + 1))

    def _add_point(self, at: int, live: int) -> None:
        """Add a point about the time since the last; *live* is what is live at its end."""
        account, counts = self._account, self._recorder.counts
        stretch = account.end_stretch()
        refused = counts.refused_admissions + counts.refused_steps
        self._recorder.add(
            (
                *(at, live, account.committed, account.reserved, account.sequences),
                max(self.most_live, live),
                *(stretch.committed_min, stretch.committed_max),
                *(stretch.reserved_min, stretch.reserved_max),
                *(stretch.sequences_min, stretch.sequences_max),
                refused - self._refused,
            )
        )
        self._recorder.peak_live = max(self._recorder.peak_live, live)
        self.most_live = 0
        self._refused = refused

    def live_before(self, now: int) -> int:
        """Return the bytes of tokens just before *now*, shared ones once."""
        return self.live.before(now) - self._account.overlap

    def note_peak(self, now: int) -> None:
        """Note what is live before something is released: in between, it only grows."""
        account = self._account
        if account.committed <= self.most_live or now == self._recorder.last_ns:
            return  # the last point of the timeline has it
        live = self.live_before(now)
        if live > account.committed:
            raise account.breach()
        self.most_live = max(self.most_live, live)
        self._recorder.peak_live = max(self._recorder.peak_live, live)

    def begin(self, seq: RunningSequence) -> None:
        """Follow *seq* in the segment that it begins now."""
        self.live.add(seq)

    def settle(self, seq: RunningSequence, now: int) -> int:
        """End the segment of *seq*; return the steps of it that are complete."""
        self.live.remove(seq)
        step = self._step_ns
        begun = seq.steps_before(now, step)
        if seq.stalled:
            area = self._used.at(seq.length) * (now - seq.start_ns)
            self._recorder.counts.stalled_ns += now - seq.start_ns
        else:
            prefilled = min(now, seq.decode_ns) - seq.start_ns
            area = self._used.at(seq.length) * prefilled
        complete = begun
        if begun:
            last_ns = now - seq.decode_ns - (begun - 1) * step
            complete = begun - (last_ns < step)
            area += self._used.over(seq.length, begun - 1) * step
            area += self._used.at(seq.length + begun) * last_ns
        if complete and not seq.answered:
            seq.answered = True
            self._recorder.first_tokens.add(seq.decode_ns + step - seq.request.arrival_ns)
        self._recorder.live_area += area
        self._recorder.counts.decode_steps += complete
        return complete
