"""Which spans of a reservation are committed, and which gaps lie between them."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A half-open range of offsets, ``(start, end)``.
Span: TypeAlias = tuple[int, int]

# Inserting into a list moves at most this many pointers (8 KiB): less than one system call.
_BUCKET: Final = 1024


class BlockMap:
    """A set of offsets kept as maximal spans: neighbours that touch are one span.

    Starts are kept in sorted buckets, ends in a dictionary, so that finding, adding and removing
    cost O(log n) in the number of spans. The last span is cached: growing and shrinking at the
    tail, which is what KV caches do, never searches.

    Attributes:
        total: How many bytes the spans hold together.
    """

    __slots__ = ("_buckets", "_ends", "_firsts", "_tail_end", "_tail_start", "total")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []  # ascending starts, no bucket is empty
        self._firsts: list[int] = []  # the first start of each bucket
        self._ends: dict[int, int] = {}
        self._tail_start = self._tail_end = 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Span]:
        ends = self._ends
        for bucket in self._buckets:
            for start in bucket:
                yield start, ends[start]

    def overlap(self, start: int, end: int) -> Span | None:
        """Return a span that shares a byte with ``start..end``, or ``None``."""
        if start >= self._tail_end:
            return None
        before = self._at_or_before(end - 1)
        if before is not None and self._ends[before] > start:
            return before, self._ends[before]
        return None

    def covers(self, start: int, end: int) -> bool:
        """Tell whether every byte of ``start..end`` is in the map."""
        if start >= self._tail_start:
            return end <= self._tail_end
        before = self._at_or_before(start)
        return before is not None and end <= self._ends[before]

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield the parts of the map inside ``start..end``, ascending. Do not modify meanwhile."""
        at = self._at_or_before(start)
        if at is not None and self._ends[at] > start:
            yield start, min(end, self._ends[at])
        at = self._after(start)
        while at is not None and at < end:
            yield at, min(end, self._ends[at])
            at = self._after(at)

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
        before = self._at_or_before(offset)
        after = self._after(offset)
        return (0 if before is None else self._ends[before]), (capacity if after is None else after)

    def add(self, start: int, end: int) -> None:
        """Add ``start..end``, which must be free and not empty; it joins the spans it touches."""
        self.total += end - start
        ends = self._ends
        if start == self._tail_end and ends:
            ends[self._tail_start] = self._tail_end = end
            return
        before = self._at_or_before(start)
        after_end = ends.pop(end, None)  # the span that begins where this one ends
        if after_end is not None:
            self._discard_start(end)
            end = after_end
        if before is not None and ends[before] == start:
            start = before
        else:
            self._insert_start(start)
        ends[start] = end
        if end >= self._tail_end:
            self._tail_start, self._tail_end = start, end

    def remove(self, start: int, end: int) -> None:
        """Remove ``start..end``, which must be covered and not empty; a span may split in two."""
        self.total -= end - start
        ends = self._ends
        if end == self._tail_end and start > self._tail_start:
            ends[self._tail_start] = self._tail_end = start
            return
        first = self._at_or_before(start)
        assert first is not None, "remove() of bytes that are not in the map"
        last = ends[first]
        if start == first:
            del ends[first]
            self._discard_start(first)
        else:
            ends[first] = start
        if end < last:
            ends[end] = last
            self._insert_start(end)
        if last == self._tail_end:
            self._find_tail()

    def _at_or_before(self, offset: int) -> int | None:
        """Return the last start that is at most *offset*."""
        if offset >= self._tail_start:
            return self._tail_start if self._ends else None
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        bucket = self._buckets[at]
        return bucket[bisect_right(bucket, offset) - 1]

    def _after(self, offset: int) -> int | None:
        """Return the first start that is greater than *offset*."""
        if offset >= self._tail_start:
            return None
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0:
            bucket = self._buckets[at]
            within = bisect_right(bucket, offset)
            if within < len(bucket):
                return bucket[within]
        return self._firsts[at + 1]

    def _insert_start(self, start: int) -> None:
        at = max(bisect_right(self._firsts, start) - 1, 0)
        if not self._buckets:
            self._buckets.append([start])
            self._firsts.append(start)
            return
        bucket = self._buckets[at]
        bucket.insert(bisect_right(bucket, start), start)
        self._firsts[at] = bucket[0]
        if len(bucket) > _BUCKET:
            half = bucket[_BUCKET // 2 :]
            del bucket[_BUCKET // 2 :]
            self._buckets.insert(at + 1, half)
            self._firsts.insert(at + 1, half[0])

    def _discard_start(self, start: int) -> None:
        at = bisect_right(self._firsts, start) - 1
        bucket = self._buckets[at]
        del bucket[bisect_right(bucket, start) - 1]
        if bucket:
            self._firsts[at] = bucket[0]
        else:
            del self._buckets[at], self._firsts[at]

    def _find_tail(self) -> None:
        if self._buckets:
            self._tail_start = self._buckets[-1][-1]
            self._tail_end = self._ends[self._tail_start]
        else:
            self._tail_start = self._tail_end = 0
