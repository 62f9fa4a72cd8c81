"""Statistics of many samples: bounded histograms with percentiles, slopes with an interval; pure."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Each octave of the histogram has ``2 ** SUB_BUCKET_BITS`` buckets, so that a bucket is at most
#: 1/64 (1.6 %) as wide as the values in it; values below 128 are exact.
SUB_BUCKET_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << SUB_BUCKET_BITS
_VALUE_BITS: Final = 63
_BUCKETS: Final = (_VALUE_BITS - SUB_BUCKET_BITS + 1) << SUB_BUCKET_BITS
_MAX_VALUE: Final = (1 << _VALUE_BITS) - 1

#: Fewer samples than this cannot distinguish a 99.9th percentile from the maximum.
P999_SAMPLES: Final = 10_000
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


class Histogram:
    """Counts of non-negative integers in log-linear buckets: any number of samples in 30 KiB.

    Count, minimum, maximum, sum and sum of squares are exact; a percentile is off by at most one
    bucket, which is 1/64 of its value.
    """

    __slots__ = ("_counts", "count", "maximum", "minimum", "squares", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.total = 0
        self.squares = 0
        self.minimum = 0
        self.maximum = 0

    def extend(self, samples: Sequence[int]) -> None:
        """Add *samples*, each from 0 to 2**63 - 1."""
        if not samples:
            return
        counts = self._counts
        for value in samples:
            shift = value.bit_length() - SUB_BUCKET_BITS - 1
            if shift > 0:
                counts[(shift << SUB_BUCKET_BITS) + (value >> shift)] += 1
            else:
                counts[value] += 1
        low, high = min(samples), max(samples)
        self.minimum = low if not self.count else min(self.minimum, low)
        self.maximum = max(self.maximum, high)
        self.count += len(samples)
        self.total += sum(samples)
        self.squares += sum(value * value for value in samples)

    def merge(self, other: HistogramData) -> None:
        """Add the samples of another histogram."""
        if not other.count:
            return
        for index, count in other.buckets:
            self._counts[index] += count
        self.minimum = other.min_ns if not self.count else min(self.minimum, other.min_ns)
        self.maximum = max(self.maximum, other.max_ns)
        self.count += other.count
        self.total += other.sum_ns
        self.squares += other.sum_squares

    def data(self) -> HistogramData:
        """Return the counts as a frozen value, empty buckets left out."""
        return HistogramData(
            count=self.count,
            min_ns=self.minimum,
            max_ns=self.maximum,
            sum_ns=self.total,
            sum_squares=self.squares,
            buckets=tuple((i, count) for i, count in enumerate(self._counts) if count),
        )


@dataclass(frozen=True, slots=True)
class HistogramData:
    """A histogram of nanoseconds as it is stored.

    Attributes:
        count: Samples.
        min_ns: The smallest, exact.
        max_ns: The largest, exact.
        sum_ns: Their sum, exact.
        sum_squares: The sum of their squares, exact.
        buckets: Pairs of a bucket's index and its count, ascending. Bucket *i* begins at
            :func:`bucket_start` of *i* and ends before that of *i* + 1.
        sub_bucket_bits: Buckets per octave, as a power of two.
    """

    count: int
    min_ns: int
    max_ns: int
    sum_ns: int
    sum_squares: int
    buckets: tuple[tuple[int, int], ...]
    sub_bucket_bits: int = SUB_BUCKET_BITS

    def __post_init__(self) -> None:
        """Refuse data that contradict themselves, as from a file."""
        if self.sub_bucket_bits != SUB_BUCKET_BITS:
            raise ValueError(f"sub_bucket_bits is {self.sub_bucket_bits}, not {SUB_BUCKET_BITS}")
        if min(self.count, self.min_ns, self.sum_ns, self.sum_squares) < 0:
            raise ValueError("a count or a sum is under 0")
        indexes = [index for index, _ in self.buckets]
        if any(low >= high for low, high in pairwise([-1, *indexes])):
            raise ValueError("the buckets do not ascend")
        if indexes and indexes[-1] >= _BUCKETS:
            raise ValueError(f"bucket {indexes[-1]} is beyond the last, {_BUCKETS - 1}")
        if any(count < 1 for _, count in self.buckets):
            raise ValueError("a bucket is empty")
        if sum(count for _, count in self.buckets) != self.count:
            raise ValueError("the buckets do not add up to count")
        if indexes and not (
            bucket_start(indexes[0]) <= self.min_ns < bucket_start(indexes[0] + 1)
            and bucket_start(indexes[-1]) <= self.max_ns < bucket_start(indexes[-1] + 1)
        ):
            raise ValueError("min_ns and max_ns are not in the first and the last bucket")

    def percentile(self, percent: float) -> int | None:
        """Return the *percent*-th percentile in whole nanoseconds; ``None`` without samples.

        Ranks between two samples are interpolated, as for the median of an even number; within a
        bucket samples count as evenly spread.
        """
        if not self.count:
            return None
        rank = percent / 100 * (self.count - 1)
        below = math.floor(rank)
        low = self._at_rank(below)
        high = self._at_rank(min(below + 1, self.count - 1)) if rank > below else low
        return round(low + (rank - below) * (high - low))

    def log2_buckets(self) -> tuple[tuple[int, int, int], ...]:
        """Return ``(start_ns, end_ns, count)`` per power of two, from the first used to the last."""
        if not self.count:
            return ()
        octaves: dict[int, int] = {}
        for index, count in self.buckets:
            # Bucket 0 holds the value 0, which belongs with 1: no power of two is below it.
            octave = max(bucket_start(index).bit_length() - 1, 0)
            octaves[octave] = octaves.get(octave, 0) + count
        return tuple(
            (1 << octave if octave else 0, 2 << octave, octaves.get(octave, 0))
            for octave in range(min(octaves), max(octaves) + 1)
        )

    def _at_rank(self, rank: int) -> float:
        if rank <= 0:
            return self.min_ns
        if rank >= self.count - 1:
            return self.max_ns
        before = 0
        for index, count in self.buckets:
            if rank < before + count:
                start, end = bucket_start(index), bucket_start(index + 1)
                within = 0.0 if end - start == 1 else (rank - before + 0.5) / count
                value = start + within * (end - start)
                return min(max(value, self.min_ns), self.max_ns)
            before += count
        return self.max_ns


def bucket_start(index: int) -> int:
    """Return the smallest value that bucket *index* counts."""
    if index < 2 * _SUB_BUCKETS:
        return index
    shift = (index >> SUB_BUCKET_BITS) - 1
    return (index - (shift << SUB_BUCKET_BITS)) << shift


@dataclass(frozen=True, slots=True)
class Summary:
    """The usual figures of one histogram, in whole nanoseconds; all ``None`` without samples.

    Attributes:
        p999_ns: ``None`` below 10,000 samples, where it equals the maximum.
    """

    samples: int
    min_ns: int | None
    median_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    p999_ns: int | None
    max_ns: int | None
    mean_ns: int | None
    stddev_ns: int | None


def summarize(data: HistogramData) -> Summary:
    """Return the summary of *data*."""
    n = data.count
    if not n:
        return Summary(0, *[None] * 8)
    # Exact until the last step: the difference of two large sums must not lose its digits.
    variance = (n * data.sum_squares - data.sum_ns**2) // (n * max(n - 1, 1))
    return Summary(
        samples=n,
        min_ns=data.min_ns,
        median_ns=data.percentile(50),
        p90_ns=data.percentile(90),
        p99_ns=data.percentile(99),
        p999_ns=data.percentile(99.9) if n >= P999_SAMPLES else None,
        max_ns=data.max_ns,
        mean_ns=round(data.sum_ns / n),
        stddev_ns=math.isqrt(variance),
    )


def summarize_samples(samples: Sequence[int]) -> Summary:
    """Return the summary of *samples* in nanoseconds."""
    histogram = Histogram()
    histogram.extend(samples)
    return summarize(histogram.data())


def merged(parts: Iterable[HistogramData]) -> HistogramData:
    """Return one histogram of all samples of *parts*."""
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    return whole.data()


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


def slope(points: Sequence[tuple[float, float]], *, confidence: float = 0.99) -> Slope | None:
    """Return the Theil-Sen slope of *points*, or ``None`` for fewer than six of them.

    The median of the slopes of all pairs (Theil 1950) ignores a warm-up step and single outliers,
    which least squares would call growth. The interval (Sen 1968) comes from the distribution of
    Kendall's S, corrected for ties, and assumes no shape of the noise. It does assume that each point
    has noise of its own. Where points rise and fall in waves, as a heap does between two collections,
    the interval is that of as many points as are worth one of their own.
    """
    return pooled_slope([points], confidence=confidence)


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

    Only pairs within a series have a slope; Kendall's S and its variance add up over the series
    (van Belle and Hughes, Water Resources Research 20, 1984).

    Args:
        series: Such as the runs of one plan.
        confidence: Of the interval.

    Returns:
        The slope, or ``None`` where there are too few points for an interval of that confidence.
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
