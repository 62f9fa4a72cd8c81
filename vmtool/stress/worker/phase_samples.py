"""Every sample of every phase in bounded memory, with the median of each round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.histograms import Histogram, merged, summarize
from vmtool.results.stress import CallResult, PhaseResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.histograms import HistogramData

#: Samples are put into buckets this many at a time, between cycles and outside of any phase.
BATCH: Final = 2048
#: More rounds than this are joined in pairs.
MAX_ROUNDS: Final = 128


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
