"""What a replay measures: requests by outcome, waits, live bytes, and points over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from vmtool.histograms import BatchedHistogram
from vmtool.results.kv_replay import Point

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
