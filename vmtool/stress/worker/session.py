"""The cycles of one worker: its threads and buffers, round by round, and the checks at its end."""

from __future__ import annotations

import threading
from dataclasses import replace
from random import Random
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.machine.run_conditions import peak_resident_bytes
from vmtool.memory.backing_by_name import is_device
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_process
from vmtool.memory.governor import Governor, Tier
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import FaultyCalls
from vmtool.memory.threads import start_thread
from vmtool.results.stress import PHASES, CallFailure, HoldResult
from vmtool.stress.journal import (
    BEAT,
    CHECKPOINT,
    FILL,
    IDLE,
    METHOD,
    OPERATION,
    RESERVE,
    UNRESERVE,
)
from vmtool.stress.messages import PhaseSoFar, WorkerReport
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.worker.checkpoint import FIRST_NS, SPACING, CheckedBuffer, Checkpoints
from vmtool.stress.worker.host_contents import CorruptionError
from vmtool.stress.worker.host_target import HostTarget, Target
from vmtool.stress.worker.results_and_checks import (
    FinalChecks,
    ThreadBuffer,
    WorkerProblem,
    call_failure,
    method_result,
    peak_bytes,
    phase_result,
    unmap_failure,
)
from vmtool.stress.worker.round_schedule import Schedule
from vmtool.stress.worker.timed_operations import OperationRunner, measure_overhead
from vmtool.stress.workloads import PATTERNS, Quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vmtool.results.stress import Checkpoint, UnmapResult
    from vmtool.stress.journal import Journal
    from vmtool.stress.messages import WorkerPlan
    from vmtool.stress.worker.checkpoint import CounterObserver
    from vmtool.stress.worker.round_schedule import Round

#: Between two snapshots: a second, and in a long run a twentieth of it. Each leaves the heap a
#: little more scattered; the number of them grows with the logarithm of time.
_SNAPSHOT_NS: Final = 10**9
_SNAPSHOT_PART: Final = 20
#: A short run still takes about this many checkpoints, between rounds, so that leaks are seen.
_LEAST_CHECKPOINTS: Final = 8


