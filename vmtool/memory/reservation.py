"""A reservation of addresses: what is committed in it, and which calls on it are refused."""

from __future__ import annotations

from vmtool.errors import UsageError
from vmtool.memory.errors import (
    BusyError,
    ClosedError,
    MisalignedError,
    NotCommittedError,
    OutOfRangeError,
    OverlapError,
)
from vmtool.memory.governor import Owner
from vmtool.memory.span_map import SpanMap


class Reservation(Owner):
    """One reserved range of addresses and what is committed in it.

    Attributes:
        base: Its first address; it never changes. A device address must not be used on the CPU.
        capacity: Its size in bytes.
        granularity: The granule of the backing that made it.
        blocks: The committed spans.
        quarantined: Spans that the platform refused to release; owned, counted, never reused.
        busy: Whether a call that changes it is running; see :meth:`begin`.
        degraded: Released spans whose pages are gone but which may not fault and stay charged,
            because the platform refused to change the mapping (see :class:`PosixBacking`).
        closed: Whether it was unreserved.
    """

    __slots__ = (
        "__weakref__",
        "base",
        "blocks",
        "busy",
        "capacity",
        "closed",
        "degraded",
        "granularity",
        "quarantined",
    )

    def __init__(self, base: int, capacity: int, granularity: int) -> None:
        self.base = base
        self.capacity = capacity
        self.granularity = granularity
        self.blocks = SpanMap()
        self.quarantined = SpanMap()
        self.degraded = SpanMap()
        self.closed = False
        self.busy = False

    @property
    def address_space_bytes(self) -> int:
        """The addresses it takes: the capacity, and what aligning the base cost."""
        return self.capacity

    def begin(self) -> None:
        """Mark it as used by this call, which clears ``busy`` in the end.

        Nothing runs between the look and the mark: CPython with its global lock switches threads,
        and runs signal handlers, at calls and backward jumps alone. A lock would cost four times as
        much as this.

        Raises:
            BusyError: If another call is using it.
        """
        if self.busy:
            raise BusyError(self.base)
        self.busy = True

    def check_commit(self, offset: int, nbytes: int) -> None:
        """Raise unless ``offset..offset + nbytes`` may be committed (B5)."""
        self.check_span(offset, nbytes)
        block = self.blocks.overlap(offset, offset + nbytes)
        if block is not None:
            raise OverlapError(offset, nbytes, block)
        if self.quarantined.total:
            block = self.quarantined.overlap(offset, offset + nbytes)
            if block is not None:
                raise OverlapError(offset, nbytes, block, "quarantined")

    def check_release(self, offset: int, nbytes: int) -> None:
        """Raise unless all of ``offset..offset + nbytes`` is committed (B5, B6)."""
        self.check_span(offset, nbytes)
        if not self.blocks.covers(offset, offset + nbytes):
            gap = next(self.blocks.gaps(offset, offset + nbytes))
            raise NotCommittedError(offset, nbytes, gap)

    def check_span(self, offset: int, nbytes: int) -> None:
        """Raise unless ``offset..offset + nbytes`` is aligned, not empty and inside."""
        if self.closed:
            raise ClosedError(f"the reservation at {self.base:#x} is closed")
        # By modulo: a device's chunk is any multiple of its driver's granularity.
        misaligned = offset % self.granularity
        if misaligned or nbytes % self.granularity:
            what, value = ("offset", offset) if misaligned else ("length", nbytes)
            raise MisalignedError(what, value, self.granularity)
        if nbytes <= 0:
            raise UsageError(
                f"length {nbytes} is not positive", hint=f"use {self.granularity} or more"
            )
        if offset < 0 or offset + nbytes > self.capacity:
            raise OutOfRangeError(offset, nbytes, self.capacity)

    def quarantine(self, start: int, end: int) -> None:
        """Take ``start..end`` out of use for good, whether it was committed or not."""
        for at, at_end in list(self.blocks.spans(start, end)):
            self.blocks.remove(at, at_end)
        self.quarantined.add(start, end)

    def forget_degraded(self, start: int, end: int) -> None:
        """Note that ``start..end`` is an ordinary committed or guarded span again."""
        for at, at_end in list(self.degraded.spans(start, end)):
            self.degraded.remove(at, at_end)

    def mark_closed(self) -> None:
        """Note that the platform has taken everything back."""
        self.closed = True
        self.blocks = SpanMap()
        self.quarantined = SpanMap()
        self.degraded = SpanMap()
