"""How long operations on real memory took, in bounded memory."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from vmtool.replay.results import Timing
from vmtool.stats import Histogram, summarize

#: One call each, and all calls of an admission, of a step or of an end.
OPERATIONS: Final = (
    *("reserve", "commit", "touch", "release", "unreserve"),
    *("admission", "step", "end"),
)
_BATCH: Final = 4096

now = perf_counter_ns


class Stopwatch:
    """Histograms by operation; samples are sorted in batches, off the measured path."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram() for name in OPERATIONS}
        self._samples: dict[str, list[int]] = {name: [] for name in OPERATIONS}

    def add(self, operation: str, elapsed_ns: int) -> None:
        """Add one sample."""
        samples = self._samples[operation]
        samples.append(elapsed_ns)
        if len(samples) >= _BATCH:
            self._histograms[operation].extend(samples)
            samples.clear()

    def timings(self) -> tuple[Timing, ...]:
        """Return what was measured, without operations that did not happen."""
        found = []
        for name in OPERATIONS:
            histogram = self._histograms[name]
            histogram.extend(self._samples[name])
            self._samples[name].clear()
            data = histogram.data()
            if data.count:
                found.append(Timing(name, data.sum_ns, summarize(data), data))
        return tuple(found)
