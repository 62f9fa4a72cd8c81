"""How fast a quantity grows: slopes with an interval, and whether growth slows down; pure."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Theil and Sen look at every pair: more points than this are thinned evenly first.
_SLOPE_POINTS: Final = 400
#: The correlation of neighbours above which it is not chance (95 %, of one side; times the root of
#: the number of points), and the most that is reckoned with: a random walk would have 1.
_SIGNIFICANT: Final = 1.645
_MOST_CORRELATION: Final = 0.98
#: The shape of growth is judged by this many medians, or up to twice as many.
_SHAPE_POINTS: Final = 32
#: Fewer points of a quarter say nothing about its growth.
_LEAST_QUARTER: Final = 6


@dataclass(frozen=True, slots=True)
class Slope:
    """How fast a quantity grows, with an interval that covers the true value with *confidence*.

    Attributes:
        per_step: Growth per unit of x.
        low: Lower end of the interval.
        high: Upper end.
        points: How many points it rests on.
        confidence: Such as 0.99.
    """

    per_step: float
    low: float
    high: float
    points: int
    confidence: float

    @property
    def rises(self) -> bool:
        """Whether growth is significant: the whole interval is above zero."""
        return self.low > 0


def _falls(points: Sequence[tuple[float, float]]) -> bool:
    """Return whether y falls by more than a tenth of what it rises from the first point to the last.

    What never falls has no waves: a leak that grows in steps looks like them beside its slope.
    """
    fall = max(top - y for top, (_, y) in zip(_tops(points), points, strict=True))
    return fall > abs(points[-1][1] - points[0][1]) / 10


def _tops(points: Sequence[tuple[float, float]]) -> list[float]:
    return list(itertools.accumulate((y for _, y in points), max))


def _waves(points: Sequence[tuple[float, float]], per_step: float) -> float:
    """Return how many points are worth one with noise of its own, at least 1.

    It is ``(1 + r) / (1 - r)`` (Bayley and Hammersley, 1946), where *r* is the correlation of each
    point's noise with that of the next, by ranks and where it is significant.
    """
    noise = [y - per_step * x for x, y in points]
    ordered = sorted(noise)
    ranks = [
        bisect_left(ordered, each) + bisect_right(ordered, each) - len(noise) for each in noise
    ]
    square = sum(rank * rank for rank in ranks)
    if not square:
        return 1.0
    r = min(sum(a * b for a, b in pairwise(ranks)) / square, _MOST_CORRELATION)
    return (1 + r) / (1 - r) if r * math.sqrt(len(noise)) > _SIGNIFICANT else 1.0


def pooled_slope(
    series: Sequence[Sequence[tuple[float, float]]], *, confidence: float = 0.99
) -> Slope | None:
    """Return the Theil-Sen slope that several *series* share, each with a level of its own.

    The median of the slopes of all pairs (Theil 1950) ignores a warm-up step and single outliers,
    which least squares would call growth. The interval (Sen 1968) comes from the distribution of
    Kendall's S, corrected for ties, and assumes no shape of the noise. Only pairs within a series have
    a slope; S and its variance add up over the series (van Belle and Hughes, Water Resources Research
    20, 1984).

    The interval does assume that each point has noise of its own. Where points rise and fall in waves,
    as a heap does between two collections, it is that of as many points as are worth one of their own.

    Args:
        series: Such as the runs of one plan.
        confidence: Of the interval.

    Returns:
        The slope, or ``None`` where there are too few points for an interval of that confidence: at
        99 %, fewer than six in a single series.
    """
    thinned = _thinned(series)
    found = _sen_slope(thinned, confidence, 1.0)
    if found is None:
        return None
    waves = [_waves(points, found.per_step) for points in thinned if _falls(points)]
    return _sen_slope(thinned, confidence, max(waves)) if waves else found


def _sen_slope(
    thinned: Sequence[Sequence[tuple[float, float]]], confidence: float, waves: float
) -> Slope | None:
    """Return the slope of *thinned* series of which *waves* points are worth one with its own noise."""
    slopes = sorted(itertools.chain.from_iterable(map(_pair_slopes, thinned)))
    quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
    untied = sum(n * (n - 1) * (2 * n + 5) for n in map(len, thinned)) / 18
    if not slopes or quantile * math.sqrt(untied) >= len(slopes):
        return None
    variance = (
        untied
        - sum(
            t * (t - 1) * (2 * t + 5)
            for points in thinned
            for t in Counter(y for _, y in points).values()
        )
        / 18
    )
    reach = quantile * math.sqrt(max(variance, 0.0) * waves)
    last = len(slopes) - 1
    low = slopes[max(math.floor((len(slopes) - reach) / 2), 0)]
    high = slopes[min(math.ceil((len(slopes) + reach) / 2), last)]
    return Slope(median(slopes), low, high, sum(map(len, thinned)), confidence)


@dataclass(frozen=True, slots=True)
class Growth:
    """How a quantity grew while it was watched.

    Attributes:
        slope: How fast.
        grown: What the slope makes of the longest series.
        lasts: Whether it is growth that a leak makes; see :func:`growth`.
    """

    slope: Slope
    grown: float
    lasts: bool


def growth(series: Sequence[Sequence[tuple[float, float]]], least: float) -> Growth | None:
    """Return how *series* grow, or ``None`` where there are too few points for a slope.

    Growth lasts if its interval is above zero and the slope makes at least *least* of the longest
    series, also at the pace of the later halves. A heap that warms up grows ever less, and a leak
    goes on: growth that slows down in every series (see :func:`slows_down`) does not last either.
    Nothing tells a leak from waves that are longer than what was watched.

    Args:
        series: Points of (time or cycle, amount), such as the runs of one plan.
        least: Less than this is no growth.
    """
    found = pooled_slope(series)
    if found is None:
        return None
    span = max(points[-1][0] - points[0][0] for points in series)
    lately = median_slope([points[len(points) // 2 :] for points in series])
    lasts = (
        found.rises
        and min(found.per_step, lately) * span >= least
        and not all(map(slows_down, series))
    )
    return Growth(found, found.per_step * span, lasts)


def median_slope(series: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the Theil-Sen slope of any number of points in *series* alone; 0 where it has none."""
    slopes = itertools.chain.from_iterable(map(_pair_slopes, _thinned(series)))
    return median(list(slopes) or [0.0])


