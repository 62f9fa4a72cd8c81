"""How far to trust a result, and which method to use: each warning ends with something to try."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from vmtool.results.stress import Advice, Recommendation
from vmtool.stats import bucket_start
from vmtool.units import MIB, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.results.stress import MethodResult, PhaseResult, StressResult

_FEW_SAMPLES: Final = 100
_OUTLIER: Final = 10  # times the median
_DRIFT: Final = 0.25  # of the median, between the fast and the slow quarter of the rounds
_DRIFT_ROUNDS: Final = 8
_OVERHEAD_PART: Final = 0.1
_CHECKPOINT_PART: Final = 0.02
_RESIDENT_SLACK: Final = 8 * MIB
# A method must be this much faster to be worth giving up what another one promises.
_WORTH_IT: Final = 1.05
#: Why one might take another method than the fastest, by what is lost with it.
_COSTS: Final = {
    "protect": "it keeps the commit charge after a release",
    "advise": "released memory does not fault, and nothing is charged before it is touched",
    "pooled": "what it keeps is missing on the device until it is trimmed",
}
_KEPT_ON_MACOS: Final = "macOS keeps its pages until memory is short, and they are not zero"
_COSTS_ON_MACOS: Final = {
    "protect": _KEPT_ON_MACOS,
    "advise": f"released memory does not fault, {_KEPT_ON_MACOS}",
}
_PREFERENCE: Final = ("fixed", "protect", "advise", "cold", "pooled")


def recommend(methods: Sequence[MethodResult], system: str) -> Recommendation | None:
    """Return the method to use here, if several were measured.

    The cheapest cycle (the medians of commit, touch and release) wins; a difference below 5 % goes
    to the method that promises more.

    Args:
        methods: What was measured.
        system: Where, as ``SystemFacts.os`` names it.
    """
    costs = {m.method: cost for m in methods if (cost := _cycle_ns(m)) is not None}
    if len(costs) < 2:
        return None
    fastest = min(costs, key=lambda name: costs[name])
    order: list[str] = [name for name in _PREFERENCE if name in costs]
    near = [name for name in order if costs[name] <= costs[fastest] * _WORTH_IT]
    best = near[0] if near else fastest
    others = ", ".join(
        f"{name} {format_duration(cost)}" for name, cost in costs.items() if name != best
    )
    reason = f"one cycle costs {format_duration(costs[best])} ({others})"
    lost = (_COSTS_ON_MACOS if system == "Darwin" else _COSTS).get(best)
    if lost is not None:
        reason += f"; but {lost}"
    return Recommendation(best, reason)


def warn(result: StressResult, facts: MachineFacts) -> tuple[Advice, ...]:
    """Return what a reader of *result* should know before trusting it."""
    found: list[Advice] = []
    for method in result.methods:
        found += _samples(method)
        found += _outliers(method)
        found += _drift(method)
        found += _overhead(method, result.overhead_ns)
    found += _harness(result)
    found += _mappings(result, facts)
    return tuple(found)


def _cycle_ns(method: MethodResult) -> int | None:
    medians = [
        phase.summary.median_ns
        for name in ("commit", "touch", "release")
        if (phase := method.phase(name)) is not None
    ]
    known = [median for median in medians if median is not None]
    return sum(known) if len(known) >= 2 else None


def _platform_phases(method: MethodResult) -> Iterator[PhaseResult]:
    return (phase for phase in method.phases if phase.phase != "verify")


def _samples(method: MethodResult) -> Iterator[Advice]:
    commit = method.phase("commit")
    samples = commit.summary.samples if commit else 0
    if samples < _FEW_SAMPLES:
        yield Advice(
            "few-samples",
            f"{method.method}: {samples} commits are too few for percentiles",
            "raise --cycles or --duration",
        )


def _outliers(method: MethodResult) -> Iterator[Advice]:
    worst: tuple[float, PhaseResult] | None = None
    for phase in _platform_phases(method):
        median, most = phase.summary.median_ns, phase.summary.max_ns
        if median and most and most > _OUTLIER * median and phase.summary.samples >= _FEW_SAMPLES:
            worst = max(worst or (0.0, phase), (most / median, phase), key=lambda pair: pair[0])
    if worst is None:
        return
    phase = worst[1]
    limit = _OUTLIER * (phase.summary.median_ns or 0)
    count = sum(n for index, n in phase.histogram.buckets if bucket_start(index) >= limit)
    plural = "" if count <= 1 else "es" if phase.phase == "touch" else "s"
    yield Advice(
        "outliers",
        f"{method.method}: {max(count, 1)} {phase.phase}{plural} took over {_OUTLIER} times the "
        f"median (up to {format_duration(phase.summary.max_ns or 0)})",
        "run again on a quieter machine, or raise --cycles",
    )


def _drift(method: MethodResult) -> Iterator[Advice]:
    for phase in _platform_phases(method):
        medians = sorted(phase.round_medians_ns)
        if len(medians) < _DRIFT_ROUNDS:
            continue
        low, high = medians[len(medians) // 4], medians[-1 - len(medians) // 4]
        if high - low > _DRIFT * medians[len(medians) // 2]:
            yield Advice(
                "drift",
                f"{method.method}: the median {phase.phase} moved between rounds, from "
                f"{format_duration(low)} to {format_duration(high)}",
                "stop other work on this machine"
                + (", or pin vmtool to a core (taskset -c 0)" if sys.platform == "linux" else ""),
            )
            return


def _overhead(method: MethodResult, overhead_ns: int) -> Iterator[Advice]:
    for phase in _platform_phases(method):
        median = phase.summary.median_ns
        if median and overhead_ns > _OVERHEAD_PART * median:
            yield Advice(
                "overhead",
                f"{method.method}: of the median {phase.phase} of {format_duration(median)}, the "
                f"harness is {format_duration(overhead_ns)}",
                "use a larger --granule, or compare runs with each other only",
            )
            return


def _harness(result: StressResult) -> Iterator[Advice]:
    """Yield what the harness itself did to the figures, or found in itself."""
    before, after = result.resident_before_bytes, result.resident_after_bytes
    if before is not None and after is not None and after - before > _RESIDENT_SLACK:
        yield Advice(
            "resident",
            f"resident memory went from {format_size(before)} to {format_size(after)}",
            "run with --soak 10m: its slope tells a leak from a warm-up",
        )
    if result.checkpoint_share > _CHECKPOINT_PART:
        yield Advice(
            "checkpoints",
            f"checkpoints took {result.checkpoint_share:.1%} of the run",
            "run for longer, or with fewer mappings (a larger --granule)",
        )
    if result.settings.threads > 1:
        yield Advice(
            "interpreter-lock",
            "threads wait for Python's lock after each call, and with full verification also in "
            "touch; that is part of their samples",
            "use --workers to measure contention in the kernel alone",
        )


def _mappings(result: StressResult, facts: MachineFacts) -> Iterator[Advice]:
    """Yield what huge pages and the limit on memory areas did, or did not do."""
    settings = result.settings
    if settings.huge and facts.huge_pages.thp_mode == "never":
        yield Advice(
            "huge-pages",
            "transparent huge pages are switched off, so that --huge changes nothing",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
        )
    pmd = facts.huge_pages.pmd_bytes
    if settings.huge and pmd and settings.granule_bytes % pmd and result.method("advise"):
        yield Advice(
            "huge-granule",
            f"advise: a granule of {format_size(settings.granule_bytes)} is not whole huge pages, "
            "the rest of which stays resident when it is released",
            f"use --granule {format_size(pmd).replace(' ', '')}",
        )
    degraded = sum(method.degraded_bytes for method in result.methods)
    if degraded:
        yield Advice(
            "degraded",
            f"{format_size(degraded)} could be released only in part: the process has too many "
            "memory areas",
            "raise vm.max_map_count, or use a larger --granule",
        )
