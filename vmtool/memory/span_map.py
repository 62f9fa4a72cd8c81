"""Which spans of a reservation are committed, and which gaps lie between them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A half-open range of offsets, ``(start, end)``.
Span: TypeAlias = tuple[int, int]

# Adding a span moves at most this many numbers (4 KiB): less than one system call takes.
_BUCKET: Final = 512


class SpanMap:
    """A set of offsets kept as maximal spans: neighbours that touch are one span.

    Starts and ends lie in parallel sorted arrays, in buckets, so that finding, adding and removing
    cost O(log n) in the number of spans and few cache misses. The end of the last span is at hand:
    growing and shrinking at the tail, which is what KV caches do, never searches.

    Args:
        bucket: Spans in a bucket at most, 2 or more.

    Attributes:
        total: How many bytes the spans hold together.
        end: Where the last span ends; equal to *total* when there is no hole below.
    """

    __slots__ = (
        "_at",
        "_bucket",
        "_ends",
        "_firsts",
        "_limit",
        "_sought",
        "_starts",
        "end",
        "total",
    )

    def __init__(self, *, bucket: int = _BUCKET) -> None:
        self._limit = bucket
        self._starts: list[array[int]] = []  # no bucket is empty
        self._ends: list[array[int]] = []
        self._firsts: list[int] = []  # the first start of each bucket
        self.end = 0
        # The last search, remembered until the map changes: a check and the change that it allows
        # look for the same place.
        self._sought = -1
        self._bucket = 0
        self._at = -1
        self.total = 0

    def __len__(self) -> int:
        return sum(map(len, self._starts))

    def __iter__(self) -> Iterator[Span]:
        for starts, ends in zip(self._starts, self._ends, strict=True):
            yield from zip(starts, ends, strict=True)

    def overlap(self, start: int, end: int) -> Span | None:
        """Return a span that shares a byte with ``start..end``, or ``None``."""
        if start >= self.end:
            return None
        before, after = self._neighbours(start)
        if before is not None and before[1] > start:
            return before
        if after is not None and after[0] < end:
            return after
        return None

    def covers(self, start: int, end: int) -> bool:
        """Return whether every byte of ``start..end`` is in the map."""
        if end > self.end:
            return False
        if start >= end or start >= self._starts[-1][-1]:
            return True
        self._seek(start)
        return self._at >= 0 and self._ends[self._bucket][self._at] >= end

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield the parts of the map inside ``start..end``, ascending. Do not modify meanwhile."""
        before, after = self._neighbours(start)
        if before is not None and before[1] > start:
            yield start, min(end, before[1])
        while after is not None and after[0] < end:
            yield after[0], min(end, after[1])
            after = self._neighbours(after[0])[1]

    def gaps(self, start: int, end: int) -> Iterator[Span]:
        """Yield what is missing from ``start..end``, ascending. Do not modify meanwhile."""
        at = start
        for taken, taken_end in self.spans(start, end):
            if at < taken:
                yield at, taken
            at = taken_end
        if at < end:
            yield at, end

    def gap_around(self, offset: int, capacity: int) -> Span:
        """Return the free gap that contains the free *offset*, bounded by 0 and *capacity*."""
        before, after = self._neighbours(offset)
        return (0 if before is None else before[1]), (capacity if after is None else after[0])

    def add(self, start: int, end: int) -> None:
        """Add ``start..end``, which must be free and not empty; it joins the spans it touches."""
        self.total += end - start
        if start == self.end and self._starts:
            self._ends[-1][-1] = self.end = end
            self._sought = -1
            return
        before, after = self._neighbours(start)
        bucket, at = self._bucket, self._at
        self._sought = -1
        if after is not None and after[0] == end:
            end = after[1]
            self._delete(*self._next(bucket, at))
        if before is not None and before[1] == start:
            self._ends[bucket][at] = end
        else:
            self._insert(bucket, at + 1, start, end)
        self.end = max(self.end, end)

    def remove(self, start: int, end: int) -> None:
        """Remove ``start..end``, which must be covered and not empty; a span may split in two."""
        self.total -= end - start
        if end == self.end and start > self._starts[-1][-1]:
            self._ends[-1][-1] = self.end = start
            self._sought = -1
            return
        self._seek(start)
        bucket, at = self._bucket, self._at
        self._sought = -1
        starts, ends = self._starts[bucket], self._ends[bucket]
        first, last = starts[at], ends[at]
        if start > first:
            ends[at] = start
            if end < last:
                self._insert(bucket, at + 1, end, last)
        elif end < last:
            starts[at] = end
            if at == 0:
                self._firsts[bucket] = end
        else:
            self._delete(bucket, at)
        if end == self.end:
            self.end = self._ends[-1][-1] if self._ends else 0

    def _seek(self, offset: int) -> None:
        """Point ``_bucket`` and ``_at`` to the last span that starts at or before *offset*.

        ``_at`` is -1, in bucket 0, when there is none.
        """
        if offset == self._sought:
            return
        bucket = bisect_right(self._firsts, offset) - 1
        if bucket < 0:
            self._bucket, self._at = 0, -1
        else:
            self._bucket, self._at = bucket, bisect_right(self._starts[bucket], offset) - 1
        self._sought = offset

    def _neighbours(self, offset: int) -> tuple[Span | None, Span | None]:
        """Return the last span that starts at or before *offset*, and the one after it."""
        self._seek(offset)
        bucket, at = self._bucket, self._at
        before = (self._starts[bucket][at], self._ends[bucket][at]) if at >= 0 else None
        bucket, at = self._next(bucket, at)
        if bucket == len(self._starts):
            return before, None
        return before, (self._starts[bucket][at], self._ends[bucket][at])

    def _next(self, bucket: int, at: int) -> tuple[int, int]:
        """Return where the span after this one is; its bucket does not exist after the last."""
        if bucket < len(self._starts) and at + 1 < len(self._starts[bucket]):
            return bucket, at + 1
        return min(bucket + 1, len(self._starts)), 0

    def _insert(self, bucket: int, at: int, start: int, end: int) -> None:
        if not self._starts:
            self._starts.append(array("q", [start]))
            self._ends.append(array("q", [end]))
            self._firsts.append(start)
            return
        starts, ends = self._starts[bucket], self._ends[bucket]
        starts.insert(at, start)
        ends.insert(at, end)
        if at == 0:
            self._firsts[bucket] = start
        if len(starts) > self._limit:
            half = self._limit // 2
            self._starts[bucket : bucket + 1] = [starts[:half], starts[half:]]
            self._ends[bucket : bucket + 1] = [ends[:half], ends[half:]]
            self._firsts.insert(bucket + 1, starts[half])

    def _delete(self, bucket: int, at: int) -> None:
        starts = self._starts[bucket]
        del starts[at], self._ends[bucket][at]
        if not starts:
            del self._starts[bucket], self._ends[bucket], self._firsts[bucket]
        elif at == 0:
            self._firsts[bucket] = starts[0]
