"""All runs of a plan: starting, following and ending the workers, and combining their results."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
from dataclasses import dataclass, replace
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import ExitCode, VmtoolError
from vmtool.json_documents import decode
from vmtool.machine import read_facts
from vmtool.machine.killed_or_slowed_children import HighWatch
from vmtool.machine.run_conditions import RunConditionsWatch
from vmtool.memory.children import KILL_TIMEOUT_S
from vmtool.results.stress import Checkpoint, Outcome, StressResult, StressSettings
from vmtool.stress.journal import JournalFolder
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerPlan, WorkerReport
from vmtool.stress.parent.joined_result import EndedRun, assemble
from vmtool.stress.parent.worker_process import Ending, RunningWorker
from vmtool.stress.plan import alone, run_settings
from vmtool.stress.worker.checkpoint import MOST_CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.machine.facts import MachineFacts

_POLL_S: Final = 0.1
_POLL_NS: Final = 10**8
#: A worker that was asked to stop has this long to give everything back before it is killed.
_GRACE_NS: Final = 10 * 10**9
#: For so long a group may be above memory.high while a worker does not finish a cycle; and while it
#: was asked to stop.
_SLOWED_NS: Final = 10 * 10**9
_GRACE_SLOWED_NS: Final = 2 * 10**9
#: Loading Python on a busy machine is no hang, whatever the user's timeout for operations is.
_START_NS: Final = 60 * 10**9
#: The run with one worker and one thread, for scaling, takes a quarter of the time, 2 s at most.
_SINGLE_PART: Final = 4
_SINGLE_NS: Final = 2 * 10**9


class WorkerRefusedError(VmtoolError):
    """A worker refused to start; the exit code is that of its own error."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error.message, cause=error.cause, hint=error.hint)
        self.exit_code = ExitCode(error.exit_code)  # type: ignore[misc]


