"""Robust statistics across machines: location, scale and outliers.

Location and scale are Tukey's biweight, with the constants of Mosteller and Tukey, *Data Analysis and
Regression* (1977, chapter 10): weights vanish beyond 6 median deviations for the location and 9 for the
scale. A new value less the location, in units of the scale, is compared with Student's t at 0.7 (n - 1)
degrees of freedom (the same, and Kafadar, JASA 77:416, 1982).
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCATION_REACH: Final = 6.0
_SCALE_REACH: Final = 9.0
_ROUNDS: Final = 10
_TERMS: Final = 300
_TINY: Final = 1e-300


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
