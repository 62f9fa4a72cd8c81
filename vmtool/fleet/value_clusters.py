"""The clusters that the values of machines fall into: several settings, not one distribution.

The values are cut in two where the sum of distances from the medians of the two sides becomes smallest
(the k-medians criterion, which a value far away moves less than squares do), on whatever side few
machines are. The cut holds if the sides are apart by Ashman's D (AJ 108:2348, 1994), with robust scales
in place of standard deviations; then each side is cut in the same way.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

from vmtool.fleet.robust_statistics import biweight

#: Ashman's D: 2 is a clean separation, and the halves of one normal distribution have 2.6.
_SEPARATION: Final = 4.0


#: Scales of few values vary: eight must be twice as far apart, by the square of this over their number.
_SEPARATION_OF_FEW: Final = 8


#: Cuts within cuts: up to 16 parts.
_DEPTH: Final = 4


#: Machines that a part must have, and what share of all: fewer are outliers of the nearest part.
_LEAST_MACHINES: Final = 3


_LEAST_SHARE: Final = 0.2


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
