"""All workers of a run: started together, followed, and ended when they hang or the user stops."""

from __future__ import annotations

import contextlib
import queue
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.documents import decode, plain
from vmtool.errors import ExitCode, VmtoolError
from vmtool.memory import describe_device
from vmtool.results.stress import (
    PHASES,
    Checkpoint,
    MethodResult,
    Outcome,
    Scaling,
    StressResult,
    StressSettings,
    Verdict,
)
from vmtool.stress.advice import recommend, warn
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerPlan, WorkerReport
from vmtool.stress.parent.child import Ending, JournalFolder, RunningWorker
from vmtool.stress.plan import alone
from vmtool.stress.worker.recorder import join_calls, join_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.machine.facts import MachineFacts

_POLL_S: Final = 0.1
_POLL_NS: Final = 10**8
#: A worker that was told to stop has this long to give everything back before it is killed.
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
) -> tuple[list[Ending], bool]:
    """Run one process for each plan, all started together; return how each ended.

    A ``KeyboardInterrupt`` kills them; what they told before is kept.

    Args:
        plans: What each worker does.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked about ten times a second; once it is true the workers stop early, give
            everything back and report what they have.
        progress: Called about ten times a second with the cycles done by all of them.

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
                workers.append(RunningWorker(plan, path, journal, inbox))
            watch = _Watch(workers, inbox, hang_ns, stopping, progress, begun=folder.hide)
            interrupted = watch.run()
            return [worker.end() for worker in workers], interrupted
        finally:
            for worker in workers:
                worker.close()


class _Watch:
    """The loop that follows running workers until the last has ended.

    Args:
        workers: Whom to follow.
        inbox: Where their messages write_and_time.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked whether to end early.
        progress: Called with the cycles done.
        begun: Called when every worker is ready, before the first cycle.
    """

    def __init__(
        self,
        workers: Sequence[RunningWorker],
        inbox: queue.SimpleQueue[Any],
        hang_ns: int,
        stopping: Callable[[], bool],
        progress: Callable[[int], None],
        *,
        begun: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._inbox = inbox
        self._hang_ns = hang_ns
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
                worker.tell("stop\n")
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
            patience = self._hang_ns if self._started else max(self._hang_ns, _START_NS)
            if late or worker.stalled_ns() > patience:
                worker.hung = True
                worker.kill()

    def _take(self, worker: RunningWorker, message: dict[str, Any]) -> None:
        kind = message["message"]
        if kind == "error":
            raise WorkerRefusedError(decode(WorkerError, message["value"]))
        if kind == "ready":
            self._waiting.discard(worker.index)
        elif kind == "phase":
            part = decode(PhaseSoFar, message["value"])
            worker.arriving[part.method_index, part.phase.phase] = part
        elif kind == "checkpoint":
            worker.timeline.add(decode(Checkpoint, message["value"]))
        elif kind in {"snapshot", "report"}:
            worker.report = decode(WorkerReport, message["value"])
            # Only now, so that what is kept of a killed worker is of one moment.
            worker.phases = dict(worker.arriving)
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
                    other.tell("go\n")


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