def slows_down(points: Sequence[tuple[float, float]]) -> bool:
    """Return whether growth in the last quarter is less than half of that in the quarter before.

    The difference has to exceed what noise makes of it: twice the standard deviation, where the
    steps between points vary as independently as their second differences say. A heap that warms
    up towards a level slows down so, and memory that is lost at random times does not.

    Args:
        points: In order, at about equal distances.
    """
    size = max(len(points) // _SHAPE_POINTS, 1)
    blocks = [points[at : at + size] for at in range(0, len(points), size)]
    shape = [(median(x for x, _ in block), median(y for _, y in block)) for block in blocks]
    quarter = len(shape) // 4
    if quarter < _LEAST_QUARTER:
        return False
    half = shape[-1 - 2 * quarter :]
    before, lately = (
        median_slope([part]) * (part[-1][0] - part[0][0])
        for part in (half[: quarter + 1], half[quarter:])
    )
    turns = [
        a - 2 * b + c for (_, a), (_, b), (_, c) in zip(half, half[1:], half[2:], strict=False)
    ]
    noise = math.sqrt(sum(turn * turn for turn in turns) / len(turns) * quarter)
    return lately < before / 2 and before - lately > 2 * noise


def _thinned(
    series: Sequence[Sequence[tuple[float, float]]],
) -> list[Sequence[tuple[float, float]]]:
    most = max(_SLOPE_POINTS // max(len(series), 1), 2)
    return [points[:: -(-len(points) // most) or 1] for points in series]


def _pair_slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the slopes between all pairs of *points*, ascending."""
    return sorted(
        (y2 - y1) / (x2 - x1)
        for i, (x1, y1) in enumerate(points)
        for x2, y2 in points[i + 1 :]
        if x2 != x1
    )