class Session:
    """Runs a plan in this process.

    Args:
        plan: What to do.
        journal: Where to note what is being done.
        snapshot: Called between rounds, once a second and later more seldom.
        record: Called with each checkpoint, by the thread that took it.
        spacing: Of the checkpoints, see :class:`Checkpoints`.
        first_ns: What the first checkpoint is expected to take.

    Attributes:
        buffers: By thread and method.
        problems: What ended threads early.
        wall_ns: Time in rounds, by method, checkpoints left out.
        busy_ns: Time in rounds, with checkpoints.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        journal: Journal,
        snapshot: Callable[[Session], None],
        record: Callable[[Checkpoint], None],
        *,
        spacing: int = SPACING,
        first_ns: int = FIRST_NS,
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.buffers: list[list[ThreadBuffer]] = []
        self.problems: list[WorkerProblem] = []
        self.interrupted = False
        self.overhead_ns = measure_overhead()
        self.wall_ns = [0] * len(self.settings.methods)
        self.busy_ns = 0
        self.base_addresses: tuple[int, ...] = ()
        self.resident_before: int | None = None
        self.hold: HoldResult | None = None
        self.governor = Governor(
            dict.fromkeys((Tier.HOST, Tier.DEVICE), worker_budget(self.settings))
        )
        self.target: Target
        self.observer: CounterObserver
        self.journal = journal
        self._snapshot = snapshot
        self._record = record
        self._spacing = spacing
        self._first_ns = first_ns
        self._stop = threading.Event()
        self._schedule = Schedule(self.settings)
        self._round: Round | None = None
        self._round_began = 0
        self._round_paused = 0
        self._snapshot_due = 0
        self._began = 0
        self._abandon = False
        self._defect: BaseException | None = None
        threads = self.settings.threads
        self._barrier = threading.Barrier(threads, self._advance) if threads > 1 else None
        self.faults = FaultyCalls([parse_fault(text) for text in self.settings.inject])
        self.checkpoints: Checkpoints | None = None

    # ---- The cycles -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Make the run end after the operation in flight; may be called from any thread."""
        self._stop.set()

    def prepare(self) -> None:
        """Reserve every buffer; if one is refused, those before it are given back."""
        settings = self.settings
        self.target = target = self._open_target(settings.seed + self.plan.worker)
        try:
            for thread in range(settings.threads):
                self.buffers.append([])
                for index in range(len(target.backings)):
                    self.buffers[thread].append(self._reserve(thread, index))
        except VmtoolError:
            for item in self._all():
                item.buffer.close()
            raise
        self.base_addresses = tuple(item.buffer.base for item in self._all())
        checked = [item.checked for item in self._all()]
        self.observer = target.observer(checked)
        if self.plan.checks:
            self.checkpoints = Checkpoints(
                self.plan.worker,
                checked,
                self.observer,
                settings.threads,
                self._record,
                run=self.plan.run,
                spacing=self._spacing,
                first_ns=self._first_ns,
            )

    def _open_target(self, seed: int) -> Target:
        faults = self.faults if self.settings.inject else None
        if not is_device(self.settings.backing):
            return HostTarget(self.settings, seed, faults)
        from vmtool.stress.worker.device_target import DeviceTarget  # noqa: PLC0415 - it needs the bindings

        beat = self.journal.slot(0)[BEAT : BEAT + 1]  # thousands of driver calls are no hang
        backing = self.settings.backing_of(self.plan.worker)
        return DeviceTarget(self.settings, backing, self.governor, faults, beat)

    def _reserve(self, thread: int, index: int) -> ThreadBuffer:
        settings, backing = self.settings, self.target.backings[index]
        method = settings.methods[index]
        slot = self.journal.slot(thread)
        slot[OPERATION] = RESERVE
        buffer = VirtualBuffer(
            backing,
            settings.capacity_bytes,
            governor=self.governor,
            holder=f"{method}-{thread}",
        )
        contents = None
        if settings.touch != "none":
            contents = self.target.contents(buffer, thread * len(settings.methods) + index)
        verified = settings.verify != "off"
        runner = OperationRunner(buffer, settings.granule_bytes, slot, contents, verified=verified)
        checked = CheckedBuffer(buffer.reservation, runner.ever_committed, method)
        return ThreadBuffer(buffer, runner, checked)

    def _all(self) -> list[ThreadBuffer]:
        return [item for of_thread in self.buffers for item in of_thread]

    def run(self) -> None:
        """Run rounds on every thread until the schedule ends, a thread fails, or :meth:`stop`."""
        self.resident_before = read_process().resident_bytes
        if self.settings.hold:
            try:
                self._hold_budget()
            except VmtoolError as error:
                self.problems.append(WorkerProblem(0, error))
                return
        try:
            threads = [
                start_thread(self._work, index, name=f"stress-{index}")
                for index in range(1, self.settings.threads)
            ]
        except VmtoolError as error:
            if self._barrier is not None:
                self._barrier.abort()  # those that were started wait for the others
            self.problems.append(WorkerProblem(0, error))
            return
        self._work(0)
        for thread in threads:
            thread.join()
        if self._defect is not None:
            raise self._defect

    def cycles(self) -> int:
        """Return the cycles of all threads and methods, without warm-up."""
        return sum(item.runner.cycles for item in self._all())

    def _hold_budget(self) -> None:
        """Commit, touch, compare, check and release the whole budget: patterns may not need it."""
        settings = self.settings
        share = worker_budget(settings) // settings.threads
        count = min(share, settings.capacity_bytes) // settings.granule_bytes
        began = perf_counter_ns()
        self.target.turn(None, 0, warm_up=True)
        firsts = [of_thread[0] for of_thread in self.buffers]
        for item in firsts:
            item.runner.fill(count)
        wall_ns = perf_counter_ns() - began
        if self.checkpoints is not None:
            self.journal.slot(0)[OPERATION] = CHECKPOINT
            self.checkpoints.start()
            self.checkpoints.take_all(0, settled=True)
        held = sum(item.buffer.committed for item in firsts)
        resident = read_process().resident_bytes
        self.hold = HoldResult(held, worker_budget(settings), wall_ns, resident)
        for item in firsts:
            item.runner.empty(count)

    def _work(self, thread: int) -> None:
        random = Random(f"{self.settings.seed}/{self.plan.run}/{self.plan.worker}/{thread}")
        try:
            while True:
                self._meet()
                turn = self._round
                if turn is None:
                    return
                self.journal.slot(thread)[METHOD] = turn.method_index
                self._run_round(thread, self.buffers[thread][turn.method_index], turn, random)
        except VmtoolError as error:
            self.problems.append(WorkerProblem(thread, error))
            self._end_all()
        except threading.BrokenBarrierError:
            return  # another thread failed and has said so
        except BaseException as error:  # noqa: BLE001 - a defect of vmtool: run() raises it again
            self._defect = error
            self._end_all()

    def _end_all(self) -> None:
        if self._barrier is not None:
            self._barrier.abort()
        self._abandon = True

    def _meet(self) -> None:
        if self._barrier is None:
            self._advance()
        else:
            self._barrier.wait()

    def _advance(self) -> None:
        """Close the round that ended and choose the next, while every thread waits."""
        now = perf_counter_ns()
        last = self._round
        if last is not None:
            took = now - self._round_began
            if last.warm_up:
                for of_thread in self.buffers:
                    of_thread[last.method_index].runner.drop_samples()
            else:
                self.wall_ns[last.method_index] += (
                    took - self._round_paused // self.settings.threads
                )
                self.busy_ns += took
        if self._stop.is_set():
            self.interrupted = True
            self._round = None
            return
        if last is not None and not last.warm_up:
            self._checkpoint_between_rounds(now)
        coming = self._round = self._schedule.next()
        slot = self.journal.slot(0)
        slot[OPERATION] = IDLE if self.target.device is None else FILL
        self.target.turn(
            last.method_index if last else None,
            coming.method_index if coming else None,
            warm_up=last is not None and last.warm_up,
        )
        slot[OPERATION] = IDLE
        if coming is None:
            return
        if last is not None and last.warm_up and not coming.warm_up and self.checkpoints:
            self.checkpoints.start()
        if now >= self._snapshot_due:
            self._snapshot(self)
            now = perf_counter_ns()
            self._began = self._began or now
            pause = max((now - self._began) // _SNAPSHOT_PART, _SNAPSHOT_NS)
            self._snapshot_due = now + pause
        self._round_paused = 0
        self._round_began = perf_counter_ns()

    def _checkpoint_between_rounds(self, now: int) -> None:
        """Take a checkpoint where a short run would end with too few to show a leak."""
        checkpoints, settings = self.checkpoints, self.settings
        if checkpoints is None:
            return
        if settings.duration_ns is None:
            wanted = checkpoints.count < _LEAST_CHECKPOINTS
        else:
            wanted = now - checkpoints.last_ns >= settings.duration_ns // _LEAST_CHECKPOINTS
        if wanted:
            slot = self.journal.slot(0)
            slot[OPERATION] = CHECKPOINT
            checkpoints.take_all(self.cycles(), settled=True)
            slot[OPERATION] = IDLE

    def _run_round(self, thread: int, item: ThreadBuffer, turn: Round, random: Random) -> None:
        settings = self.settings
        quota = Quota(turn.commits)
        deadline = perf_counter_ns() + turn.length_ns
        slot = self.journal.slot(thread)
        checkpoints = None if turn.warm_up else self.checkpoints

        def between() -> bool:
            nonlocal deadline
            now = perf_counter_ns()
            if now >= deadline:
                quota.left = 0  # the pattern releases what it has, and ends
            if checkpoints is not None and checkpoints.due(thread, now):
                slot[OPERATION] = CHECKPOINT
                paused = checkpoints.take(thread, item.checked, self.cycles())
                self._round_paused += paused
                deadline += paused
            return not (self._stop.is_set() or self._abandon)

        operations = PATTERNS[settings.pattern](
            settings.capacity_bytes // settings.granule_bytes,
            live_limit(settings),
            quota,
            random,
        )
        item.runner.run(operations, between)
        item.runner.end_round()

    # ---- Reports so far -------------------------------------------------------------------------

    def parts_so_far(self) -> Iterator[PhaseSoFar | WorkerReport]:
        """Yield what was found so far: phase by phase, and then the rest.

        One large message would make the heap grow a little with each new bucket, which a soak
        would find, rightly, and call a leak.
        """
        for index in range(len(self.settings.methods)):
            for phase in PHASES:
                yield PhaseSoFar(index, phase_result(self._of_method(index), phase))
        yield self.report(phases=False)

    def report(self, *, phases: bool = True, complete: bool = False) -> WorkerReport:
        """Return what was found so far, without checks; no thread may be at work."""
        checkpoints = self.checkpoints
        return WorkerReport(
            worker=self.plan.worker,
            complete=complete,
            interrupted=self.interrupted,
            overhead_ns=self.overhead_ns,
            base_addresses=self.base_addresses,
            resident_before_bytes=self.resident_before,
            resident_after_bytes=None,
            methods=tuple(
                method_result(
                    self.settings.methods[index],
                    self._of_method(index),
                    PHASES if phases else (),
                    self.wall_ns[index],
                    self.target.calls(index),
                )
                for index in range(len(self.settings.methods))
            ),
            checkpoints=(),
            checkpoint_ns=checkpoints.spent_ns if checkpoints else 0,
            busy_ns=self.busy_ns * self.settings.threads,
            checks=(),
            device=self.target.device,
            failures=tuple(
                self._failure(problem)
                for problem in self.problems
                if not isinstance(problem.error, CorruptionError)
            ),
            peak_committed_bytes=peak_bytes(self.governor),
            peak_resident_bytes=peak_resident_bytes(),
            hold=self.hold,
        )

    # ---- Closing --------------------------------------------------------------------------------

    def close(self) -> WorkerReport:
        """Check everything once more, give everything back, and return the final report."""
        if self.checkpoints is not None:
            try:
                self.checkpoints.take_all(self.cycles(), settled=not self.problems)
            except VmtoolError as error:  # a device that is lost answers nothing any more
                self.problems.append(WorkerProblem(0, error))
        # Made before anything is closed: a closed buffer no longer says what it held.
        report = self.report(complete=not self.problems and not self.interrupted)
        known = len(self.problems)
        final = FinalChecks(
            settings=self.settings,
            buffers=self._all(),
            base_addresses=self.base_addresses,
            problems=self.problems,
            governor=self.governor,
            target=self.target,
            observer=self.observer,
            checkpoints=self.checkpoints,
            faults=self.faults,
        )
        checks = final.before_closing()
        for thread in range(self.settings.threads):
            self.journal.slot(thread)[OPERATION] = UNRESERVE
        checks += final.by_closing()
        unmapping, failures = None, report.failures
        failures += tuple(map(self._failure, self.problems[known:]))
        try:
            unmapping = self._unmapping(complete=report.complete and failures == report.failures)
        except VmtoolError as error:
            failure = self._failure(WorkerProblem(0, error))
            beside = self.target.beside_work
            failures = (*failures, unmap_failure(failure, error, beside_work=beside))
        return replace(
            report,
            complete=report.complete and failures == report.failures,
            failures=failures,
            checks=tuple(checks),
            unmapping=unmapping,
            resident_after_bytes=read_process().resident_bytes,
            peak_resident_bytes=peak_resident_bytes(),
        )

    def _of_method(self, index: int) -> list[ThreadBuffer]:
        return [of_thread[index] for of_thread in self.buffers]

    def _failure(self, problem: WorkerProblem) -> CallFailure:
        entry = self.journal.read(problem.thread)
        return call_failure(problem.error, entry, self.faults, self.plan.worker)

    def _unmapping(self, *, complete: bool) -> UnmapResult | None:
        """Measure it once a run, after everything else, where memory and time allow it."""
        first = self.plan.worker < len(self.settings.places)  # of its device
        if not complete or not self.plan.checks or not first or self.plan.run:
            return None
        return self.target.measure_unmapping()
