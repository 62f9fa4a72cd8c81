"""All runs of a plan: their workers started together, followed, ended when they hang, joined."""

from __future__ import annotations

import contextlib
import queue
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.documents import decode, plain
from vmtool.errors import ExitCode, VmtoolError
from vmtool.machine.device_facts import read_device_facts
from vmtool.machine.device_memory import users_of
from vmtool.machine.run_conditions import RunConditionsWatch
from vmtool.memory import describe_device
from vmtool.memory.children import KILL_TIMEOUT_S
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.stress import (
    PHASES,
    Checkpoint,
    DeviceResult,
    MethodResult,
    Outcome,
    RunResult,
    Scaling,
    StressResult,
    StressSettings,
)
from vmtool.stress.advice import warn
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerPlan, WorkerReport
from vmtool.stress.method_choice import recommend
from vmtool.stress.parent.leaks import MOST, leak_checks, worker_slopes
from vmtool.stress.parent.worker_process import Ending, JournalFolder, RunningWorker
from vmtool.stress.plan import alone, device_peers, live_limit, run_settings
from vmtool.stress.worker.phase_samples import join_calls, join_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.results.check_outcomes import Check, Value
    from vmtool.results.stress import HoldResult, UnmapResult

#: How often a check compared something, by the names of its values.
_COUNTS: Final = ("spans", "checkpoints", "buffers")
_POLL_S: Final = 0.1
_POLL_NS: Final = 10**8
#: A worker that was asked to stop has this long to give everything back before it is killed.
_GRACE_NS: Final = 10 * 10**9
#: Loading Python on a busy machine is no hang, whatever the user's timeout for operations is.
_START_NS: Final = 60 * 10**9


class WorkerRefusedError(VmtoolError):
    """What a worker could not start with; it keeps the exit code of the worker's own error."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error.message, cause=error.cause, hint=error.hint)
        self.exit_code = ExitCode(error.exit_code)  # type: ignore[misc]


def run_workers(
    plans: Sequence[WorkerPlan],
    *,
    hang_ns: int,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _cycles: None,
    most: int = MOST,
    kill_ns: int = int(KILL_TIMEOUT_S * 10**9),
) -> tuple[list[Ending], bool]:
    """Run one process for each plan, all started together; return how each ended.

    A ``KeyboardInterrupt`` kills them; what they sent before is kept.

    Args:
        plans: What each worker does.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked about ten times a second; once it is true the workers stop early, give
            everything back and report what they have.
        progress: Called about ten times a second with the cycles done by all of them.
        most: Checkpoints of each worker that are kept.
        kill_ns: A worker that was killed and is still there after this long is given up.

    Returns:
        The endings, and whether the run was interrupted.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers: list[RunningWorker] = []
    made = JournalFolder([plan.settings.threads for plan in plans])
    with contextlib.closing(made) as folder:
        try:
            for plan, path, journal in zip(plans, folder.paths, folder.journals, strict=True):
                workers.append(RunningWorker(plan, path, journal, inbox, most))
            patience_ns = hang_ns, kill_ns
            begun = folder.remove_names
            watch = _Watch(workers, inbox, patience_ns, stopping, progress, begun=begun)
            interrupted = watch.run()
            return [worker.end() for worker in workers], interrupted
        finally:
            for worker in workers:
                worker.close()


