"""The contract between a buffer and the platform: reserve, commit, release, unreserve.

The invariants B1 to B11 that every backing keeps are listed in ``docs/design.md``; one set of
tests runs them against each backing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vmtool.errors import CallError, UsageError, VmtoolError
from vmtool.memory.governor import Owner
from vmtool.memory.span_map import SpanMap
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.governor import Authority, Tier
    from vmtool.memory.span_map import Span


@dataclass(frozen=True, slots=True)
class Granularity:
    """The units of a backing, in bytes.

    Attributes:
        page_bytes: The unit of protection and residency; ``None`` where the CPU never maps it.
        reserve_bytes: What the base of a reservation is a multiple of.
        commit_bytes: The granule: every offset and length is a multiple of it.
    """

    page_bytes: int | None
    reserve_bytes: int
    commit_bytes: int


@dataclass(frozen=True, slots=True)
class PhysicalMemoryAccounting:
    """Who charges the physical memory behind a backing's mappings.

    Attributes:
        authority: ``None`` when each buffer leases what it commits. A backing that keeps physical
            memory after unmapping, such as a pool of handles, names the one authority whose
            ledger already owns those bytes; buffers then take no second lease.
    """

    authority: Authority | None = None


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
            f"offset {offset} + {nbytes} bytes leaves the reservation of {capacity} bytes "
            f"by {self.overrun}",
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


class OutOfMemoryError(CallError):
    """A call that failed because memory, commit charge, address space or mappings ran out."""


class QuarantineError(VmtoolError):
    """A failed call could not be undone; the span will not be used again.

    The call that failed is ``__cause__``.

    Attributes:
        span: The quarantined offsets.
    """

    def __init__(self, span: Span, failure: CallError) -> None:
        super().__init__(
            f"{span[0]}..{span[1]} is quarantined: {failure}, and the call could not be undone",
            cause=failure.cause,
            hint=failure.hint,
        )
        self.span = span


def failed_call(error: BaseException) -> CallError | None:
    """Return the failed call behind *error*, or ``None`` if there is none."""
    cause = error.__cause__ if isinstance(error, QuarantineError) else error
    return cause if isinstance(cause, CallError) else None


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


class VirtualBacking(Protocol):
    """The platform operations that a buffer is built from.

    One backing serves many reservations; what is committed lives in the reservation (B11). A
    backing may be used from several threads; two that use one reservation at a time get an error.
    """

    @property
    def name(self) -> str:
        """The name that ``--backing`` takes: ``host`` or ``cuda:0``."""

    @property
    def device_name(self) -> str | None:
        """The driver's name for the device; ``None`` for the host."""

    @property
    def method(self) -> str:
        """How it commits: ``fixed``, ``protect``, ``advise``, ``view``, ``cold``, ``pooled``, ..."""

    @property
    def tier(self) -> Tier:
        """Which tier of memory it commits."""

    @property
    def granularity(self) -> int:
        """The granule in bytes, constant (B1): a power of two queried from the platform, or a multiple."""

    @property
    def units(self) -> Granularity:
        """The granule beside the page size and the unit of reservations."""

    @property
    def accounting(self) -> PhysicalMemoryAccounting:
        """Who charges what is committed (V4)."""

    @property
    def zeroes(self) -> bool:
        """Whether freshly committed memory reads as zero (B7)."""

    @property
    def guards(self) -> bool:
        """Whether what is not committed faults (B4)."""

    @property
    def populates(self) -> bool:
        """Whether commit faults the pages in, so that no first write faults."""

    def reserve(self, nbytes: int) -> Reservation:
        """Reserve *nbytes* of address space and nothing else (B2).

        Raises:
            MisalignedError: If *nbytes* is not a multiple of the granularity.
            OutOfMemoryError: If no range of that size is left.
            CallError: If the platform refuses for another reason.
        """

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Put memory behind ``offset..offset + nbytes``; all of it is writable afterwards (B4).

        Raises:
            MisalignedError, OutOfRangeError, OverlapError: If the span is not legal (B5).
            BusyError: If another thread is using the reservation.
            OutOfMemoryError, CallError: If the platform refuses; nothing has changed (B8).
            QuarantineError: If it refuses and the change could not be undone.
        """

    def release(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Give back the memory behind any committed span; the addresses stay reserved (B6).

        Raises:
            MisalignedError, OutOfRangeError, NotCommittedError: If the span is not legal (B5).
            BusyError: If another thread is using the reservation.
            CallError: If the platform refuses; nothing has changed (B8).
            QuarantineError: If it refuses and the change could not be undone.
        """

    def unreserve(self, reservation: Reservation) -> None:
        """Give back every block and the address space, once; again is a no-op (B9).

        Raises:
            BusyError: If another thread is using the reservation.
            CallError: If the platform refuses; the reservation stays owned and may be tried again.
        """
