"""A reservation of addresses, and the errors for misusing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import UsageError
from vmtool.memory.governor import Owner
from vmtool.memory.span_map import SpanMap
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.span_map import Span


class MisalignedError(UsageError):
    """An offset or length that is not a multiple of the granularity.

    Attributes:
        legal: The nearest legal value that is not smaller.
    """

    def __init__(self, what: str, value: int, granularity: int) -> None:
        self.legal = -(-value // granularity) * granularity
        below = self.legal - granularity
        super().__init__(
            f"{what} {value} is not a multiple of the granularity {granularity}",
            hint=f"use {below} or {self.legal}"
            if below > 0 or what == "offset"
            else f"use {self.legal}",
        )


class OutOfRangeError(UsageError):
    """A span outside the reservation.

    Attributes:
        overrun: How many bytes lie outside.
    """

    def __init__(self, offset: int, nbytes: int, capacity: int) -> None:
        self.overrun = max(offset + nbytes - capacity, 0) or -min(offset, 0)
        super().__init__(
            f"offset {offset} + {nbytes} bytes ends {self.overrun} bytes beyond the reservation of "
            f"{capacity} bytes",
            hint="reserve a larger capacity, or stay inside it",
        )


class OverlapError(UsageError):
    """A commit over bytes that are committed or quarantined already.

    Attributes:
        block: The span in the way, as offsets.
    """

    def __init__(self, offset: int, nbytes: int, block: Span, state: str = "committed") -> None:
        self.block = block
        super().__init__(
            f"offset {offset} + {nbytes} bytes overlaps the {state} block "
            f"{block[0]}..{block[1]} ({format_size(block[1] - block[0])})",
            hint="release it first"
            if state == "committed"
            else "use another part of the reservation",
        )


class NotCommittedError(UsageError):
    """A release of bytes that are not committed.

    Attributes:
        gap: The first span that is not, as offsets.
    """

    def __init__(self, offset: int, nbytes: int, gap: Span) -> None:
        self.gap = gap
        super().__init__(
            f"offset {offset} + {nbytes} bytes is not committed at {gap[0]}..{gap[1]}",
            hint="release only what is committed",
        )


class ClosedError(UsageError):
    """A reservation or buffer that is closed."""


class BusyError(UsageError):
    """A call on a reservation that another thread, or what a signal handler interrupted, is using."""

    def __init__(self, base: int) -> None:
        super().__init__(
            f"the reservation at {base:#x} is used by two threads at once",
            hint="give each thread its own reservation, or use a VirtualBuffer, whose calls wait for "
            "each other",
        )


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
