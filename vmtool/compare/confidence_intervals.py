"""Distribution-free confidence intervals: for a percentile, and for the ratio of two sets of runs.

The number of samples below the true quantile *p* has the binomial distribution of *n* and *p*, so
two ranks can be chosen between which the quantile lies with a given probability, whatever the
latencies look like (Hahn and Meeker, Statistical Intervals, 1991, section 5.2; David and Nagaraja,
Order Statistics, 2003, section 7.1). The binomial is discrete, so the probability is at least the
one asked for.

By what factor one set of runs is slower is found by an exact permutation test. A run gives one figure,
such as its median. If nothing changed, every way to divide all figures into two sets of these sizes was
equally likely, so the difference between the means of their logarithms is held against that of every
other division (Pitman, "Significance tests which may be applied to samples from any populations", 1937).
The interval holds every factor that the test does not reject: its ends are ordered differences between
the means of equally large subsets of the two sets, which is what dividing anew comes to. The estimate is
Hodges and Lehmann's, the median of all differences between a figure of one set and one of the other
(1963). No shape of the noise is assumed, and the noise between processes counts, which no number of
cycles within one process shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from random import Random
from statistics import NormalDist, median, stdev
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Of every interval, at least.
DEFAULT_CONFIDENCE: Final = 0.95
#: Three against three can be divided in 20 ways only, so that nothing would ever be significant at
#: 95 %.
RUNS_NEEDED: Final = 4
#: More divisions than this are not counted out but sampled.
_MOST_DIVISIONS: Final = 100_000
_SAMPLED_DIVISIONS: Final = 20_000
#: Above this standard deviation the normal distribution, with a correction for skew, replaces the
#: exact sum: it is then off by far less than the rank by which the result is widened.
EXACT_DEVIATION = 200
# A binomial has less than 1e-14 of its mass further below its mean than this.
_TAIL_DEVIATIONS = 8


@dataclass(frozen=True, slots=True)
class Shift:
    """The factor from one set of runs to another.

    Attributes:
        ratio: The estimate.
        low: Lower end of its interval; ``None`` where the runs are too few for one.
        high: Upper end.
    """

    ratio: float
    low: float | None
    high: float | None


def shift(before: Sequence[float], after: Sequence[float], confidence: float) -> Shift:
    """Return the factor from *before* to *after*, all positive, with its interval."""
    old, new = ([math.log(value) for value in values] for values in (before, after))
    ratio = math.exp(median(y - x for x in old for y in new))
    divisions = math.comb(len(old) + len(new), len(old))
    if divisions <= _MOST_DIVISIONS:
        differences = sorted(_subset_differences(old, new))
    else:
        differences = sorted(_sampled_differences(old, new))
        divisions = len(differences) + 1
    # The division that was observed is one of them, hence the rank is of all but that one.
    rank = math.floor((1 - confidence) / 2 * divisions + 1e-9)
    if rank < 1 or min(len(old), len(new)) < 2:
        return Shift(ratio, None, None)
    return Shift(ratio, math.exp(differences[rank - 1]), math.exp(differences[-rank]))


def _subset_differences(old: Sequence[float], new: Sequence[float]) -> Iterator[float]:
    """Yield the difference of means of every two subsets of the same size."""
    for size in range(1, min(len(old), len(new)) + 1):
        sums = [sum(chosen) for chosen in combinations(old, size)]
        for chosen in combinations(new, size):
            total = sum(chosen)
            yield from ((total - other) / size for other in sums)


def _sampled_differences(old: Sequence[float], new: Sequence[float]) -> Iterator[float]:
    """Yield those of divisions drawn at random; the same ones each time."""
    random = Random(0)  # noqa: S311 - a test is to be repeated, nothing is secret
    count = len(old)
    places = range(count + len(new))
    for _ in range(_SAMPLED_DIVISIONS):
        chosen = set(random.sample(places, count))
        leaving = [old[i] for i in range(count) if i not in chosen]
        joining = [new[i - count] for i in chosen if i >= count]
        if leaving:
            yield (sum(joining) - sum(leaving)) / len(leaving)


def location(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the interval of the middle of what *values* were drawn from, symmetric in logarithms.

    Its ends are ordered means of the subsets of *values* (Hartigan, "Using subsample values as
    typical values", 1969). Below six values it is from the least to the greatest: for five that has
    a confidence of 94 %.
    """
    logs = [math.log(value) for value in values]
    if len(logs) < 6:
        return min(values), max(values)
    if len(logs) <= 14:
        means = [
            sum(chosen) / size
            for size in range(1, len(logs) + 1)
            for chosen in combinations(logs, size)
        ]
    else:
        random = Random(0)  # noqa: S311 - likewise
        means = []
        for _ in range(_SAMPLED_DIVISIONS):
            chosen_logs = [value for value in logs if random.getrandbits(1)]
            if chosen_logs:
                means.append(sum(chosen_logs) / len(chosen_logs))
    means.sort()
    rank = max(math.floor((1 - confidence) / 2 * (len(means) + 1) + 1e-9), 1)
    return math.exp(means[rank - 1]), math.exp(means[-rank])


def variation(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation of *values*; ``None`` for fewer than two."""
    if len(values) < 2:
        return None
    return stdev(values) / (sum(values) / len(values))


def fewest_runs(confidence: float) -> int:
    """Return with how many runs a side a verdict is possible at all with that *confidence*."""
    runs = RUNS_NEEDED
    while math.floor((1 - confidence) / 2 * math.comb(2 * runs, runs) + 1e-9) < 1:
        runs += 1
    return runs


def runs_needed(cv: float, change: float, *, confidence: float, power: float = 0.9) -> int:
    """Return how many runs a side show a *change*, such as 0.2, with that *power*.

    The usual formula for two means of normal samples, on logarithms.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(power)
    needed = 2 * (reach * cv / math.log1p(change)) ** 2 + 1
    return max(math.ceil(needed), fewest_runs(confidence))


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
