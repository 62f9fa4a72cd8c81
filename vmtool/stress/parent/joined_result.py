"""One result from what all workers of all runs reported."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import VmtoolError
from vmtool.json_documents import plain
from vmtool.machine import read_facts
from vmtool.machine.device_facts import read_device_facts
from vmtool.machine.nvml import users_of
from vmtool.memory.backing_by_name import describe_device
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.stress import (
    PHASES,
    DeviceResult,
    MethodResult,
    Outcome,
    RunResult,
    Scaling,
    StressResult,
    StressSettings,
)
from vmtool.stress.parent.leaks import leak_checks, worker_slopes
from vmtool.stress.plan import device_peers, live_limit
from vmtool.stress.recommendation_and_advice import recommend, warn
from vmtool.stress.worker.timed_operations import join_calls, join_phases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.results.check_outcomes import Check, Value
    from vmtool.results.stress import HoldResult, UnmapResult
    from vmtool.stress.messages import WorkerReport
    from vmtool.stress.parent.worker_process import Ending


#: How often a check compared something, by the names of its values.
_COUNTS: Final = ("spans", "checkpoints", "buffers")


def with_checks(result: StressResult, checks: Sequence[Check]) -> StressResult:
    """Return *result* with more checks, such as those of assertions."""
    return replace(result, checks=(*result.checks, *checks))


def what_ended(result: StressResult) -> str | None:
    """Return the first call that failed, or how a worker died; ``None`` if neither."""
    if result.accidents:
        return result.accidents[0].cause
    return result.failures[0].message if result.failures else None


@dataclass(frozen=True, slots=True)
class EndedRun:
    """One run as its workers ended it."""

    index: int
    order: tuple[str, ...]
    endings: Sequence[Ending]
    wall_ns: int
    interrupted: bool

    @property
    def reports(self) -> list[WorkerReport]:
        """The reports of the workers that gave one."""
        return [ending.report for ending in self.endings if ending.report is not None]

    @property
    def outcome(self) -> Outcome:
        """How the run ended."""
        if self.interrupted:
            return Outcome.INTERRUPTED
        accidents = [ending.accident for ending in self.endings if ending.accident is not None]
        if accidents:
            hung = any(accident.kind == "hang" for accident in accidents)
            return Outcome.HUNG if hung else Outcome.CRASHED
        failed = any(report.failures for report in self.reports)
        return Outcome.CALL_FAILED if failed else Outcome.COMPLETE

    def methods(self, names: Sequence[str]) -> tuple[MethodResult, ...]:
        """Return the results of its workers together, in the order of *names*."""
        parts = [{m.method: m for m in report.methods} for report in self.reports]
        if not parts:
            return ()
        return tuple(_join_workers([found[name] for found in parts]) for name in names)


def assemble(
    settings: StressSettings,
    facts: MachineFacts,
    single: Sequence[Ending],
    runs: Sequence[EndedRun],
    wall_ns: int,
    watch: RunConditionsWatch,
) -> StressResult:
    """Return the result of all *runs*, with checks, warnings and the recommendation."""
    reports = [report for run in runs for report in run.reports]
    results = tuple(
        RunResult(run.index, run.outcome, run.wall_ns, run.order, run.methods(settings.methods))
        for run in runs
    )
    methods = tuple(
        _join_runs([found for run in results if (found := run.method(name)) is not None])
        for name in settings.methods
        if reports
    )
    busy = sum(report.busy_ns for report in reports)
    first = reports[0] if reports else None
    checkpoints = tuple(c for report in reports for c in report.checkpoints)
    live = live_limit(settings) * settings.threads * len(settings.methods)
    slopes = worker_slopes(checkpoints, live)
    checks = _join_checks(reports)
    if checks:
        checks += leak_checks(slopes, checkpoints)
    peak = _peak_committed(runs)
    slack = settings.granule_bytes * settings.threads * settings.workers
    result = StressResult(
        settings=settings,
        outcome=runs[-1].outcome,
        wall_ns=wall_ns,
        overhead_ns=max((report.overhead_ns for report in reports), default=0),
        base_addresses=tuple(base for report in reports for base in report.base_addresses),
        resident_before_bytes=first.resident_before_bytes if first else None,
        resident_after_bytes=first.resident_after_bytes if first else None,
        methods=methods,
        recommendation=recommend(methods, results),
        scaling=_scaling(settings, single, methods),
        checkpoints=checkpoints,
        checkpoint_share=sum(r.checkpoint_ns for r in reports) / busy if busy else 0.0,
        slopes=slopes,
        checks=checks,
        accidents=tuple(
            ending.accident for run in runs for ending in run.endings if ending.accident is not None
        ),
        failures=tuple(failure for report in reports for failure in report.failures),
        warnings=(),
        machine=plain(facts) | {"device": _device_facts(settings.places[0], _unmapping(reports))},
        device=_device_names(reports),
        unmapping=_unmapping(reports),
        runs=results,
        conditions=watch.finish(),
        peak_committed_bytes=peak,
        peak_resident_bytes=_peak_resident(runs),
        budget_reached=peak is not None and peak > settings.budget_bytes - slack,
        hold=_hold(runs[0].reports),
        devices=tuple(
            _device_result(settings, number, runs) for number in range(len(settings.devices))
        ),
    )
    return replace(result, warnings=warn(result, facts, read_facts()))


def _peak_committed(runs: Sequence[EndedRun]) -> int | None:
    if any(len(run.reports) < len(run.endings) for run in runs):
        return None
    return max((sum(r.peak_committed_bytes for r in run.reports) for run in runs), default=None)


def _peak_resident(runs: Sequence[EndedRun]) -> int | None:
    peaks = []
    for run in runs:
        known = [r.peak_resident_bytes for r in run.reports if r.peak_resident_bytes is not None]
        if known and len(known) == len(run.reports):
            peaks.append(sum(known))
    return max(peaks, default=None)


def _hold(reports: Sequence[WorkerReport]) -> HoldResult | None:
    """Return what all workers held together."""
    parts = [report.hold for report in reports if report.hold is not None]
    if not parts:
        return None
    resident = [part.resident_bytes for part in parts if part.resident_bytes is not None]
    return replace(
        parts[0],
        bytes=sum(part.bytes for part in parts),
        budget_bytes=sum(part.budget_bytes for part in parts),
        wall_ns=max(part.wall_ns for part in parts),
        resident_bytes=sum(resident) if len(resident) == len(parts) else None,
    )


def _device_names(reports: Sequence[WorkerReport]) -> str | None:
    """Return the driver's own name of the device; of several each name once."""
    names = dict.fromkeys(report.device for report in reports if report.device is not None)
    return ", ".join(names) or None


