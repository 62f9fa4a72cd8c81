"""An exact permutation test: by what factor one set of runs is slower, with an interval.

A run gives one figure, such as its median. If nothing changed, every way to divide all figures into
two sets of these sizes was equally likely, so the difference between the means of their logarithms
is held against that of every other division (Pitman, "Significance tests which may be applied to
samples from any populations", 1937). The interval holds every factor that the test does not reject:
its ends are ordered differences between the means of equally large subsets of the two sets, which
is what dividing anew comes to. The estimate is Hodges and Lehmann's, the median of all differences
between a figure of one set and one of the other (1963). No shape of the noise is assumed, and the
noise between processes counts, which no number of cycles within one process shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
