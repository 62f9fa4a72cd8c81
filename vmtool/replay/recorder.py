"""What is measured on the way: requests by outcome, waits, live bytes, and points over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from vmtool.stats import Histogram

if TYPE_CHECKING:
    from vmtool.replay.results import Point

#: Points of the timeline are kept between half as many and so many.
MOST_POINTS: Final = 512
_FIRST_INTERVAL_NS: Final = 10**6


@dataclass(slots=True)
class Counts:
    """How requests ended, and what was in their way; see :class:`vmtool.replay.results.Requests`."""

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
    """Everything but the bytes that the account knows.

    Attributes:
        counts: Of requests and refusals.
        waits: From arrival to first admission, in nanoseconds.
        first_tokens: From arrival to the end of the first decode step.
        ends: From arrival to the last token, of those that got all.
        live_area: Integral of the bytes of tokens over time, prefixes counted for each sequence.
        peak_live: The most bytes of tokens at once, shared ones once.
        interval_ns: About how far points of the timeline are apart.
        last_ns: Where its last point is; -1 without one.
    """

    counts: Counts = field(default_factory=Counts)
    waits: Histogram = field(default_factory=Histogram)
    first_tokens: Histogram = field(default_factory=Histogram)
    ends: Histogram = field(default_factory=Histogram)
    live_area: int = 0
    peak_live: int = 0
    interval_ns: int = _FIRST_INTERVAL_NS
    last_ns: int = -1
    _points: list[Point] = field(default_factory=list)
    _due: int = 0

    def due(self, now: int) -> bool:
        """Tell whether the timeline wants a point at *now*."""
        return now >= self._due

    def add(self, point: Point) -> None:
        """Add one point to the timeline; when there are too many, those close together are joined."""
        self._points.append(point)
        self.last_ns = point.at_ns
        while len(self._points) >= MOST_POINTS:
            self._thin()
        self._due = point.at_ns + self.interval_ns

    def _thin(self) -> None:
        """Double the interval, and join neighbours whose stretches together are no longer."""
        self.interval_ns = max(2 * self.interval_ns, self.last_ns // MOST_POINTS)
        first, *others = self._points
        kept = [first]
        start = first.at_ns  # the first stays alone
        for point in others:
            if len(kept) > 1 and point.at_ns - start <= self.interval_ns:
                kept[-1] = _joined(kept[-1], point)
            else:
                start = kept[-1].at_ns
                kept.append(point)
        self._points = kept

    @property
    def points(self) -> tuple[Point, ...]:
        """The timeline so far."""
        return tuple(self._points)


def _joined(first: Point, second: Point) -> Point:
    """Return one point about the stretches of two neighbours."""
    return replace(
        second,
        live_max_bytes=max(first.live_max_bytes, second.live_max_bytes),
        committed_min_bytes=min(first.committed_min_bytes, second.committed_min_bytes),
        committed_max_bytes=max(first.committed_max_bytes, second.committed_max_bytes),
        reserved_min_bytes=min(first.reserved_min_bytes, second.reserved_min_bytes),
        reserved_max_bytes=max(first.reserved_max_bytes, second.reserved_max_bytes),
        sequences_min=min(first.sequences_min, second.sequences_min),
        sequences_max=max(first.sequences_max, second.sequences_max),
        refused=first.refused + second.refused,
    )
