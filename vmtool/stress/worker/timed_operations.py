"""The timed operations of a pattern on a buffer, and the samples of each phase in bounded memory."""

from __future__ import annotations

from array import array
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.histograms import Histogram, merged, summarize
from vmtool.memory.span_map import SpanMap
from vmtool.results.stress import PHASES, CallResult, PhaseResult
from vmtool.stress.journal import (
    COMMIT,
    CYCLE,
    GRANULE,
    IDLE,
    OPERATION,
    RELEASE,
    TOUCH,
    VERIFY,
)
from vmtool.stress.workloads import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vmtool.histograms import HistogramData
    from vmtool.stress.worker.host_contents import Contents
    from vmtool.stress.workloads import Operation

#: Samples are put into buckets this many at a time, between cycles and outside of any phase.
BATCH: Final = 2048
#: More rounds than this are joined in pairs.
MAX_ROUNDS: Final = 128
_CYCLES: Final = 2000


class PhaseRecorder:
    """The samples of one phase under one method on one thread.

    Attributes:
        samples: Where the loop appends nanoseconds; :meth:`fold` empties it.
        total_bytes: Bytes that the samples cover; the loop adds to it.
    """

    __slots__ = (
        "_earlier",
        "_medians",
        "_pending",
        "_per_median",
        "_round",
        "samples",
        "total_bytes",
    )

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Drop everything recorded so far."""
        self.samples.clear()
        self.total_bytes = 0
        self._round = Histogram()
        self._earlier = Histogram()
        self._medians: list[int] = []
        self._per_median = 1  # rounds that each median stands for
        self._pending: list[int] = []

    def fold(self) -> None:
        """Move the samples into the histogram."""
        self._round.extend(self.samples)
        self.samples.clear()

    def end_round(self) -> None:
        """Note the median of the round that ends here."""
        self.fold()
        data = self._round.data()
        middle = data.percentile(50)
        if middle is None:
            return
        self._earlier.merge(data)
        self._round = Histogram()
        self._pending.append(middle)
        if len(self._pending) < self._per_median:
            return
        self._medians.append(sum(self._pending) // len(self._pending))
        self._pending.clear()
        if len(self._medians) >= MAX_ROUNDS:
            pairs = zip(self._medians[::2], self._medians[1::2], strict=False)
            self._medians = [(a + b) // 2 for a, b in pairs]
            self._per_median *= 2

    def result(self, phase: str) -> PhaseResult:
        """Return what was recorded so far, the round in progress included."""
        self.fold()
        data = merged([self._earlier.data(), self._round.data()])
        return PhaseResult(
            phase=phase,
            total_bytes=self.total_bytes,
            summary=summarize(data),
            histogram=data,
            round_medians_ns=tuple(self._medians),
        )


class Spans(Protocol):
    """What a runner needs of a buffer; the harness's overhead is measured on an empty one."""

    def commit(self, offset: int, nbytes: int, /) -> None:
        """Commit a span."""

    def release(self, offset: int, nbytes: int, /) -> None:
        """Release a span."""


