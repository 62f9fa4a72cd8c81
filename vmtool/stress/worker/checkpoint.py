"""Checkpoints over hours in bounded memory: evenly spaced ones, and the points of the slopes."""

from __future__ import annotations

import threading
from array import array
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.results.stress import Checkpoint
from vmtool.stress.worker.expected import leak_slopes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.backing import Reservation
    from vmtool.memory.blocks import BlockMap
    from vmtool.results.stress import CounterReading, CounterSlope
    from vmtool.stress.worker.target import CounterObserver

#: When there are more, every other one is dropped.
MOST: Final = 256
_UNKNOWN: Final = -(1 << 63)


class Timeline:
    """The parent's memory of one worker's checkpoints."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: list[Checkpoint] = []
        self._differing: dict[str, Checkpoint] = {}
        self._seen = 0
        self._every = 1

    def add(self, checkpoint: Checkpoint) -> None:
        """Remember *checkpoint*, for good if it is the first where some ledger differed."""
        for reading in checkpoint.buffers:
            if not reading.agrees:
                self._differing.setdefault(reading.ledger, checkpoint)
        if self._seen % self._every == 0:
            self._kept.append(checkpoint)
            if len(self._kept) > self._most:
                del self._kept[1::2]
                self._every *= 2
        self._seen += 1

    def kept(self) -> tuple[Checkpoint, ...]:
        """Return those that are kept, in order."""
        chosen = {id(item): item for item in (*self._kept, *self._differing.values())}
        return tuple(sorted(chosen.values(), key=lambda checkpoint: checkpoint.at_ns))


class SlopePoints:
    """A worker's points of its slopes, in memory that is taken once.

    A worker that kept its checkpoints would find itself leaking for as long as they grow in number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._names: tuple[str, ...] = ()
        self._cycles = array("q", bytes(8 * (most + 1)))
        self._counts: list[array[int]] = []
        self._count = 0
        self._seen = 0
        self._every = 1

    def add(self, cycle: int, counts: Mapping[str, int | None]) -> None:
        """Add the *counts* of the ledgers at *cycle*; each call has the same ledgers."""
        if not self._counts:
            self._names = tuple(counts)
            self._counts = [array("q", bytes(8 * (self._most + 1))) for _ in self._names]
        if self._seen % self._every == 0:
            self._cycles[self._count] = cycle
            for column, value in zip(self._counts, counts.values(), strict=True):
                column[self._count] = _UNKNOWN if value is None else value
            self._count += 1
            if self._count > self._most:
                self._thin()
        self._seen += 1

    def points(self) -> list[tuple[int, dict[str, int | None]]]:
        """Return the points that are kept, in order."""
        return [
            (
                self._cycles[at],
                {
                    name: None if column[at] == _UNKNOWN else column[at]
                    for name, column in zip(self._names, self._counts, strict=True)
                },
            )
            for at in range(self._count)
        ]

    def _thin(self) -> None:
        half = -(-self._count // 2)
        for column in (self._cycles, *self._counts):
            for at in range(half):
                column[at] = column[2 * at]
        self._count = half
        self._every *= 2


#: A checkpoint is due when this one and those before it are 1/60 of the time so far, or 1.7 %.
_SPACING: Final = 60
#: What the first one is expected to take: reading some hundred areas.
_FIRST_NS: Final = 2 * 10**6


class CheckedBuffer:
    """One buffer as the checkpoints see it.

    Attributes:
        reservation: Its range, and what is committed in it.
        ever: What was ever committed in it.
        method: How.
    """

    __slots__ = ("ever", "method", "reservation")

    def __init__(self, reservation: Reservation, ever: BlockMap, method: str) -> None:
        self.reservation = reservation
        self.ever = ever
        self.method = method


class Checkpoints:
    """The checkpoints of one worker.

    Args:
        worker: Which one.
        subjects: Its buffers.
        observer: Who counts what they hold.
        threads: Its threads.
        live: Granules that all buffers have committed at once at most.
        note: Called with each checkpoint; nothing else keeps it.

    Attributes:
        spent_ns: Time that they took.
        differing: The first checkpoint where each ledger was not what it had to be.
        compared: How many were made.
        told: The ledgers that the platform tells of the buffers.
        counted: The ledgers that it tells of the process.
        observer: Who counts what the buffers hold.
        note: Called with each checkpoint; nothing else keeps it.
    """

    def __init__(
        self,
        worker: int,
        subjects: Sequence[CheckedBuffer],
        observer: CounterObserver,
        threads: int,
        live: int,
        note: Callable[[Checkpoint], None],
    ) -> None:
        self.spent_ns = 0
        self.compared = 0
        self.differing: dict[str, Checkpoint] = {}
        self._worker = worker
        self._live = live
        self._subjects = subjects
        self.observer = observer
        self._spacing = _SPACING * threads
        self._thread_ns = [0] * threads
        self._due = [0] * threads
        self._lock = threading.Lock()
        self._began = 0
        self._points = SlopePoints()
        self.told: set[str] = set()
        self.counted: set[str] = set()
        self.note = note

    def start(self) -> None:
        """Begin to count time; what came before was warm-up."""
        self._began = perf_counter_ns()
        self._due = [self._began + _FIRST_NS * self._spacing for _ in self._due]

    def due(self, thread: int, now: int) -> bool:
        """Tell whether *thread* should take one at time *now*."""
        return now >= self._due[thread]

    def take(self, thread: int, subject: CheckedBuffer, cycle: int) -> int:
        """Hold *subject* against what is counted; return the nanoseconds that took.

        Only the buffer of the calling thread is compared, as the others move meanwhile.
        """
        began = perf_counter_ns()
        found = self.observer.look([subject], settled=True)
        with self._lock:
            self._note(self._checkpoint(began, cycle, subject.method, *found))
            took = perf_counter_ns() - began
            self.spent_ns += took
        self._thread_ns[thread] += took
        share = self._began + (self._thread_ns[thread] + took) * self._spacing
        # After a pause of the machine there is time for many; not all of them at once.
        self._due[thread] = max(share, began + took * self._spacing // 2)
        return took

    def take_all(self, cycle: int, *, settled: bool) -> None:
        """Hold every buffer against the kernel's counts, when no thread is running.

        Args:
            cycle: Cycles done.
            settled: False after a failure, when the last commit may not have been touched.
        """
        began = perf_counter_ns()
        found = self.observer.look(self._subjects, settled=settled)
        methods = "+".join(dict.fromkeys(subject.method for subject in self._subjects))
        with self._lock:
            self._note(self._checkpoint(began, cycle, methods, *found))

    def slopes(self) -> tuple[CounterSlope, ...]:
        """Return the growth of each ledger of the process beyond its buffers."""
        with self._lock:
            return leak_slopes(self._points.points(), self._worker, self._live)

    def _checkpoint(
        self,
        began: int,
        cycle: int,
        method: str,
        readings: tuple[CounterReading, ...],
        process: Mapping[str, int | None],
    ) -> Checkpoint:
        return Checkpoint(
            at_ns=began - self._began,
            cycle=cycle,
            worker=self._worker,
            method=method,
            buffers=readings,
            process=process,
        )

    def _note(self, checkpoint: Checkpoint) -> None:
        for reading in checkpoint.buffers:
            if reading.observed is not None:
                self.told.add(reading.ledger)
            if not reading.agrees:
                self.differing.setdefault(reading.ledger, checkpoint)
        self.counted.update(n for n, count in checkpoint.process.items() if count is not None)
        self._points.add(checkpoint.cycle, checkpoint.process)
        self.compared += 1
        self.note(checkpoint)
