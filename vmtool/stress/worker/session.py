"""The cycles of one worker: its threads, its buffers, round by round until it is done or told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.memory.backing import failed_call
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_process
from vmtool.memory.faults import FaultyCalls
from vmtool.memory.governor import BudgetError, Governor, Tier
from vmtool.memory.inject import parse_fault
from vmtool.results.stress import (
    COUNTERS,
    DEVICE_COUNTERS,
    PHASES,
    CallFailure,
    MethodResult,
    Verdict,
)
from vmtool.stress.messages import PhaseSoFar, WorkerReport
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.worker.checkpoint import CheckedBuffer, Checkpoints
from vmtool.stress.worker.contents import CorruptionError
from vmtool.stress.worker.journal import (
    CHECKPOINT,
    METHOD,
    OPERATION,
    RESERVE,
    UNRESERVE,
)
from vmtool.stress.worker.lane import Lane, measure_overhead
from vmtool.stress.worker.recorder import join_phases
from vmtool.stress.worker.schedule import Schedule
from vmtool.stress.worker.target import open_target
from vmtool.stress.worker.workloads import PATTERNS, Quota
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.results.stress import Checkpoint, CounterSlope, PhaseResult, UnmapResult
    from vmtool.stress.messages import WorkerPlan
    from vmtool.stress.worker.journal import Journal
    from vmtool.stress.worker.schedule import Round
    from vmtool.stress.worker.target import CounterObserver, Target

#: Between two snapshots: a second, and in a long run a twentieth of it. Each leaves the heap a
#: little more scattered; the number of them grows with the logarithm of time.
_SNAPSHOT_NS: Final = 10**9
_SNAPSHOT_PART: Final = 20


@dataclass(slots=True)
class ThreadBuffer:
    """One thread's buffer under one method, with everything that belongs to it."""

    buffer: VirtualBuffer
    lane: Lane
    subject: CheckedBuffer


@dataclass(frozen=True, slots=True)
class Problem:
    """What ended a thread early."""

    thread: int
    error: VmtoolError
    seat: ThreadBuffer | None


