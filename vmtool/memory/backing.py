"""The contract between a buffer and the platform: reserve, commit, release, unreserve.

The invariants B1 to B11 that every backing keeps are listed in ``docs/design.md``; one set of
tests runs them against each backing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vmtool.memory.governor import Authority, Tier
    from vmtool.memory.reservation import Reservation


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
        """Give back every block and the address space, once; a second call is a no-op (B9).

        Raises:
            BusyError: If another thread is using the reservation.
            CallError: If the platform refuses; the reservation stays owned and may be tried again.
        """