def run_workers(
    plans: Sequence[WorkerPlan],
    *,
    hang_ns: int,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _cycles: None,
    most: int = MOST_CHECKPOINTS,
    kill_ns: int = int(KILL_TIMEOUT_S * 10**9),
) -> tuple[list[Ending], bool]:
    """Run one process for each plan, all started together; return how each ended.

    A ``KeyboardInterrupt`` kills them; what they sent before is kept.

    Args:
        plans: What each worker does.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Called about ten times a second; once it returns true the workers stop early, give
            everything back and report what they have.
        progress: Called about ten times a second with the cycles done by all of them.
        most: Checkpoints of each worker that are kept.
        kill_ns: A worker that was killed and is still there after this long is given up.

    Returns:
        The endings, and whether the run was interrupted.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    # Not a SimpleQueue (docs/platform-facts.md#python-simple-queue).
    inbox: queue.Queue[Any] = queue.Queue()
    workers: list[RunningWorker] = []
    made = JournalFolder([plan.settings.threads for plan in plans])
    with contextlib.closing(made) as folder:
        high = HighWatch(read_facts().cgroup.levels)
        try:
            for plan, path, journal in zip(plans, folder.paths, folder.journals, strict=True):
                workers.append(RunningWorker(plan, path, journal, inbox, most))
            patience_ns = hang_ns, kill_ns
            begun = folder.remove_names
            watch = _Watch(workers, inbox, patience_ns, stopping, progress, begun=begun, high=high)
            interrupted = watch.run()
            return [worker.end() for worker in workers], interrupted
        finally:
            for worker in workers:
                worker.close()
            high.close()


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
        high: Follows the groups with a memory.high.
    """

    def __init__(
        self,
        workers: Sequence[RunningWorker],
        inbox: queue.Queue[Any],
        patience_ns: tuple[int, int],
        stopping: Callable[[], bool],
        progress: Callable[[int], None],
        *,
        begun: Callable[[], None],
        high: HighWatch,
    ) -> None:
        self._workers = workers
        self._inbox = inbox
        self._hang_ns, self._kill_ns = patience_ns
        self._stopping = stopping
        self._progress = progress
        self._begun = begun
        self._high = high
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
        now = monotonic_ns()
        if now < self._watch_ns:
            return
        self._watch_ns = now + _POLL_NS
        # Read before the cycles are: whoever stands still then does the same cycle as long or longer.
        stalled_ns = {index: self._workers[index].stalled_ns(now) for index in self._running}
        self._end_slowed(now)
        self._progress(sum(e.cycle for worker in self._workers for e in worker.entries()))
        for index in self._running:
            worker = self._workers[index]
            late = self._interrupted_ns is not None and now - self._interrupted_ns > _GRACE_NS
            if late or stalled_ns[index] > self._patience_ns(worker):
                worker.kill_hung()
            if worker.unheard:
                worker.kill_unheard()
                self._inbox.put((worker, {"message": "end"}))
            if worker.abandon(self._kill_ns):
                self._inbox.put((worker, {"message": "end"}))

    def _end_slowed(self, now: int) -> None:
        """End all workers if memory.high keeps them from going on: first that, and then say why.

        This process is slowed down as well for as long as they hold so much.
        """
        slowed_ns = self._high.slowed_ns(now)
        workers = [self._workers[index] for index in self._running]
        if not slowed_ns or all(worker.hung for worker in workers):
            return
        if self._interrupted_ns is None:
            patience_ns = min(self._hang_ns, _SLOWED_NS)
            waited_ns = max(worker.same_cycle_ns(now) for worker in workers)
        else:
            patience_ns, waited_ns = _GRACE_SLOWED_NS, now - self._interrupted_ns
        if min(slowed_ns, waited_ns) <= patience_ns:
            return
        for worker in workers:
            worker.kill()
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(self._kill_ns / 10**9)
        found = self._high.diagnose()
        for worker in workers:
            worker.hung = worker.hung or found

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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        cycles: Cycles done by all workers and threads in all runs; it never becomes less, nor more
            than was requested.
        elapsed_ns: Since the workers were started.
        run: The number of the run, from 1.
    """

    cycles: int
    elapsed_ns: int
    run: int


class CycleCount:
    """Adds up the cycles of all runs; those of a run's warm-up count until it ends."""

    def __init__(self) -> None:
        self._before = self._now = self._most = 0

    def begin(self, most: int | None) -> None:
        """Begin a run that measures at most *most* cycles; ``None`` means no limit."""
        self._before += self._now
        self._now, self._most = 0, sys.maxsize if most is None else most

    def seen(self, cycles: int) -> int:
        """Return the cycles of all runs, given those that the present run has done."""
        self._now = min(max(self._now, cycles), self._most)
        return self._before + self._now


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
        stopping: Called about ten times a second; returns whether to end early.
        progress: Called about ten times a second.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    began = perf_counter_ns()
    watch = RunConditionsWatch(name_host=name_host)
    count = CycleCount()
    runs: list[EndedRun] = []

    def show(cycles: int) -> None:
        progress(Progress(count.seen(cycles), perf_counter_ns() - began, len(runs) + 1))

    single: list[Ending] = []
    interrupted = False
    if settings.workers * settings.threads > 1:
        plan = WorkerPlan(_shorter(alone(settings)), 0, checks=False)
        single, interrupted = run_workers([plan], hang_ns=hang_ns, stopping=stopping, progress=show)
    while not interrupted and len(runs) < settings.runs:
        run = len(runs)
        share = run_settings(settings, run)
        lanes = share.workers * share.threads * len(share.methods)
        count.begin(None if share.cycles is None else share.cycles * lanes)
        plans = [WorkerPlan(share, worker, checks, run) for worker in range(settings.workers)]
        run_began = perf_counter_ns()
        endings, interrupted = run_workers(
            plans,
            hang_ns=hang_ns,
            stopping=stopping,
            progress=show,
            most=max(MOST_CHECKPOINTS // settings.runs, 16),
        )
        took_ns = perf_counter_ns() - run_began
        runs.append(EndedRun(run, share.methods, endings, took_ns, interrupted=interrupted))
        count.seen(sum(method.cycles for method in runs[-1].methods(settings.methods)))
        if runs[-1].outcome is not Outcome.COMPLETE:
            break
    if not runs:
        runs.append(EndedRun(0, settings.methods, [], 0, interrupted=interrupted))
    wall_ns = perf_counter_ns() - began
    return assemble(settings, facts, single, runs, wall_ns, watch)


def _shorter(settings: StressSettings) -> StressSettings:
    if settings.duration_ns is not None:
        part = min(settings.duration_ns // _SINGLE_PART, _SINGLE_NS)
        settings = replace(settings, duration_ns=max(part, 1))
    if settings.cycles is not None:
        settings = replace(settings, cycles=max(settings.cycles // _SINGLE_PART, 1))
    return settings
