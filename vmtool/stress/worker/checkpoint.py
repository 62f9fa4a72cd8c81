"""Checkpoints: moments at which a worker compares its totals with the counters.

Its parent keeps them.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.results.stress import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.reservation import Reservation
    from vmtool.memory.span_map import SpanMap
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import CounterReading

#: A checkpoint is due when this one and those before it are 1/60 of the time so far, or 1.7 %.
SPACING: Final = 60
#: What the first one is expected to take: reading some hundred areas.
FIRST_NS: Final = 2 * 10**6
#: When there are more checkpoints of one worker, every other one is dropped.
MOST_CHECKPOINTS: Final = 256


class CheckedBuffer:
    """One buffer as the checkpoints see it.

    Attributes:
        reservation: Its range, and what is committed in it.
        ever_committed: Every span that was ever committed in it.
        method: How.
    """

    __slots__ = ("ever_committed", "method", "reservation")

    def __init__(self, reservation: Reservation, ever_committed: SpanMap, method: str) -> None:
        self.reservation = reservation
        self.ever_committed = ever_committed
        self.method = method


class CounterObserver(Protocol):
    """Asks the kernel or driver what the buffers hold."""

    @property
    def counters(self) -> Sequence[str]:
        """What it counts, in the order of its readings."""

    @property
    def doubts(self) -> Mapping[str, Mapping[str, Value]]:
        """By counter, why a difference of it may not be this process's: the values of its check."""

    def compare_counters(
        self, chosen: Sequence[CheckedBuffer], *, settled: bool
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        """Compare what vmtool expects of *chosen* with what is counted.

        Args:
            chosen: The buffers that nobody changes meanwhile.
            settled: False after a failure, when the last commit may not have been touched.

        Returns:
            The readings, and what the process has beyond its buffers, by counter.
        """

    def count_mapped(self) -> int | None:
        """Return how many buffers' ranges are still mapped; ``None`` if that is not available."""


class Checkpoints:
    """The checkpoints of one worker; none of them is kept here.

    A worker that kept its checkpoints would find itself leaking for as long as they grow in number.

    Args:
        worker: Which one.
        buffers: What it reserved.
        observer: Who counts what they hold.
        threads: Its threads.
        record: Called with each checkpoint.
        run: Which run the worker belongs to.
        spacing: A checkpoint is due once it and those before it take no more than one part in
            *spacing* of the time; 0 takes one after every operation.
        first_ns: What the first one is expected to take.

    Attributes:
        spent_ns: Time that they took.
        differing: The first checkpoint where each counter was not what it had to be.
        count: How many were made.
        compared: The counters of the buffers that are available here.
        last_ns: When the last one was taken.
    """

    def __init__(
        self,
        worker: int,
        buffers: Sequence[CheckedBuffer],
        observer: CounterObserver,
        threads: int,
        record: Callable[[Checkpoint], None],
        *,
        run: int = 0,
        spacing: int = SPACING,
        first_ns: int = FIRST_NS,
    ) -> None:
        self.spent_ns = 0
        self.count = 0
        self.differing: dict[str, Checkpoint] = {}
        self.compared: set[str] = set()
        self.last_ns = 0
        self._worker = worker
        self._run = run
        self._buffers = buffers
        self._observer = observer
        self._record = record
        self._spacing = spacing * threads
        self._first_ns = first_ns
        self._thread_ns = [0] * threads
        self._due = [0] * threads
        self._lock = threading.Lock()
        self._began = 0

    def start(self) -> None:
        """Begin to count time; what came before was warm-up."""
        self._began = self.last_ns = perf_counter_ns()
        self._due = [self._began + self._first_ns * self._spacing for _ in self._due]

    def due(self, thread: int, now: int) -> bool:
        """Return whether *thread* should take one at time *now*."""
        return now >= self._due[thread]

    def take(self, thread: int, buffer: CheckedBuffer, cycle: int) -> int:
        """Compare *buffer* with what is counted; return the nanoseconds that took.

        Only the buffer of the calling thread is compared, as the others change meanwhile.
        """
        began = perf_counter_ns()
        found = self._observer.compare_counters([buffer], settled=True)
        with self._lock:
            self._add(began, cycle, buffer.method, *found)
            took = perf_counter_ns() - began
            self.spent_ns += took
        self._thread_ns[thread] += took
        share = self._began + (self._thread_ns[thread] + took) * self._spacing
        # After a pause of the machine there is time for many; not all of them at once.
        self._due[thread] = max(share, began + took * self._spacing // 2)
        return took

    def take_all(self, cycle: int, *, settled: bool) -> None:
        """Compare every buffer with what is counted, when no thread is running.

        Args:
            cycle: Cycles done.
            settled: False after a failure, when the last commit may not have been touched.
        """
        began = perf_counter_ns()
        found = self._observer.compare_counters(self._buffers, settled=settled)
        methods = ", ".join(dict.fromkeys(buffer.method for buffer in self._buffers))
        with self._lock:
            self._add(began, cycle, methods, *found)

    def _add(
        self,
        began: int,
        cycle: int,
        method: str,
        readings: tuple[CounterReading, ...],
        process: Mapping[str, int | None],
    ) -> None:
        checkpoint = Checkpoint(
            at_ns=began - self._began,
            cycle=cycle,
            worker=self._worker,
            method=method,
            buffers=readings,
            process=process,
            run=self._run,
        )
        for reading in readings:
            if reading.observed is not None:
                self.compared.add(reading.counter)
            if not reading.agrees:
                self.differing.setdefault(reading.counter, checkpoint)
        self.count += 1
        self.last_ns = perf_counter_ns()
        self._record(checkpoint)


class KeptCheckpoints:
    """One worker's checkpoints, evenly thinned out, so that hours of them stay bounded."""

    def __init__(self, most: int = MOST_CHECKPOINTS) -> None:
        self._most = most
        self._kept: list[Checkpoint] = []
        self._differing: dict[str, Checkpoint] = {}
        self._seen = 0
        self._every = 1

    def add(self, checkpoint: Checkpoint) -> None:
        """Remember *checkpoint*, for good if it is the first where some counter differed."""
        for reading in checkpoint.buffers:
            if not reading.agrees:
                self._differing.setdefault(reading.counter, checkpoint)
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
