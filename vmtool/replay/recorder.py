"""What is measured on the way: requests by outcome, waits, live bytes, and points over time."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    prompt_tokens: int = 0


@dataclass(slots=True)
class Recorder:
    """Everything but the bytes that the account knows.

    Attributes:
        counts: Of requests and refusals.
        waits: From arrival to first admission, in nanoseconds.
        live_area: Integral of the bytes of tokens over time, prefixes counted for each sequence.
        peak_live: The most bytes of tokens at once, shared ones once.
    """

    counts: Counts = field(default_factory=Counts)
    waits: Histogram = field(default_factory=Histogram)
    live_area: int = 0
    peak_live: int = 0
    _points: list[Point] = field(default_factory=list)
    _interval: int = _FIRST_INTERVAL_NS
    _due: int = 0

    def due(self, now: int) -> bool:
        """Tell whether the timeline wants a point at *now*."""
        return now >= self._due

    def add(self, point: Point) -> None:
        """Add one point to the timeline; when there are too many, every second one goes."""
        self._points.append(point)
        if len(self._points) >= MOST_POINTS:
            del self._points[1::2]
            self._interval = max(2 * self._interval, point.at_ns // MOST_POINTS)
        self._due = point.at_ns + self._interval

    @property
    def points(self) -> tuple[Point, ...]:
        """The timeline so far."""
        return tuple(self._points)
