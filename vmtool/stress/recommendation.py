"""Which method to recommend: the one that promises most among those that do not cost clearly more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.compare.confidence_intervals import DEFAULT_CONFIDENCE, RUNS_NEEDED, shift
from vmtool.results.stress import (
    HUGE,
    MethodReason,
    Recommendation,
    base_method,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.results.stress import MethodResult, RunResult


#: A method that promises more must cost clearly more than this times the cheapest to be given up.
_WORTH_IT: Final = 1.25
#: The same where there are too few runs or rounds for an interval.
_WORTH_IT_UNPROVEN: Final = 2
#: Those that promise more first: a guard on what is released, memory given back at once.
_PREFERENCE: Final = ("fixed", "protect", "advise", "cold", "pooled")


def recommend(
    methods: Sequence[MethodResult], runs: Sequence[RunResult] = ()
) -> Recommendation | None:
    """Return the method to use here, if several were measured, by the cost of a cycle.

    The intervals are those of the ratio of their runs, as in a comparison.
    """
    costs = {m.method: cost for m in methods if (cost := cycle_ns(m)) is not None}
    if len(costs) < 2:
        return None

    def least_factor(fastest: str, other: str) -> float | None:
        sides = _run_costs(runs, fastest), _run_costs(runs, other)
        if min(map(len, sides)) < RUNS_NEEDED:
            return None
        return shift(*sides, DEFAULT_CONFIDENCE).low

    best, fastest, reason = choose_method(costs, least_factor)
    other = base_method(best) if best.endswith(HUGE) else best + HUGE
    factor = without = None
    if other in costs:
        without = base_method(best)
        factor = costs[without] / max(costs[without + HUGE], 1)
    return Recommendation(
        method=best,
        reason=reason,
        cycle_ns=costs,
        fastest=fastest,
        without_huge=without,
        huge_factor=factor,
    )


def choose_method(
    costs: Mapping[str, int], least_factor: Callable[[str, str], float | None]
) -> tuple[str, str, MethodReason]:
    """Return which method to use, which is the cheapest, and why the one is used.

    Of all that do not clearly cost over 25 % more than the cheapest it is the one that promises
    most, and then the one without huge pages: an order that is fixed, so that small differences
    between two measurements of one machine never change the answer.

    Args:
        costs: Of each method.
        least_factor: Returns how many times the cost of the first method the second one has at
            least: the near end of the interval, or ``None`` where there is none.
    """
    fastest = min(costs, key=costs.__getitem__)

    def is_near(name: str) -> bool:
        factor = least_factor(fastest, name)
        if factor is None:
            return costs[name] < costs[fastest] * _WORTH_IT_UNPROVEN
        return factor <= _WORTH_IT

    near = [name for name in costs if name == fastest or is_near(name)]
    best = min(near, key=lambda name: (_rank(base_method(name)), name.endswith(HUGE)))
    if best != fastest:
        return best, fastest, MethodReason.PROMISES_MORE
    return best, fastest, MethodReason.FASTEST if len(near) == 1 else MethodReason.NO_CLEAR_WINNER


def cycle_ns(method: MethodResult) -> int | None:
    """Return the medians of commit, touch and release together, if two of them were measured."""
    medians = [
        phase.summary.median_ns
        for name in ("commit", "touch", "release")
        if (phase := method.phase(name)) is not None
    ]
    known = [median for median in medians if median is not None]
    return sum(known) if len(known) >= 2 else None


def _run_costs(runs: Sequence[RunResult], name: str) -> list[int]:
    found = (run.method(name) for run in runs)
    return [
        max(cost, 1)
        for method in found
        if method is not None and (cost := cycle_ns(method)) is not None
    ]


def _rank(method: str) -> int:
    return _PREFERENCE.index(method) if method in _PREFERENCE else len(_PREFERENCE)