def _device_result(settings: StressSettings, number: int, runs: Sequence[EndedRun]) -> DeviceResult:
    """Return what the workers of one of several devices found."""
    step = len(settings.devices)
    parts = [replace(run, endings=run.endings[number::step]) for run in runs]
    reports = [report for part in parts for report in part.reports]
    methods = [part.methods(settings.methods) for part in parts]
    outcomes = [part.outcome for part in parts]
    backing = settings.devices[number]
    peers: tuple[str, ...] = ()
    with suppress(VmtoolError):  # a driver that has failed answers no more; the result says so
        peers = tuple(f"cuda:{peer}" for peer in device_peers(settings, backing))
    return DeviceResult(
        backing=backing,
        device=_device_names(reports),
        outcome=next((o for o in outcomes if o is not Outcome.COMPLETE), Outcome.COMPLETE),
        methods=tuple(map(_join_runs, zip(*filter(None, methods), strict=True))),
        unmapping=_unmapping(reports),
        machine=_device_facts(backing, _unmapping(reports)) or {},
        peers=peers,
    )


def _device_facts(backing: str, unmapping: UnmapResult | None) -> dict[str, Any] | None:
    """Return what is recorded about the device in use; ``None`` for the host."""
    with suppress(VmtoolError):  # a driver that has failed answers no more; the result says so
        info = describe_device(backing)
        if info is not None:
            fresh = None if unmapping is None else unmapping.fresh_zero
            found = read_device_facts(info)
            # The workers have ended, and this process has no context: whoever is listed is another.
            found = replace(found, fresh_zero=fresh, used_by=users_of(info))
            facts: dict[str, Any] = plain(found)
            return facts
    return None


def _unmapping(reports: Sequence[WorkerReport]) -> UnmapResult | None:
    return next((r.unmapping for r in reports if r.unmapping is not None), None)


def _join_workers(parts: Sequence[MethodResult]) -> MethodResult:
    """Return one method's results in workers that ran side by side; rates add up."""
    joined = _join(parts, wall_ns=max(part.wall_ns for part in parts))
    return replace(
        joined,
        cycles_per_s=sum(part.cycles_per_s for part in parts),
        bytes_per_s=sum(part.bytes_per_s for part in parts),
    )


def _join_runs(parts: Sequence[MethodResult]) -> MethodResult:
    """Return one method's results in runs that came one after the other; times add up."""
    wall_ns = sum(part.wall_ns for part in parts)
    joined = _join(parts, wall_ns=wall_ns)
    return replace(
        joined,
        cycles_per_s=sum(part.cycles_per_s * part.wall_ns for part in parts) / max(wall_ns, 1),
        bytes_per_s=sum(part.bytes_per_s * part.wall_ns for part in parts) / max(wall_ns, 1),
    )


def _join(parts: Sequence[MethodResult], *, wall_ns: int) -> MethodResult:
    phases = []
    for name in PHASES:
        found = [phase for part in parts if (phase := part.phase(name)) is not None]
        if found:
            phases.append(join_phases(name, found))
    return MethodResult(
        method=parts[0].method,
        cycles=sum(part.cycles for part in parts),
        wall_ns=wall_ns,
        cycles_per_s=0.0,
        bytes_per_s=0.0,
        degraded_bytes=sum(part.degraded_bytes for part in parts),
        quarantined_bytes=sum(part.quarantined_bytes for part in parts),
        phases=tuple(phases),
        calls=join_calls(part.calls for part in parts),
    )


def _join_checks(reports: Sequence[WorkerReport]) -> tuple[Check, ...]:
    """Return each check once: failed if it failed in any worker, naming the first; counts add up."""
    joined: dict[str, Check] = {}
    for report in reports:
        for check in report.checks:
            other = joined.get(check.name)
            if other is None or (check.failed and not other.failed):
                joined[check.name] = check
            elif other.outcome is check.outcome is CheckOutcome.PASSED:
                joined[check.name] = replace(other, values=_added(other.values, check.values))
    return tuple(joined.values())


def _added(values: Mapping[str, Value], more: Mapping[str, Value]) -> dict[str, Value]:
    """Return *values* with how often was compared in both."""
    sums = {name: values[name] + more.get(name, 0) for name in _COUNTS if name in values}  # type: ignore[operator]
    return {**values, **sums}


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
