"""Advice from a stress result: how far to trust it, and which method to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.compare.confidence_intervals import DEFAULT_CONFIDENCE, RUNS_NEEDED, shift
from vmtool.histograms import bucket_start
from vmtool.results.stress import (
    HUGE,
    Advice,
    MethodReason,
    Outcome,
    Recommendation,
    base_method,
)
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import MethodResult, PhaseResult, RunResult, StressResult

_FEW_SAMPLES: Final = 100
_OUTLIER: Final = 10  # times the median
_DRIFT: Final = 0.25  # of the median, between the fast and the slow quarter of the rounds
_DRIFT_ROUNDS: Final = 8
_OVERHEAD_PART: Final = 0.1
_OUTLIER_PART: Final = 0.01  # of the samples: fewer do not reach the 99th percentile
#: A short run takes more checkpoints than a long one, but between its rounds.
_CHECKPOINT_PART: Final = 0.1
_RESIDENT_SLACK: Final = 8 * MIB
#: A method that promises more must cost clearly more than this times the cheapest to be given up.
_WORTH_IT: Final = 1.25
#: The same where there are too few runs or rounds for an interval.
_WORTH_IT_UNPROVEN: Final = 2
#: Those that promise more first: a guard on what is released, memory given back at once.
_PREFERENCE: Final = ("fixed", "protect", "advise", "cold", "pooled")


def warn(
    result: StressResult, facts: MachineFacts, after: MachineFacts | None = None
) -> tuple[Advice, ...]:
    """Return what a reader of *result* should know before trusting it.

    Args:
        result: What was measured.
        facts: The machine before it.
        after: The machine after it; by default nothing has changed.
    """
    found: list[Advice] = []
    for method in result.methods:
        found += _samples(method)
        found += _outliers(method)
        if len(result.runs) < 2:  # the spread of several runs is in the first line
            found += _drift(method)
        found += _overhead(method, result.overhead_ns)
    found += _harness(result)
    found += _budget(result)
    found += _mappings(result, facts)
    if not result.accidents:  # which say it themselves
        found += _throttled(facts, after or facts)
    return tuple(found)


def _platform_phases(method: MethodResult) -> Iterator[PhaseResult]:
    return (phase for phase in method.phases if phase.phase != "verify")


def _samples(method: MethodResult) -> Iterator[Advice]:
    commit = method.phase("commit")
    samples = commit.summary.samples if commit else 0
    if 0 < samples < _FEW_SAMPLES:  # without any there are no percentiles to judge
        yield Advice("few-samples", method.method, {"commits": samples})


def _outliers(method: MethodResult) -> Iterator[Advice]:
    found: list[tuple[int, PhaseResult]] = []
    for phase in _platform_phases(method):
        samples, median = phase.summary.samples, phase.summary.median_ns
        if not median or samples < _FEW_SAMPLES:
            continue
        buckets = phase.histogram.buckets
        count = sum(n for index, n in buckets if bucket_start(index) >= _OUTLIER * median)
        if count >= samples * _OUTLIER_PART:
            found.append((count, phase))
    if not found:
        return
    count, phase = max(found, key=lambda pair: pair[0] / pair[1].summary.samples)
    yield Advice(
        "outliers",
        method.method,
        {
            "phase": phase.phase,
            "count": count,
            "samples": phase.summary.samples,
            "times_median": _OUTLIER,
            "max_ns": phase.summary.max_ns,
        },
    )


def _drift(method: MethodResult) -> Iterator[Advice]:
    for phase in _platform_phases(method):
        medians = sorted(phase.round_medians_ns)
        if len(medians) < _DRIFT_ROUNDS:
            continue
        low, high = medians[len(medians) // 4], medians[-1 - len(medians) // 4]
        if high - low > _DRIFT * medians[len(medians) // 2]:
            values: dict[str, Value] = {"phase": phase.phase, "low_ns": low, "high_ns": high}
            yield Advice("drift", method.method, values)
            return


def _overhead(method: MethodResult, overhead_ns: int) -> Iterator[Advice]:
    for phase in _platform_phases(method):
        median = phase.summary.median_ns
        if median and overhead_ns > _OVERHEAD_PART * median:
            values: dict[str, Value] = {"phase": phase.phase, "median_ns": median}
            yield Advice("overhead", method.method, {**values, "overhead_ns": overhead_ns})
            return


def _harness(result: StressResult) -> Iterator[Advice]:
    """Yield what the harness itself did to the figures, or found in itself."""
    before, after = result.resident_before_bytes, result.resident_after_bytes
    if before is not None and after is not None and after - before > _RESIDENT_SLACK:
        yield Advice("resident", None, {"before_bytes": before, "after_bytes": after})
    if result.checkpoint_share > _CHECKPOINT_PART:
        yield Advice("checkpoints", None, {"share": result.checkpoint_share})
    if result.settings.threads > 1:
        yield Advice("interpreter-lock")


def _budget(result: StressResult) -> Iterator[Advice]:
    """Yield that the budget was never needed: a run that passes shows nothing about the rest."""
    done = result.outcome is Outcome.COMPLETE
    peak = result.peak_committed_bytes
    if done and peak is not None and not result.budget_reached and result.hold is None:
        yield Advice(
            "budget-not-reached",
            None,
            {
                "peak_bytes": peak,
                "budget_bytes": result.settings.budget_bytes,
            },
        )


def _throttled(before: MachineFacts, after: MachineFacts) -> Iterator[Advice]:
    """Yield each control group that was above its memory.high meanwhile."""
    earlier = {level.path: level.high_hits for level in before.cgroup.levels}
    for level in after.cgroup.levels:
        times = (level.high_hits or 0) - (earlier.get(level.path) or 0)
        if times > 0 and level.high_bytes is not None:
            values: dict[str, Value] = {
                "path": level.path,
                "high_bytes": level.high_bytes,
                "times": times,
            }
            yield Advice("throttled", None, values)


def _mappings(result: StressResult, facts: MachineFacts) -> Iterator[Advice]:
    """Yield what huge pages and the limit on memory areas did, or did not do."""
    settings = result.settings
    if settings.huge and facts.huge_pages.thp_mode == "never":
        yield Advice("huge-pages")
    pmd, granule = facts.huge_pages.pmd_bytes, settings.granule_bytes
    for method in result.methods:
        huge = settings.uses_huge(method.method) and base_method(method.method) == "advise"
        if pmd and granule % pmd and huge:
            values: dict[str, Value] = {"granule_bytes": granule, "huge_page_bytes": pmd}
            yield Advice("huge-granule", method.method, values)
    degraded = sum(method.degraded_bytes for method in result.methods)
    if degraded:
        yield Advice("degraded", None, {"bytes": degraded})


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
