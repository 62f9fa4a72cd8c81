"""The confidence interval of a percentile: intervals from ranks, which assume no shape of distribution.

The number of samples below the true quantile *p* has the binomial distribution of *n* and *p*, so
two ranks can be chosen between which the quantile lies with a given probability, whatever the
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

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Above this standard deviation the normal distribution, with a correction for skew, replaces the
#: exact sum: it is then off by far less than the rank by which the result is widened.
EXACT_DEVIATION = 200
# A binomial has less than 1e-14 of its mass further below its mean than this.
_TAIL_DEVIATIONS = 8


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which values, in ns, a quantile lies; ``None`` where the samples give no bound."""

    low: int
    high: int | None


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
    if deviation > EXACT_DEVIATION:
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


def median_interval(values: Sequence[int], confidence: float) -> Interval | None:
    """Return where the median of what *values* were drawn from lies; ``None`` if they are too few.

    Below seven values even their extremes do not enclose the median with 97.5 %.
    """
    low, high = quantile_ranks(len(values), Fraction(1, 2), confidence)
    if low is None or high is None:
        return None
    ordered = sorted(values)
    return Interval(ordered[low - 1], ordered[high - 1])