class Session:
    """Runs a plan in this process.

    Args:
        plan: What to do.
        journal: Where to note what is being done.
        snapshot: Called between rounds, once a second and later more seldom.
        note: Called with each checkpoint, by the thread that took it.

    Attributes:
        seats: By thread and method.
        problems: What ended threads early.
        interrupted: Whether :meth:`stop` ended the run.
        wall_ns: Time in rounds, by method, checkpoints left out.
        busy_ns: Time in rounds, with checkpoints.
        target: The memory it runs on, once prepared.
        observer: Who counts that memory, once prepared.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        journal: Journal,
        snapshot: Callable[[Session], None],
        note: Callable[[Checkpoint], None],
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.seats: list[list[ThreadBuffer]] = []
        self.problems: list[Problem] = []
        self.interrupted = False
        self.overhead_ns = measure_overhead()
        self.wall_ns = [0] * len(self.settings.methods)
        self.busy_ns = 0
        self.base_addresses: tuple[int, ...] = ()
        self.resident_before: int | None = None
        self.governor = Governor(
            dict.fromkeys((Tier.HOST, Tier.DEVICE), worker_budget(self.settings))
        )
        self.target: Target
        self.observer: CounterObserver
        self._journal = journal
        self._snapshot = snapshot
        self._note = note
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

    def stop(self) -> None:
        """Make the run end after the operation in flight; may be called from any thread."""
        self._stop.set()

    def prepare(self) -> None:
        """Reserve every buffer; nothing is committed yet.

        Raises:
            VmtoolError: If one cannot be; those before it are given back.
        """
        settings = self.settings
        seed = settings.seed + self.plan.worker
        self.target = target = open_target(settings, seed, self.governor, self.faults)
        try:
            for thread in range(settings.threads):
                self.seats.append([])
                for index in range(len(target.backings)):
                    self.seats[thread].append(self._reserve(thread, index))
        except VmtoolError:
            for seats in self.seats:
                for seat in seats:
                    seat.buffer.close()
            raise
        everything = [seat for seats in self.seats for seat in seats]
        self.base_addresses = tuple(seat.buffer.base for seat in everything)
        subjects = [seat.subject for seat in everything]
        self.observer = target.observer(subjects)
        if self.plan.checks:
            # Each buffer keeps the tables of the most that it ever had committed.
            live = live_limit(settings) * len(subjects)
            self.checkpoints = Checkpoints(
                self.plan.worker, subjects, self.observer, settings.threads, live, self._note
            )

    def _reserve(self, thread: int, index: int) -> ThreadBuffer:
        settings, backing = self.settings, self.target.backings[index]
        slot = self._journal.slot(thread)
        slot[OPERATION] = RESERVE
        buffer = VirtualBuffer(
            backing,
            settings.capacity_bytes,
            governor=self.governor,
            holder=f"{backing.method}-{thread}",
        )
        contents = None
        if settings.touch != "none":
            contents = self.target.contents(buffer, thread * len(settings.methods) + index)
        verified = settings.verify != "off"
        lane = Lane(buffer, settings.granule_bytes, slot, contents, verified=verified)
        return ThreadBuffer(
            buffer, lane, CheckedBuffer(buffer.reservation, lane.ever, backing.method)
        )

    def run(self) -> None:
        """Run rounds on every thread until the schedule ends, a thread fails, or :meth:`stop`."""
        self.resident_before = read_process().resident_bytes
        threads = [
            threading.Thread(target=self._work, args=(index,), name=f"stress-{index}")
            for index in range(1, self.settings.threads)
        ]
        for thread in threads:
            thread.start()
        self._work(0)
        for thread in threads:
            thread.join()
        if self._defect is not None:
            raise self._defect

    def cycles(self) -> int:
        """Return the cycles of all threads and methods, warm-up left out."""
        return sum(seat.lane.cycles for seats in self.seats for seat in seats)

    def _work(self, thread: int) -> None:
        random = Random(f"{self.settings.seed}/{self.plan.worker}/{thread}")
        seat = None
        try:
            while True:
                self._meet()
                turn = self._round
                if turn is None:
                    return
                seat = self.seats[thread][turn.method_index]
                self._journal.slot(thread)[METHOD] = turn.method_index
                self._run_round(thread, seat, turn, random)
        except VmtoolError as error:
            self.problems.append(Problem(thread, error, seat))
            if self._barrier is not None:
                self._barrier.abort()
            self._abandon = True
        except threading.BrokenBarrierError:
            return  # another thread failed and has said so
        except BaseException as error:  # noqa: BLE001 - a defect of vmtool: run() raises it again
            self._defect = error
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
                for seats in self.seats:
                    seats[last.method_index].lane.forget()
            else:
                self.wall_ns[last.method_index] += (
                    took - self._round_paused // self.settings.threads
                )
                self.busy_ns += took
        if self._stop.is_set():
            self.interrupted = True
            self._round = None
            return
        coming = self._round = self._schedule.next()
        self.target.turn(
            last.method_index if last else None,
            coming.method_index if coming else None,
            warm_up=last is not None and last.warm_up,
        )
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

    def _run_round(self, thread: int, seat: ThreadBuffer, turn: Round, random: Random) -> None:
        settings = self.settings
        quota = Quota(turn.commits)
        deadline = perf_counter_ns() + turn.length_ns
        slot = self._journal.slot(thread)
        checkpoints = None if turn.warm_up else self.checkpoints

        def between() -> bool:
            nonlocal deadline
            now = perf_counter_ns()
            if now >= deadline:
                quota.left = 0  # the pattern releases what it has, and ends
            if checkpoints is not None and checkpoints.due(thread, now):
                slot[OPERATION] = CHECKPOINT
                paused = checkpoints.take(thread, seat.subject, self.cycles())
                self._round_paused += paused
                deadline += paused
            return not (self._stop.is_set() or self._abandon)

        operations = PATTERNS[settings.pattern](
            settings.capacity_bytes // settings.granule_bytes,
            live_limit(settings),
            quota,
            random,
        )
        seat.lane.run(operations, between)
        seat.lane.end_round()


def snapshot(session: Session, journal: Journal) -> Iterator[PhaseSoFar | WorkerReport]:
    """Yield what *session* found so far: phase by phase, and then the rest.

    One large message would make the heap grow a little with each new bucket, which a soak would
    find, rightly, and call a leak.
    """
    for index in range(len(session.settings.methods)):
        for phase in PHASES:
            yield PhaseSoFar(index, _phase(session, index, phase))
    yield report_of(session, journal, phases=False)


def report_of(
    session: Session, journal: Journal, *, phases: bool = True, complete: bool = False
) -> WorkerReport:
    """Return what *session* found so far, without verdicts.

    Args:
        session: No thread of it may be at work.
        journal: What each thread was doing when it failed.
        phases: Whether latencies and slopes are in it.
        complete: Whether the session did all that was planned.
    """
    checkpoints = session.checkpoints
    return WorkerReport(
        worker=session.plan.worker,
        complete=complete,
        interrupted=session.interrupted,
        overhead_ns=session.overhead_ns,
        base_addresses=session.base_addresses,
        resident_before_bytes=session.resident_before,
        resident_after_bytes=None,
        methods=tuple(
            _method(session, index, PHASES if phases else ())
            for index in range(len(session.settings.methods))
        ),
        checkpoints=(),
        checkpoint_ns=checkpoints.spent_ns if checkpoints else 0,
        busy_ns=session.busy_ns * session.settings.threads,
        slopes=checkpoints.slopes() if checkpoints and phases else (),
        verdicts=(),
        device=session.target.device,
        failures=tuple(
            _failure(session, problem, journal)
            for problem in session.problems
            if not isinstance(problem.error, CorruptionError)
        ),
    )


def _phase(session: Session, index: int, phase: str) -> PhaseResult:
    seats = (seats[index] for seats in session.seats)
    return join_phases(phase, [seat.lane.recorders[phase].result(phase) for seat in seats])


def _method(session: Session, index: int, phases: Sequence[str]) -> MethodResult:
    seats = [seats[index] for seats in session.seats]
    found = [_phase(session, index, phase) for phase in phases]
    cycles = sum(seat.lane.cycles for seat in seats)
    wall_ns = session.wall_ns[index]
    per_second = 10**9 / wall_ns if wall_ns else 0.0
    committed = sum(seat.lane.recorders["commit"].total_bytes for seat in seats)
    return MethodResult(
        method=session.settings.methods[index],
        cycles=cycles,
        wall_ns=wall_ns,
        cycles_per_s=cycles * per_second,
        bytes_per_s=committed * per_second,
        degraded_bytes=sum(seat.subject.reservation.degraded.total for seat in seats),
        quarantined_bytes=sum(seat.subject.reservation.quarantined.total for seat in seats),
        phases=tuple(phase for phase in found if phase.summary.samples),
        calls=session.target.calls(index),
    )


def _failure(session: Session, problem: Problem, journal: Journal) -> CallFailure:
    error = problem.error
    call = failed_call(error)
    entry = journal.read(problem.thread)
    struck = {(fault.call, fault.effect) for fault in session.faults.applied}
    injected = call is not None and (call.call, call.symbol) in struck
    return CallFailure(
        call=call.call if call else "",
        symbol=call.symbol if call else type(error).__name__,
        message=str(error),
        operation=entry.operation,
        granule=entry.granule,
        cycle=entry.cycle,
        worker=session.plan.worker,
        injected=injected,
        # What the machine had to do with it was nothing.
        cause="it was asked for" if injected else error.cause,
        hint="leave out --inject" if injected else error.hint,
    )


# One retry tells a refusal that passes from one that stays.
_CLOSE_TRIES: Final = 2


def close_session(session: Session, journal: Journal) -> WorkerReport:
    """Check everything once more, give everything back, and return the final report."""
    if session.checkpoints is not None:
        session.checkpoints.take_all(session.cycles(), settled=not session.problems)
    # Made before anything is closed: a closed buffer no longer tells what it held.
    report = report_of(session, journal, complete=not session.problems and not session.interrupted)
    verdicts = [_contents(session), _zero(session), _base(session), _leases(session)]
    verdicts.append(_budget(session))
    for thread in range(session.settings.threads):
        journal.slot(thread)[OPERATION] = UNRESERVE
    refusals = _close_all(session)
    verdicts.append(_released(session, refusals))
    verdicts += _ledgers(session) + _leaks(session, report.slopes)
    if session.settings.inject:
        verdicts.append(_injected(session))
    return replace(
        report,
        verdicts=tuple(verdicts),
        unmapping=_unmapping(session, complete=report.complete),
        resident_after_bytes=read_process().resident_bytes,
    )


def _unmapping(session: Session, *, complete: bool) -> UnmapResult | None:
    """Measure it once a run, after everything else, where memory and time allow it."""
    if not complete or not session.plan.checks or session.plan.worker:
        return None
    try:
        return session.target.measure_unmapping()
    except VmtoolError:
        return None  # a device that is full, or has failed: the run itself was complete


def _injected(session: Session) -> Verdict:
    """A fault that never happened proves nothing, and the user must know."""
    missing = [fault for fault in session.faults.faults if fault not in session.faults.applied]
    if not missing:
        return Verdict("inject", passed=True, detail="every fault that was asked for happened")
    fault = missing[0]
    made = session.faults.counts.get(fault.call, 0)
    return Verdict(
        "inject",
        passed=None,
        detail=f"{fault} did not happen: {fault.call} was called {made} times",
        hint="use a smaller N, more cycles, or another --method",
    )


def _seats(session: Session) -> list[ThreadBuffer]:
    return [seat for seats in session.seats for seat in seats]


def _contents(session: Session) -> Verdict:
    if session.settings.verify == "off":
        return Verdict("contents", None, "not asked for")
    for problem in session.problems:
        error = problem.error
        if isinstance(error, CorruptionError) and error.corruption.check != "zero":
            return Verdict("contents", passed=False, detail=str(error), hint=error.hint)
    checked = sum(
        seat.lane.recorders["verify"].result("verify").summary.samples for seat in _seats(session)
    )
    how = "every byte" if session.settings.verify == "full" else "two pieces of 4 KiB"
    return Verdict(
        "contents",
        passed=True,
        detail=f"{how} of each released span held what was written ({checked:,} spans)",
    )


def _zero(session: Session) -> Verdict:
    if session.settings.verify == "off":
        return Verdict("zero", None, "not asked for")
    if not any(seat.buffer.backing.zeroes for seat in _seats(session)):
        return Verdict("zero", None, "this memory does not promise to be zero when fresh")
    for problem in session.problems:
        error = problem.error
        if isinstance(error, CorruptionError) and error.corruption.check == "zero":
            return Verdict("zero", passed=False, detail=str(error), hint=error.hint)
    promising = {
        seat.buffer.backing.method for seat in _seats(session) if seat.buffer.backing.zeroes
    }
    methods = ", ".join(name for name in session.settings.methods if name in promising)
    return Verdict("zero", passed=True, detail=f"freshly committed memory read as zero ({methods})")


def _base(session: Session) -> Verdict:
    now = tuple(seat.buffer.base for seat in _seats(session))
    moved = sum(a != b for a, b in zip(now, session.base_addresses, strict=True))
    return Verdict("base", passed=not moved, detail=f"{moved} of {len(now)} buffers moved")


def _leases(session: Session) -> Verdict:
    """The governor's ledger and the buffers' maps tell of the same bytes (V2, B8)."""
    held = session.target.pooled_bytes() + sum(
        seat.buffer.committed + seat.subject.reservation.quarantined.total
        for seat in _seats(session)
        if seat.buffer.backing.accounting.authority is None
    )
    leased = sum(session.governor.ledger(tier).used_bytes for tier in (Tier.HOST, Tier.DEVICE))
    return Verdict(
        "leases",
        passed=held == leased,
        detail=f"{leased} bytes leased, {held} committed, pooled or quarantined",
    )


def _budget(session: Session) -> Verdict:
    """The governor let nobody over the limit, and refuses the first byte beyond it (V2)."""
    governor, limit = session.governor, worker_budget(session.settings)
    peak = max(governor.ledger(tier).peak_bytes for tier in (Tier.HOST, Tier.DEVICE))
    refused = 0
    for tier in (Tier.HOST, Tier.DEVICE):
        used = governor.ledger(tier).used_bytes
        try:
            governor.lease(tier, limit - used + 1).release()
        except BudgetError:
            refused += governor.ledger(tier).used_bytes == used
    return Verdict(
        "budget",
        passed=peak <= limit and refused == 2,
        detail=f"at most {format_size(peak)} of {format_size(limit)} were committed at once, and "
        f"one byte more was {'refused' if refused == 2 else 'not refused'}",
    )


def _close_all(session: Session) -> list[VmtoolError]:
    """Close every buffer; return the refusals that stayed."""
    refusals: list[VmtoolError] = []
    for seat in _seats(session):
        for attempt in range(_CLOSE_TRIES):
            try:
                seat.buffer.close()
                break
            except VmtoolError as error:
                if attempt == _CLOSE_TRIES - 1:
                    refusals.append(error)
    return refusals


def _released(session: Session, refusals: list[VmtoolError]) -> Verdict:
    if refusals:
        return Verdict("released", passed=False, detail=str(refusals[0]), hint=refusals[0].hint)
    leased = sum(session.governor.ledger(tier).used_bytes for tier in (Tier.HOST, Tier.DEVICE))
    leased -= session.target.pooled_bytes()
    left, buffers = session.observer.count_mapped(), len(session.base_addresses)
    mapped = (
        f"whether any of {buffers} buffers is still mapped is not told here"
        if left is None
        else f"{left} of {buffers} buffers are still mapped"
    )
    return Verdict(
        "released", passed=not left and not leased, detail=f"{mapped}, {leased} bytes leased"
    )


def _ledgers(session: Session) -> list[Verdict]:
    checkpoints = session.checkpoints
    if checkpoints is None:
        names = session.observer.ledgers
        return [Verdict(f"ledger.{name}", None, "no checkpoints were taken") for name in names]
    verdicts = []
    for name in session.observer.ledgers:
        differing = checkpoints.differing.get(name)
        if name not in checkpoints.told:
            verdicts.append(Verdict(f"ledger.{name}", None, "this platform does not tell it"))
        elif differing is None:
            detail = f"agreed at {checkpoints.compared} checkpoints"
            verdicts.append(Verdict(f"ledger.{name}", passed=True, detail=detail))
        else:
            reading = next(r for r in differing.buffers if r.ledger == name)
            unit = "" if name.endswith("mappings") else " bytes"
            who = "the driver" if name in DEVICE_COUNTERS else "the kernel"
            detail = (
                f"{differing.method}, cycle {differing.cycle}: {who} counts "
                f"{reading.observed}{unit}, vmtool believes {reading.believed} "
                f"(allowed {reading.low} to {reading.high})"
            )
            hint = "another --method shows whether the method or the kernel is at fault"
            verdicts.append(Verdict(f"ledger.{name}", passed=False, detail=detail, hint=hint))
    return verdicts


def _leaks(session: Session, slopes: tuple[CounterSlope, ...]) -> list[Verdict]:
    verdicts, checkpoints = [], session.checkpoints
    names = dict.fromkeys((*COUNTERS, *(slope.ledger for slope in slopes)))
    for name in names:
        slope = next((slope for slope in slopes if slope.ledger == name), None)
        if slope is None and checkpoints is not None and name not in checkpoints.counted:
            verdicts.append(Verdict(f"leak.{name}", None, "this platform does not tell it"))
            continue
        if slope is None:
            detail = "too few checkpoints for a slope"
            verdicts.append(Verdict(f"leak.{name}", None, detail, "run for longer: --duration 10s"))
            continue
        unit = "mappings" if name == "mappings" else "bytes"
        detail = (
            f"{slope.per_cycle:.3g} {unit} a cycle ({slope.low:.3g} to {slope.high:.3g} with "
            f"{slope.confidence:.0%} confidence), {slope.grown} in all"
        )
        hint = "confirm with --soak 10m; --method all shows which method leaks"
        verdicts.append(
            Verdict(f"leak.{name}", not slope.leaks, detail, hint if slope.leaks else None)
        )
    return verdicts
