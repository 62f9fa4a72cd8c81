"""Histograms of many samples in bounded memory, with percentiles and a summary; pure."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Each octave of the histogram has ``2 ** SUB_BUCKET_BITS`` buckets, so that a bucket is at most
#: 1/64 (1.6 %) as wide as the values in it; values below 128 are exact.
SUB_BUCKET_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << SUB_BUCKET_BITS
_VALUE_BITS: Final = 63
_BUCKETS: Final = (_VALUE_BITS - SUB_BUCKET_BITS + 1) << SUB_BUCKET_BITS
#: How many samples a histogram that sorts them in batches keeps.
_BATCH: Final = 4096

#: Fewer samples than this cannot distinguish a 99.9th percentile from the maximum.
P999_SAMPLES: Final = 10_000


class Histogram:
    """Counts of non-negative integers in log-linear buckets: any number of samples in 30 KiB.

    Count, minimum, maximum, sum and sum of squares are exact; a percentile is off by at most one
    bucket, which is 1/64 of its value.
    """

    __slots__ = ("_counts", "count", "maximum", "minimum", "squares", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.total = 0
        self.squares = 0
        self.minimum = 0
        self.maximum = 0

    def extend(self, samples: Sequence[int]) -> None:
        """Add *samples*, each from 0 to 2**63 - 1."""
        if not samples:
            return
        counts = self._counts
        for value in samples:
            shift = value.bit_length() - SUB_BUCKET_BITS - 1
            if shift > 0:
                counts[(shift << SUB_BUCKET_BITS) + (value >> shift)] += 1
            else:
                counts[value] += 1
        low, high = min(samples), max(samples)
        self.minimum = low if not self.count else min(self.minimum, low)
        self.maximum = max(self.maximum, high)
        self.count += len(samples)
        self.total += sum(samples)
        self.squares += sum(value * value for value in samples)

    def merge(self, other: HistogramData) -> None:
        """Add the samples of another histogram."""
        if not other.count:
            return
        for index, count in other.buckets:
            self._counts[index] += count
        self.minimum = other.min_ns if not self.count else min(self.minimum, other.min_ns)
        self.maximum = max(self.maximum, other.max_ns)
        self.count += other.count
        self.total += other.sum_ns
        self.squares += other.sum_squares

    def data(self) -> HistogramData:
        """Return the counts as a frozen value, empty buckets left out."""
        return HistogramData(
            count=self.count,
            min_ns=self.minimum,
            max_ns=self.maximum,
            sum_ns=self.total,
            sum_squares=self.squares,
            buckets=tuple((i, count) for i, count in enumerate(self._counts) if count),
        )


class BatchedHistogram:
    """A histogram that sorts samples in batches, off the hot path."""

    __slots__ = ("_histogram", "_samples", "zeros")

    def __init__(self) -> None:
        self._histogram = Histogram()
        self._samples: list[int] = []
        self.zeros = 0  # samples besides

    def add(self, sample: int) -> None:
        """Add one sample."""
        self._samples.append(sample)
        if len(self._samples) >= _BATCH:
            self._flush()

    def extend(self, samples: Sequence[int]) -> None:
        """Add *samples*."""
        self._samples += samples
        if len(self._samples) >= _BATCH:
            self._flush()

    def data(self) -> HistogramData:
        """Return all samples."""
        self._flush()
        if self.zeros:
            self._histogram.merge(HistogramData(self.zeros, 0, 0, 0, 0, ((0, self.zeros),)))
            self.zeros = 0
        return self._histogram.data()

    def _flush(self) -> None:
        self._histogram.extend(self._samples)
        self._samples.clear()


@dataclass(frozen=True, slots=True)
class HistogramData:
    """A histogram of nanoseconds as it is stored.

    Attributes:
        count: Samples.
        min_ns: The smallest, exact.
        max_ns: The largest, exact.
        sum_ns: Their sum, exact.
        sum_squares: The sum of their squares, exact.
        buckets: Pairs of a bucket's index and its count, ascending. Bucket *i* begins at
            :func:`bucket_start` of *i* and ends before that of *i* + 1.
        sub_bucket_bits: Buckets per octave, as a power of two.
    """

    count: int
    min_ns: int
    max_ns: int
    sum_ns: int
    sum_squares: int
    buckets: tuple[tuple[int, int], ...]
    sub_bucket_bits: int = SUB_BUCKET_BITS

    def __post_init__(self) -> None:
        """Refuse data that contradict themselves, as from a file."""
        if self.sub_bucket_bits != SUB_BUCKET_BITS:
            raise ValueError(f"sub_bucket_bits is {self.sub_bucket_bits}, not {SUB_BUCKET_BITS}")
        if min(self.count, self.min_ns, self.sum_ns, self.sum_squares) < 0:
            raise ValueError("a count or a sum is under 0")
        indexes = [index for index, _ in self.buckets]
        if any(low >= high for low, high in pairwise([-1, *indexes])):
            raise ValueError("the buckets do not ascend")
        if indexes and indexes[-1] >= _BUCKETS:
            raise ValueError(f"bucket {indexes[-1]} is beyond the last, {_BUCKETS - 1}")
        if any(count < 1 for _, count in self.buckets):
            raise ValueError("a bucket is empty")
        if sum(count for _, count in self.buckets) != self.count:
            raise ValueError("the buckets do not add up to count")
        if indexes and not (
            bucket_start(indexes[0]) <= self.min_ns < bucket_start(indexes[0] + 1)
            and bucket_start(indexes[-1]) <= self.max_ns < bucket_start(indexes[-1] + 1)
        ):
            raise ValueError("min_ns and max_ns are not in the first and the last bucket")

    def percentile(self, percent: float) -> int | None:
        """Return the *percent*-th percentile in whole nanoseconds; ``None`` without samples.

        Ranks between two samples are interpolated, as for the median of an even number; within a
        bucket samples count as evenly spread.
        """
        if not self.count:
            return None
        rank = percent / 100 * (self.count - 1)
        below = math.floor(rank)
        low = self._at_rank(below)
        high = self._at_rank(min(below + 1, self.count - 1)) if rank > below else low
        return round(low + (rank - below) * (high - low))

    def log2_buckets(self) -> tuple[tuple[int, int, int], ...]:
        """Return ``(start_ns, end_ns, count)`` per power of two, from the first used to the last."""
        if not self.count:
            return ()
        octaves: dict[int, int] = {}
        for index, count in self.buckets:
            # Bucket 0 holds the value 0, which belongs with 1: no power of two is below it.
            octave = max(bucket_start(index).bit_length() - 1, 0)
            octaves[octave] = octaves.get(octave, 0) + count
        return tuple(
            (1 << octave if octave else 0, 2 << octave, octaves.get(octave, 0))
            for octave in range(min(octaves), max(octaves) + 1)
        )

    def _at_rank(self, rank: int) -> float:
        if rank <= 0:
            return self.min_ns
        if rank >= self.count - 1:
            return self.max_ns
        before = 0
        for index, count in self.buckets:
            if rank < before + count:
                start, end = bucket_start(index), bucket_start(index + 1)
                within = 0.0 if end - start == 1 else (rank - before + 0.5) / count
                value = start + within * (end - start)
                return min(max(value, self.min_ns), self.max_ns)
            before += count
        return self.max_ns


def bucket_start(index: int) -> int:
    """Return the smallest value that bucket *index* counts."""
    if index < 2 * _SUB_BUCKETS:
        return index
    shift = (index >> SUB_BUCKET_BITS) - 1
    return (index - (shift << SUB_BUCKET_BITS)) << shift


@dataclass(frozen=True, slots=True)
class Summary:
    """The usual figures of one histogram, in whole nanoseconds; all ``None`` without samples.

    Attributes:
        p999_ns: ``None`` below 10,000 samples, where it equals the maximum.
    """

    samples: int
    min_ns: int | None
    median_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    p999_ns: int | None
    max_ns: int | None
    mean_ns: int | None
    stddev_ns: int | None


def summarize(data: HistogramData) -> Summary:
    """Return the summary of *data*."""
    n = data.count
    if not n:
        return Summary(0, *[None] * 8)
    # Exact until the last step: the difference of two large sums must not lose its digits.
    variance = (n * data.sum_squares - data.sum_ns**2) // (n * max(n - 1, 1))
    return Summary(
        samples=n,
        min_ns=data.min_ns,
        median_ns=data.percentile(50),
        p90_ns=data.percentile(90),
        p99_ns=data.percentile(99),
        p999_ns=data.percentile(99.9) if n >= P999_SAMPLES else None,
        max_ns=data.max_ns,
        mean_ns=round(data.sum_ns / n),
        stddev_ns=math.isqrt(variance),
    )


def summarize_samples(samples: Sequence[int]) -> Summary:
    """Return the summary of *samples* in nanoseconds."""
    histogram = Histogram()
    histogram.extend(samples)
    return summarize(histogram.data())


def merged(parts: Iterable[HistogramData]) -> HistogramData:
    """Return one histogram of all samples of *parts*."""
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    return whole.data()