class _Watch:
    """The loop that follows running workers until the last has ended.

    Args:
        workers: Whom to follow.
        inbox: Where their messages go.
        patience_ns: A worker that does not move for the first is killed; one that is still there the
            second later is given up.
        stopping: Asked whether to end early.
        progress: Called with the cycles done.
        begun: Called when every worker is ready, before the first cycle.
    """

    def __init__(
        self,
        workers: Sequence[RunningWorker],
        inbox: queue.SimpleQueue[Any],
        patience_ns: tuple[int, int],
        stopping: Callable[[], bool],
        progress: Callable[[int], None],
        *,
        begun: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._inbox = inbox
        self._hang_ns, self._kill_ns = patience_ns
        self._stopping = stopping
        self._progress = progress
        self._begun = begun
        self._running = set(range(len(workers)))
        self._waiting = set(range(len(workers)))
        self._started = False
        self._watch_ns = 0
        self._interrupted_ns: int | None = None

    def run(self) -> bool:
        """Follow them; return whether the user ended the run."""
        while self._running:
            try:
                self._step()
            except KeyboardInterrupt:
                self._interrupted_ns = self._interrupted_ns or monotonic_ns()
                for worker in self._workers:
                    worker.kill()
        return self._interrupted_ns is not None

    def _step(self) -> None:
        if self._interrupted_ns is None and self._stopping():
            self._interrupted_ns = monotonic_ns()
            for worker in self._workers:
                worker.send("stop\n")
        with contextlib.suppress(queue.Empty):
            self._take(*self._inbox.get(timeout=_POLL_S))
        # Messages may come faster than that, and must not keep the watch from its work.
        if monotonic_ns() < self._watch_ns:
            return
        self._watch_ns = monotonic_ns() + _POLL_NS
        self._progress(sum(e.cycle for worker in self._workers for e in worker.entries()))
        for index in self._running:
            worker = self._workers[index]
            late = (
                self._interrupted_ns is not None
                and monotonic_ns() - self._interrupted_ns > _GRACE_NS
            )
            if late or worker.stalled_ns() > self._patience_ns(worker):
                worker.kill_hung()
            if worker.abandon(self._kill_ns):
                self._inbox.put((worker, {"message": "end"}))

    def _patience_ns(self, worker: RunningWorker) -> int:
        """Return for how long a worker may stand still: longer only until its first operation."""
        loads = all(entry.operation == "idle" for entry in worker.entries())
        waits = worker.index not in self._waiting  # for the others
        if not self._started and (loads or waits):
            return max(self._hang_ns, _START_NS)
        return self._hang_ns

    def _take(self, worker: RunningWorker, message: dict[str, Any]) -> None:
        kind = message["message"]
        if kind == "error":
            raise WorkerRefusedError(decode(WorkerError, message["value"]))
        if kind == "ready":
            self._waiting.discard(worker.index)
        elif kind == "phase":
            part = decode(PhaseSoFar, message["value"])
            worker.incoming[part.method_index, part.phase.phase] = part
        elif kind == "checkpoint":
            worker.timeline.add(decode(Checkpoint, message["value"]))
        elif kind in {"snapshot", "report"}:
            worker.report = decode(WorkerReport, message["value"])
            # Only now, so that what is kept of a killed worker is of one moment.
            worker.phases = dict(worker.incoming)
            worker.final = kind == "report"
        elif kind == "end":
            self._running.discard(worker.index)
            self._waiting.discard(worker.index)
        if kind in {"ready", "end"} and not self._waiting and not self._started:
            self._started = True
            self._begun()
            for other in self._workers:
                other.moved_ns = monotonic_ns()
            # All begin together; one that died before it was ready does not hold up the others.
            for other in self._workers:
                if not other.final:
                    other.send("go\n")


#: The run with one worker and one thread, for scaling, takes a quarter of the time, 2 s at most.
_SINGLE_PART: Final = 4
_SINGLE_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        cycles: Cycles done by all workers and threads, warm-up included.
        elapsed_ns: Since the workers were started.
        run: The number of the run, from 1.
    """

    cycles: int
    elapsed_ns: int
    run: int


def run_stress(
    settings: StressSettings,
    facts: MachineFacts,
    *,
    hang_ns: int,
    checks: bool = True,
    name_host: bool = True,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> StressResult:
    """Run *settings* in worker processes; what is ended early leaves a valid partial result.

    Args:
        settings: What to do.
        facts: About this machine, for the result.
        hang_ns: A worker that does not move for this long is killed.
        checks: Whether to take checkpoints of the counters.
        name_host: Whether the machine's name goes into the result.
        stopping: Asked about ten times a second whether to end early.
        progress: Called about ten times a second.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    began = perf_counter_ns()
    watch = RunConditionsWatch(name_host=name_host)
    done = 0
    runs: list[_Run] = []

    def show(cycles: int) -> None:
        progress(Progress(done + cycles, perf_counter_ns() - began, len(runs) + 1))

    single: list[Ending] = []
    interrupted = False
    if settings.workers * settings.threads > 1:
        plan = WorkerPlan(_shorter(alone(settings)), 0, checks=False)
        single, interrupted = run_workers([plan], hang_ns=hang_ns, stopping=stopping, progress=show)
    while not interrupted and len(runs) < settings.runs:
        run = len(runs)
        share = run_settings(settings, run)
        plans = [WorkerPlan(share, worker, checks, run) for worker in range(settings.workers)]
        run_began = perf_counter_ns()
        endings, interrupted = run_workers(
            plans,
            hang_ns=hang_ns,
            stopping=stopping,
            progress=show,
            most=max(MOST // settings.runs, 16),
        )
        took_ns = perf_counter_ns() - run_began
        runs.append(_Run(run, share.methods, endings, took_ns, interrupted=interrupted))
        done += sum(method.cycles for method in runs[-1].methods(settings.methods))
        if runs[-1].outcome is not Outcome.COMPLETE:
            break
    if not runs:
        runs.append(_Run(0, settings.methods, [], 0, interrupted=interrupted))
    wall_ns = perf_counter_ns() - began
    return _assemble(settings, facts, single, runs, wall_ns, watch)


def with_checks(result: StressResult, checks: Sequence[Check]) -> StressResult:
    """Return *result* with more checks, such as those of assertions."""
    return replace(result, checks=(*result.checks, *checks))


def what_ended(result: StressResult) -> str | None:
    """Return the first call that failed, or how a worker died; ``None`` if neither."""
    if result.accidents:
        return result.accidents[0].cause
    return result.failures[0].message if result.failures else None


def _shorter(settings: StressSettings) -> StressSettings:
    if settings.duration_ns is not None:
        part = min(settings.duration_ns // _SINGLE_PART, _SINGLE_NS)
        settings = replace(settings, duration_ns=max(part, 1))
    if settings.cycles is not None:
        settings = replace(settings, cycles=max(settings.cycles // _SINGLE_PART, 1))
    return settings


@dataclass(frozen=True, slots=True)
class _Run:
    """One run as its workers ended it."""

    index: int
    order: tuple[str, ...]
    endings: Sequence[Ending]
    wall_ns: int
    interrupted: bool

    @property
    def reports(self) -> list[WorkerReport]:
        return [ending.report for ending in self.endings if ending.report is not None]

    @property
    def outcome(self) -> Outcome:
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


def _assemble(
    settings: StressSettings,
    facts: MachineFacts,
    single: Sequence[Ending],
    runs: Sequence[_Run],
    wall_ns: int,
    watch: RunConditionsWatch,
) -> StressResult:
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
    peak = max((sum(r.peak_committed_bytes for r in run.reports) for run in runs), default=0)
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
        budget_reached=peak > settings.budget_bytes - slack,
        hold=_hold(runs[0].reports),
        devices=tuple(
            _device_result(settings, number, runs) for number in range(len(settings.devices))
        ),
    )
    return replace(result, warnings=warn(result, facts))


def _peak_resident(runs: Sequence[_Run]) -> int | None:
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


def _device_result(settings: StressSettings, number: int, runs: Sequence[_Run]) -> DeviceResult:
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
