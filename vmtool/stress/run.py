"""One stress run from settings to result: workers, scaling, and everything put together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.encoding import plain
from vmtool.errors import VmtoolError
from vmtool.memory import describe_device
from vmtool.results import (
    PHASES,
    MethodResult,
    Outcome,
    Scaling,
    StressResult,
    StressSettings,
    Verdict,
)
from vmtool.stress.advice import recommend, warn
from vmtool.stress.messages import WorkerPlan, WorkerReport
from vmtool.stress.plan import alone
from vmtool.stress.recorder import join_calls, join_phases
from vmtool.stress.supervise import run_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.stress.running import Ending

#: The run with one worker and one thread, for scaling, takes a quarter of the time, 2 s at most.
_SINGLE_PART: Final = 4
_SINGLE_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        cycles: Cycles done by all workers and threads, warm-up included.
        elapsed_ns: Since the workers were started.
    """

    cycles: int
    elapsed_ns: int


def run_stress(
    settings: StressSettings,
    facts: MachineFacts,
    *,
    hang_ns: int,
    checks: bool = True,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> StressResult:
    """Run *settings* in worker processes; what is ended early leaves a valid partial result.

    Args:
        settings: What to do.
        facts: About this machine, for the result.
        hang_ns: A worker that does not move for this long is killed.
        checks: Whether to take checkpoints of the ledgers.
        stopping: Asked about ten times a second whether to end early.
        progress: Called about ten times a second.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    began = perf_counter_ns()

    def tell(cycles: int) -> None:
        progress(Progress(cycles, perf_counter_ns() - began))

    single: list[Ending] = []
    interrupted = False
    if settings.workers * settings.threads > 1:
        plan = WorkerPlan(_shorter(alone(settings)), 0, checks=False)
        single, interrupted = run_workers([plan], hang_ns=hang_ns, stopping=stopping, progress=tell)
    plans = [WorkerPlan(settings, worker, checks) for worker in range(settings.workers)]
    endings: list[Ending] = []
    if not interrupted:
        endings, interrupted = run_workers(plans, hang_ns=hang_ns, stopping=stopping, progress=tell)
    wall_ns = perf_counter_ns() - began
    return _assemble(settings, facts, single, endings, wall_ns, interrupted=interrupted)


def with_verdicts(result: StressResult, verdicts: Sequence[Verdict]) -> StressResult:
    """Return *result* with more verdicts, such as those of assertions."""
    return replace(result, verdicts=(*result.verdicts, *verdicts))


def _shorter(settings: StressSettings) -> StressSettings:
    if settings.duration_ns is not None:
        part = min(settings.duration_ns // _SINGLE_PART, _SINGLE_NS)
        return replace(settings, duration_ns=max(part, 1))
    return replace(settings, cycles=max((settings.cycles or 1) // _SINGLE_PART, 1))


def _assemble(
    settings: StressSettings,
    facts: MachineFacts,
    single: Sequence[Ending],
    endings: Sequence[Ending],
    wall_ns: int,
    *,
    interrupted: bool,
) -> StressResult:
    reports = [ending.report for ending in endings if ending.report is not None]
    accidents = tuple(ending.accident for ending in endings if ending.accident is not None)
    failures = tuple(failure for report in reports for failure in report.failures)
    methods = tuple(
        _join_methods([report.methods[index] for report in reports])
        for index in range(len(settings.methods))
        if reports
    )
    if interrupted:
        outcome = Outcome.INTERRUPTED
    elif accidents:
        hung = any(accident.kind == "hang" for accident in accidents)
        outcome = Outcome.HUNG if hung else Outcome.CRASHED
    elif failures:
        outcome = Outcome.CALL_FAILED
    else:
        outcome = Outcome.COMPLETE
    busy = sum(report.busy_ns for report in reports)
    first = reports[0] if reports else None
    result = StressResult(
        settings=settings,
        outcome=outcome,
        wall_ns=wall_ns,
        overhead_ns=max((report.overhead_ns for report in reports), default=0),
        base_addresses=tuple(base for report in reports for base in report.base_addresses),
        resident_before_bytes=first.resident_before_bytes if first else None,
        resident_after_bytes=first.resident_after_bytes if first else None,
        methods=methods,
        recommendation=recommend(methods, facts.system.os),
        scaling=_scaling(settings, single, methods),
        checkpoints=tuple(c for report in reports for c in report.checkpoints),
        checkpoint_share=sum(r.checkpoint_ns for r in reports) / busy if busy else 0.0,
        slopes=tuple(slope for report in reports for slope in report.slopes),
        verdicts=_join_verdicts(reports),
        accidents=accidents,
        failures=failures,
        warnings=(),
        machine=_machine(facts, settings.backing),
        device=first.device if first else None,
        unmapping=first.unmapping if first else None,
    )
    return replace(result, warnings=warn(result, facts))


def _machine(facts: MachineFacts, backing: str) -> dict[str, Any]:
    """Return what is recorded about the machine: its facts, and those of the device in use."""
    recorded: dict[str, Any] = plain(facts)
    with suppress(VmtoolError):  # a driver that has failed tells no more; the result says that
        device = describe_device(backing)
        if device is not None:
            recorded["device"] = plain(device)
    return recorded


def _join_methods(parts: Sequence[MethodResult]) -> MethodResult:
    """Return one method's results in several workers as one; rates add up."""
    phases = []
    for name in PHASES:
        found = [phase for part in parts if (phase := part.phase(name)) is not None]
        if found:
            phases.append(join_phases(name, found))
    return MethodResult(
        method=parts[0].method,
        cycles=sum(part.cycles for part in parts),
        wall_ns=max(part.wall_ns for part in parts),
        cycles_per_s=sum(part.cycles_per_s for part in parts),
        bytes_per_s=sum(part.bytes_per_s for part in parts),
        degraded_bytes=sum(part.degraded_bytes for part in parts),
        quarantined_bytes=sum(part.quarantined_bytes for part in parts),
        phases=tuple(phases),
        calls=join_calls(part.calls for part in parts),
    )


def _join_verdicts(reports: Sequence[WorkerReport]) -> tuple[Verdict, ...]:
    """Return each check once: failed if it failed in any worker, naming the first."""
    joined: dict[str, Verdict] = {}
    for report in reports:
        for verdict in report.verdicts:
            other = joined.get(verdict.check)
            if other is None or (verdict.passed is False and other.passed is not False):
                joined[verdict.check] = verdict
    return tuple(joined.values())


def _scaling(
    settings: StressSettings, single: Sequence[Ending], methods: Sequence[MethodResult]
) -> tuple[Scaling, ...]:
    baseline = single[0].report if single else None
    if baseline is None:
        return ()
    found = []
    for one, all_ in zip(baseline.methods, methods, strict=False):
        if one.cycles_per_s and all_.cycles_per_s:
            found.append(
                Scaling(
                    method=all_.method,
                    workers=settings.workers,
                    threads=settings.threads,
                    single_cycles_per_s=one.cycles_per_s,
                    cycles_per_s=all_.cycles_per_s,
                    speedup=all_.cycles_per_s / one.cycles_per_s,
                )
            )
    return tuple(found)
