"""The cycles of one worker: its threads, its buffers, round by round until it is done or told."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from random import Random
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_process
from vmtool.memory.faults import FaultyCalls, parse_fault
from vmtool.memory.governor import Governor, Tier
from vmtool.stress.checkpoint import Checkpoints, Subject
from vmtool.stress.ground import open_ground
from vmtool.stress.journal import CHECKPOINT, METHOD, OPERATION, RESERVE
from vmtool.stress.lane import Lane
from vmtool.stress.overhead import measure_overhead
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.schedule import Schedule
from vmtool.stress.workloads import PATTERNS, Quota

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.results import Checkpoint
    from vmtool.stress.ground import Ground, Observer
    from vmtool.stress.journal import Journal
    from vmtool.stress.messages import WorkerPlan
    from vmtool.stress.schedule import Round

#: Between two snapshots: a second, and in a long run a twentieth of it. Each leaves the heap a
#: little more scattered; the number of them grows with the logarithm of time.
_SNAPSHOT_NS: Final = 10**9
_SNAPSHOT_PART: Final = 20


@dataclass(slots=True)
class Seat:
    """One thread's buffer under one method, with everything that belongs to it."""

    buffer: VirtualBuffer
    lane: Lane
    subject: Subject


@dataclass(frozen=True, slots=True)
class Problem:
    """What ended a thread early."""

    thread: int
    error: VmtoolError
    seat: Seat | None


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
        ground: The memory it runs on, once prepared.
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
        self.seats: list[list[Seat]] = []
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
        self.ground: Ground
        self.observer: Observer
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
        self.ground = ground = open_ground(settings, seed, self.governor, self.faults)
        try:
            for thread in range(settings.threads):
                self.seats.append([])
                for index in range(len(ground.backings)):
                    self.seats[thread].append(self._reserve(thread, index))
        except VmtoolError:
            for seats in self.seats:
                for seat in seats:
                    seat.buffer.close()
            raise
        everything = [seat for seats in self.seats for seat in seats]
        self.base_addresses = tuple(seat.buffer.base for seat in everything)
        subjects = [seat.subject for seat in everything]
        self.observer = ground.observer(subjects)
        if self.plan.checks:
            # Each buffer keeps the tables of the most that it ever had committed.
            live = live_limit(settings) * len(subjects)
            self.checkpoints = Checkpoints(
                self.plan.worker, subjects, self.observer, settings.threads, live, self._note
            )

    def _reserve(self, thread: int, index: int) -> Seat:
        settings, backing = self.settings, self.ground.backings[index]
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
            contents = self.ground.witness(buffer, thread * len(settings.methods) + index)
        verified = settings.verify != "off"
        lane = Lane(buffer, settings.granule_bytes, slot, contents, verified=verified)
        return Seat(buffer, lane, Subject(buffer.reservation, lane.ever, backing.method))

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
        self.ground.turn(
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

    def _run_round(self, thread: int, seat: Seat, turn: Round, random: Random) -> None:
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
