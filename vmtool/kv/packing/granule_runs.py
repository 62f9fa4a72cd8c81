"""Runs of granules: which of them spans touch, and which remain without others."""

from __future__ import annotations

from typing import TypeAlias

#: A half-open range of granules in one range of a sequence, ``(first, end)``.
Run: TypeAlias = tuple[int, int]


def runs_without(runs: tuple[Run, ...], taken: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the granules of *runs* that are not in *taken*, both ascending."""
    if not taken:
        return runs
    if len(runs) == len(taken) == 1 and runs[0][0] == taken[0][0]:  # filled from the front
        low, high = taken[0][1], runs[0][1]
        return ((low, high),) if low < high else ()
    found: list[Run] = []
    taken_at = iter((*taken, (1 << 64, 1 << 64)))
    start, end = next(taken_at)
    for first, last in runs:
        at = first
        while end <= at:
            start, end = next(taken_at)
        while start < last:
            if at < start:
                found.append((at, start))
            at = end
            if end >= last:
                break
            start, end = next(taken_at)
        if at < last:
            found.append((at, last))
    return tuple(found)


def granules_touched(parts: int, stride: int, used: int, granule: int) -> int:
    """Return how many granules *parts* spans of *used* bytes, *stride* bytes apart, touch."""
    if not used:
        return 0
    if stride - used < granule:
        # No whole granule fits between two spans, so together they touch all from end to end.
        return -(-((parts - 1) * stride + used) // granule)
    begins = _sum_of_quotients(parts, granule, stride, 0)
    ends = _sum_of_quotients(parts, granule, stride, used + granule - 1)
    return ends - begins


def _sum_of_quotients(terms: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of ``(start + i * step) // divisor`` for *i* from 0 to *terms* - 1.

    In logarithmic time: whole quotients are taken out, and what remains is the number of lattice
    points under a line, which are counted along the other axis with the roles exchanged.
    """
    total = 0
    while True:
        total += terms * (terms - 1) // 2 * (step // divisor) + terms * (start // divisor)
        step, start = step % divisor, start % divisor
        highest = step * terms + start
        if highest < divisor:
            return total
        terms, start = divmod(highest, divisor)
        step, divisor = divisor, step
