"""How well a percentile is known: intervals from ranks, which assume no shape of distribution.

The number of samples below the true quantile *p* has the binomial distribution of *n* and *p*, so
two ranks can be chosen between which the quantile lies with a known probability, whatever the
latencies look like (Hahn and Meeker, Statistical Intervals, 1991, section 5.2; David and Nagaraja,
Order Statistics, 2003, section 7.1). The binomial is discrete, so the probability is at least the
one asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING

from vmtool.stats import bucket_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.stats import HistogramData

# Above this standard deviation the normal distribution, with a correction for skew, replaces the
# exact sum: it is then off by far less than the rank by which the result is widened.
_EXACT_DEVIATION = 200
# A binomial has less than 1e-14 of its mass further below its mean than this.
_TAIL_DEVIATIONS = 8


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which values, in ns, a quantile lies; ``None`` where the samples give no bound."""

    low: int
    high: int | None

    def hull(self, other: Interval) -> Interval:
        """Return the smallest interval that holds both."""
        unbounded = self.high is None or other.high is None
        high = None if unbounded else max(self.high or 0, other.high or 0)
        return Interval(min(self.low, other.low), high)


def quantile_ranks(
    count: int, quantile: Fraction, confidence: float
) -> tuple[int | None, int | None]:
    """Return the ranks (from 1) of the samples that enclose *quantile*.

    A side is ``None`` when even the smallest, or the largest, of *count* samples is no bound.

    Args:
        count: Samples, independent of each other.
        quantile: Above 0 and below 1.
        confidence: The least probability that the quantile is enclosed.
    """
    tail = (1 - confidence) / 2
    low = _rank_below(count, quantile, tail)
    high = _rank_below(count, 1 - quantile, tail)
    return low or None, count + 1 - high if high else None


def _rank_below(count: int, quantile: Fraction, tail: float) -> int:
    """Return the highest rank whose sample exceeds the quantile with probability <= *tail*."""
    p = float(quantile)
    mean, deviation = count * p, math.sqrt(count * p * (1 - p))
    if deviation > _EXACT_DEVIATION:
        z = NormalDist().inv_cdf(tail)
        skew = (z * z - 1) * (1 - 2 * p) / 6
        return max(math.floor(mean + z * deviation + skew) - 1, 0)
    start = max(math.floor(mean - _TAIL_DEVIATIONS * deviation - 40), 0)
    term = math.exp(
        math.lgamma(count + 1)
        - math.lgamma(start + 1)
        - math.lgamma(count - start + 1)
        + start * math.log(p)
        + (count - start) * math.log1p(-p)
    )
    total = 0.0
    odds = p / (1 - p)
    for below in range(start, count + 1):
        total += term
        if total > tail:
            return below
        term *= odds * (count - below) / (below + 1)
    return count


def histogram_interval(
    data: HistogramData, quantile: Fraction, confidence: float, *, worth: int | None = None
) -> Interval:
    """Return where *quantile* lies by the samples in *data*.

    The bounds are the outer edges of the buckets that hold the two samples, so what the histogram
    does not tell widens the interval and never narrows it.

    Args:
        data: The samples.
        quantile: Above 0 and below 1.
        confidence: The least probability that the quantile is enclosed.
        worth: How many independent samples they are worth (:func:`independent_samples`); all of
            them if not given.
    """
    count = data.count if worth is None else min(worth, data.count)
    low, high = quantile_ranks(count, quantile, confidence)
    return Interval(
        0 if low is None else _bucket_of(data, max(low * data.count // count, 1))[0],
        None if high is None else _bucket_of(data, -(-high * data.count // count))[1],
    )


def independent_samples(
    data: HistogramData, round_medians: Sequence[int], confidence: float
) -> int:
    """Return how many independent samples those in *data* are worth, at most their number.

    Neighbouring samples share the state of the machine. If they did not, the medians of the rounds
    would enclose the median of all about as closely as the samples do: by the square root of
    pi / 2, as the median of medians has so much the larger error. The square of what they miss
    that by is the design effect (Kish, Survey Sampling, 1965, section 8.2), by which the number
    of samples is divided.
    """
    rounds = median_interval(round_medians, confidence)
    samples = histogram_interval(data, Fraction(1, 2), confidence)
    if rounds is None or rounds.high is None or samples.high is None:
        return data.count
    wide, narrow = rounds.high - rounds.low, max(samples.high - samples.low, 1)
    effect = (wide / narrow) ** 2 / (math.pi / 2)
    return max(math.floor(data.count / max(effect, 1)), 1)


def median_interval(values: Sequence[int], confidence: float) -> Interval | None:
    """Return where the median of what *values* were drawn from lies; ``None`` if they are too few.

    Below seven values even their extremes do not enclose the median with 97.5 %.
    """
    low, high = quantile_ranks(len(values), Fraction(1, 2), confidence)
    if low is None or high is None:
        return None
    ordered = sorted(values)
    return Interval(ordered[low - 1], ordered[high - 1])


def _bucket_of(data: HistogramData, rank: int) -> tuple[int, int]:
    """Return the least and the greatest value that the sample at *rank* (from 1) can have."""
    before = 0
    for index, count in data.buckets:
        before += count
        if rank <= before:
            least, greatest = bucket_start(index), bucket_start(index + 1) - 1
            return max(least, data.min_ns), min(greatest, data.max_ns)
    return data.min_ns, data.max_ns
