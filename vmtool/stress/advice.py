"""Warnings about how far to trust a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.histograms import bucket_start
from vmtool.results.stress import Advice, Outcome, base_method
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.machine.facts import MachineFacts
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import MethodResult, PhaseResult, StressResult

_FEW_SAMPLES: Final = 100
_OUTLIER: Final = 10  # times the median
_DRIFT: Final = 0.25  # of the median, between the fast and the slow quarter of the rounds
_DRIFT_ROUNDS: Final = 8
_OVERHEAD_PART: Final = 0.1
_OUTLIER_PART: Final = 0.01  # of the samples: fewer do not reach the 99th percentile
#: A short run takes more checkpoints than a long one, but between its rounds.
_CHECKPOINT_PART: Final = 0.1
_RESIDENT_SLACK: Final = 8 * MIB


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