class OperationRunner:
    """Runs operations on one buffer.

    Attributes:
        spans: What is committed and released.
        contents: What writes to it and checks it, if it is touched.
        recorders: By phase.
        cycles: Commits that succeeded, warm-up left out.
        ever_committed: Every span that was ever committed, which bounds what the kernel may still hold
            against it.
    """

    def __init__(
        self,
        spans: Spans,
        granule_bytes: int,
        slot: memoryview,
        contents: Contents | None,
        *,
        verified: bool,
    ) -> None:
        self.recorders = {phase: PhaseRecorder() for phase in PHASES}
        self.cycles = 0
        self.ever_committed = SpanMap()
        self.spans = spans
        self._granule = granule_bytes
        self._slot = slot
        self.contents = contents
        self._verified = verified and contents is not None
        self._generation = 0

    def run(self, operations: Iterable[Operation], between: Callable[[], bool]) -> None:
        """Run *operations*; *between* is called after each and ends the run by returning false."""
        recorders = list(self.recorders.values())
        try:
            for kind, first, count in operations:
                if kind is Kind.COMMIT:
                    self._commit(first, count)
                else:
                    self._release(first, count)
                if len(recorders[0].samples) >= BATCH:
                    for recorder in recorders:
                        recorder.fold()
                if not between():
                    break
            else:
                self._slot[OPERATION] = IDLE
        finally:
            # On failure the slot keeps what was going on; it is read from there.
            for recorder in recorders:
                recorder.fold()

    def end_round(self) -> None:
        """Note the medians of the round that ends here."""
        for recorder in self.recorders.values():
            recorder.end_round()

    def drop_samples(self) -> None:
        """Drop all samples: what came so far was warm-up."""
        for recorder in self.recorders.values():
            recorder.clear()
        self.cycles = 0

    def _commit(self, first: int, count: int) -> None:
        slot, recorders = self._slot, self.recorders
        offset, nbytes = first * self._granule, count * self._granule
        self._generation += 1
        slot[GRANULE] = first
        slot[OPERATION] = COMMIT
        # Before the commit: one that fails after mprotect is taken back, but its charge may stay.
        self.remember(offset, offset + nbytes)
        began = perf_counter_ns()
        self.spans.commit(offset, nbytes)
        took = perf_counter_ns() - began
        recorder = recorders["commit"]
        recorder.samples.append(took)
        recorder.total_bytes += nbytes
        if self.contents is not None:
            slot[OPERATION] = TOUCH
            touch_ns = self.contents.write_and_time(first, count, self._generation)
            recorder = recorders["touch"]
            recorder.samples.append(touch_ns)
            recorder.total_bytes += nbytes
        self.cycles += 1
        slot[CYCLE] += 1

    def _release(self, first: int, count: int) -> None:
        slot, recorders = self._slot, self.recorders
        offset, nbytes = first * self._granule, count * self._granule
        slot[GRANULE] = first
        if self._verified:
            slot[OPERATION] = VERIFY
            recorder = recorders["verify"]
            recorder.samples.append(self.contents.check(first, count))  # type: ignore[union-attr]
            recorder.total_bytes += nbytes
        slot[OPERATION] = RELEASE
        began = perf_counter_ns()
        self.spans.release(offset, nbytes)
        took = perf_counter_ns() - began
        recorder = recorders["release"]
        recorder.samples.append(took)
        recorder.total_bytes += nbytes

    def fill(self, count: int) -> None:
        """Commit and touch the first *count* granules, outside of the clock and the cycles."""
        for granule in range(count):
            self._slot[GRANULE] = granule
            self._slot[OPERATION] = COMMIT
            start = granule * self._granule
            self.remember(start, start + self._granule)
            self.spans.commit(start, self._granule)
            if self.contents is not None:
                self._slot[OPERATION] = TOUCH
                self.contents.write_and_time(granule, 1, 0)

    def empty(self, count: int) -> None:
        """Check and release what :meth:`fill` committed."""
        for granule in range(count):
            self._slot[GRANULE] = granule
            if self._verified and self.contents is not None:
                self._slot[OPERATION] = VERIFY
                self.contents.check(granule, 1)
            self._slot[OPERATION] = RELEASE
            self.spans.release(granule * self._granule, self._granule)
        self._slot[OPERATION] = IDLE

    def remember(self, start: int, end: int) -> None:
        """Note a span that is about to be committed."""
        ever = self.ever_committed
        if not ever.covers(start, end):
            for gap in list(ever.gaps(start, end)):
                ever.add(*gap)


class _NoSpans:
    """A buffer that commits and releases nothing."""

    def commit(self, _offset: int, _nbytes: int, /) -> None:
        pass

    def release(self, _offset: int, _nbytes: int, /) -> None:
        pass


def measure_overhead() -> int:
    """Return the median nanoseconds of a commit phase that commits nothing.

    Two clock reads and one method call: what every sample of a real phase contains as well.
    """
    runner = OperationRunner(_NoSpans(), 1, memoryview(array("Q", bytes(64))), None, verified=False)
    operations = ((kind, 0, 1) for _ in range(_CYCLES) for kind in Kind)
    runner.run(operations, lambda: True)
    return runner.recorders["commit"].result("commit").summary.median_ns or 0


def join_phases(phase: str, parts: list[PhaseResult]) -> PhaseResult:
    """Return the samples of several threads or workers as one phase.

    The medians of rounds stay apart: each is one more observation of the machine.
    """
    data = merged(part.histogram for part in parts)
    medians = [median for part in parts for median in part.round_medians_ns]
    step = -(-len(medians) // MAX_ROUNDS) or 1
    return PhaseResult(
        phase=phase,
        total_bytes=sum(part.total_bytes for part in parts),
        summary=summarize(data),
        histogram=data,
        round_medians_ns=tuple(medians[::step]),
    )


def join_calls(parts: Iterable[Iterable[CallResult]]) -> tuple[CallResult, ...]:
    """Return each driver call of several workers as one, in the order they were first met."""
    found: dict[str, list[HistogramData]] = {}
    for calls in parts:
        for call in calls:
            found.setdefault(call.call, []).append(call.histogram)
    joined = ((name, merged(data)) for name, data in found.items())
    return tuple(CallResult(name, summarize(data), data) for name, data in joined)
