"""Robust statistics across machines: location and scale, outliers, and clusters.

Location and scale are Tukey's biweight, with the constants of Mosteller and Tukey, *Data Analysis and
Regression* (1977, chapter 10): weights vanish beyond 6 median deviations for the location and 9 for the
scale. A new value less the location, in units of the scale, is compared with Student's t at 0.7 (n - 1)
degrees of freedom (the same, and Kafadar, JASA 77:416, 1982).

Clusters are several settings, not one distribution. The values are cut in two where the sum of distances
from the medians of the two sides becomes smallest (the k-medians criterion, which a value far away moves
less than squares do), on whatever side few machines are. The cut holds if the sides are apart by Ashman's
D (AJ 108:2348, 1994), with robust scales in place of standard deviations; then each side is cut in the
same way.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOCATION_REACH: Final = 6.0
_SCALE_REACH: Final = 9.0
_ROUNDS: Final = 10
_TERMS: Final = 300
_TINY: Final = 1e-300
#: Ashman's D: 2 is a clean separation, and the halves of one normal distribution have 2.6.
_SEPARATION: Final = 4.0
#: Scales of few values vary: eight must be twice as far apart, by the square of this over their number.
_SEPARATION_OF_FEW: Final = 8
#: Cuts within cuts: up to 16 parts.
_DEPTH: Final = 4
#: Machines that a part must have, and what share of all: fewer are outliers of the nearest part.
_LEAST_MACHINES: Final = 3
_LEAST_SHARE: Final = 0.2


def biweight(values: Sequence[float]) -> tuple[float, float]:
    """Return the biweight location and scale of *values*; the scale is 0 where most are equal."""
    location = median(values)
    deviation = median([abs(value - location) for value in values])
    if not deviation:
        return location, 0.0
    for _ in range(_ROUNDS):
        weights = [_weight((value - location) / (_LOCATION_REACH * deviation)) for value in values]
        found = sum([w * v for w, v in zip(weights, values, strict=True)]) / sum(weights)
        if abs(found - location) <= 1e-9 * deviation:
            break
        location = found
    above = below = 0.0
    for value in values:
        distance = value - location
        part = (distance / (_SCALE_REACH * deviation)) ** 2
        if part < 1:
            above += distance * distance * (1 - part) ** 4
            below += (1 - part) * (1 - 5 * part)
    return location, math.sqrt(len(values) * above) / abs(below)


def _weight(distance: float) -> float:
    return (1 - distance * distance) ** 2 if abs(distance) < 1 else 0.0


def two_sided_p(t: float, freedom: float) -> float:
    """Return how probable a Student's t of at least *t* on either side is."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if not 0 < x < 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Lentz's method.
    c, d = 1.0, 1 / _away_from_0(1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, _TERMS):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_0(1 + top * d)
            c = _away_from_0(1 + top / c)
            total *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * total / a


def _away_from_0(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def discoveries(p_values: Sequence[float], rate: float) -> set[int]:
    """Return which of *p_values* are discoveries (Benjamini and Hochberg, JRSS B 57:289, 1995)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    last = 0
    for rank, at in enumerate(order, 1):
        if p_values[at] <= rate * rank / len(order):
            last = rank
    return set(order[:last])


def find_clusters(
    values: Sequence[float],
    errors: Sequence[float],
    floor: float,
    apart: Callable[[float], bool],
) -> list[list[int]]:
    """Return the indices of the machines in each part, the lowest part first; a single part means no split.

    What belongs to no part, as too few machines are like it, is left out.

    Args:
        values: One a machine.
        errors: The standard error of each.
        floor: The least standard deviation of values.
        apart: Whether a difference counts.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [_Value(at, values[at], errors[at]) for at in order]
    leaves = [[each.at for each in leaf] for leaf in _leaves(ordered, floor, apart, _DEPTH)]
    least = max(math.ceil(_LEAST_SHARE * len(values)), _LEAST_MACHINES)
    large = [leaf for leaf in leaves if len(leaf) >= least]
    if 2 * sum(map(len, large)) <= len(values):
        # Of many small parts, none is what is usual.
        large = [leaf for leaf in leaves if len(leaf) >= _LEAST_MACHINES]
    return large or [order]


class _Value(NamedTuple):
    at: int
    value: float
    error: float


def _leaves(
    values: list[_Value], floor: float, apart: Callable[[float], bool], depth: int
) -> list[list[_Value]]:
    """Return the sorted *values* in parts; where a cut does not hold, the parts at it are one."""
    if len(values) < 2 or not depth or not apart(values[-1].value - values[0].value):
        return [values]
    cut = _best_cut([each.value for each in values])
    low = _leaves(values[:cut], floor, apart, depth - 1)
    high = _leaves(values[cut:], floor, apart, depth - 1)
    if _separated(low[-1], high[0], floor, apart):
        return low + high
    return [*low[:-1], low[-1] + high[0], *high[1:]]


def _best_cut(values: Sequence[float]) -> int:
    count = len(values)
    sums = [0.0, *accumulate(values)]

    def distances(start: int, end: int) -> float:
        half = (end - start) // 2
        return sums[end] - sums[end - half] - (sums[start + half] - sums[start])

    return min(range(1, count), key=lambda at: distances(0, at) + distances(at, count))


def _separated(
    low: Sequence[_Value], high: Sequence[_Value], floor: float, apart: Callable[[float], bool]
) -> bool:
    medians, variance = [], 0.0
    for side in (low, high):
        found = [each.value for each in side]
        scale = max(biweight(found)[1], median([each.error for each in side]), floor)
        medians.append(median(found))
        variance += len(side) * scale**2
    difference = medians[1] - medians[0]
    count = len(low) + len(high)
    needed = _SEPARATION * (1 + (_SEPARATION_OF_FEW / count) ** 2)
    return apart(difference) and difference >= needed * math.sqrt(variance / count)
