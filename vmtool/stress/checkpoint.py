"""When to hold the ledgers against the kernel's, and what to keep of it over hours."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.results import Checkpoint
from vmtool.stress.ledger import leak_slopes
from vmtool.stress.timeline import SlopePoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.backing import Reservation
    from vmtool.memory.blocks import BlockMap
    from vmtool.results import LedgerReading, LedgerSlope
    from vmtool.stress.ground import Observer

#: A checkpoint is due when this one and those before it are 1/60 of the time so far, or 1.7 %.
_SPACING: Final = 60
#: What the first one is expected to take: reading some hundred areas.
_FIRST_NS: Final = 2 * 10**6


class Subject:
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
        subjects: Sequence[Subject],
        observer: Observer,
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

    def take(self, thread: int, subject: Subject, cycle: int) -> int:
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

    def slopes(self) -> tuple[LedgerSlope, ...]:
        """Return the growth of each ledger of the process beyond its buffers."""
        with self._lock:
            return leak_slopes(self._points.points(), self._worker, self._live)

    def _checkpoint(
        self,
        began: int,
        cycle: int,
        method: str,
        readings: tuple[LedgerReading, ...],
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
