"""A CUDA device's address space: reserved ranges, whose chunks are mapped from physical handles.

A handle is mapped whole and unmapped whole, so the chunk that a handle covers is the unit of commit
and release. The driver's rules that this relies on are in ``docs/platform-facts.md``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError, VmtoolError
from vmtool.memory.backing import Granularity, PhysicalMemoryAccounting
from vmtool.memory.cuda import driver as cu
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.memory.cuda.handles import ColdHandles, HandlePool, HandleSource
from vmtool.memory.cuda.mapped_range import MappedRange
from vmtool.memory.errors import MisalignedError, QuarantineError
from vmtool.memory.governor import Tier
from vmtool.memory.reservation import Reservation
from vmtool.units import align_up, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.cuda.context import DeviceContext

_MAX_LENGTH: Final = 1 << 63


class CudaReservation(Reservation):
    """A range of device addresses, and what is mapped in it."""

    __slots__ = ("finalizer", "mapped")

    def __init__(self, mapped: MappedRange) -> None:
        super().__init__(mapped.base, mapped.nbytes, mapped.chunk)
        self.mapped = mapped
        # At exit too: the driver would do it, but its own order of shutting down is not documented.
        self.finalizer = weakref.finalize(self, mapped.abandon)

    def forget_unmapped(self) -> None:
        """Take out of the committed spans what a close that failed half-way has unmapped."""
        for start, end in list(self.blocks):
            for at in range(start, end, self.granularity):
                if at // self.granularity not in self.mapped.handles:
                    self.blocks.remove(at, at + self.granularity)


class CudaBacking:
    """Commit device memory behind a range of device addresses.

    Args:
        context: The device.
        chunk: Bytes of one physical handle: any multiple of the device's minimum granularity; by
            default the recommended granularity.
        source: Where handles of that size come from; by default each is created and released.
        peers: Other devices that may read and write what is committed. The granularity is then the
            greatest of all.

    Raises:
        UsageError: If *chunk* is not legal on this device.
        VmtoolError: If what the driver says of its granularity is not a power of two.
    """

    tier = Tier.DEVICE
    guards = True
    populates = True

    def __init__(
        self,
        context: DeviceContext,
        *,
        chunk: int | None = None,
        source: HandleSource | None = None,
        peers: Sequence[int] = (),
    ) -> None:
        ordinal = context.info.ordinal
        self.context = context
        self.name = f"cuda:{ordinal}"
        self.device_name = context.info.name
        self.peers = tuple(peers)
        self.properties = context.driver.allocation_properties(ordinal)
        everyone = [
            self.properties,
            *(context.driver.allocation_properties(peer) for peer in peers),
        ]
        minimum, recommended = (
            max(granularity(context, each, option) for each in everyone)
            for option in (cu.GRANULARITY_MINIMUM, cu.GRANULARITY_RECOMMENDED)
        )
        self.granularity = recommended if chunk is None else chunk
        if self.granularity <= 0 or self.granularity % minimum:
            above = max(align_up(self.granularity, minimum), minimum)
            raise UsageError(
                f"a chunk of {chunk} bytes is not legal on {self.name}",
                hint=f"use a multiple of {minimum}, such as {above}",
            )
        self.units = Granularity(None, minimum, self.granularity)
        self.source = source or ColdHandles(context, self.granularity, self.properties)
        # The driver promises nothing about the contents of new memory; a pool clears what it maps.
        self.zeroes = self.source.dirty
        self.method = "cold" if source is None else "pooled"
        self.accounting = PhysicalMemoryAccounting(self.source.authority)
        self._access = [context.driver.access(each) for each in (ordinal, *peers)]
        self._read_only = [
            context.driver.access(each, cu.ACCESS_READ) for each in (ordinal, *peers)
        ]
        self._ranges: weakref.WeakSet[MappedRange] = weakref.WeakSet()

    def reserve(self, nbytes: int) -> CudaReservation:
        if nbytes <= 0:
            raise UsageError(
                f"cannot reserve {nbytes} bytes", hint=f"use {self.granularity} or more"
            )
        if nbytes % self.granularity:
            raise MisalignedError("length", nbytes, self.granularity)
        if nbytes >= _MAX_LENGTH:
            raise UsageError(f"{format_size(nbytes)} is larger than any address space")
        try:
            base = self.context.call("cuMemAddressReserve", nbytes, 0, 0, 0)
        except CudaError as error:
            raise self.context.explain(error, nbytes, 0) from error
        mapped = MappedRange(
            self.context, self.source, self._access, (base, nbytes), self.granularity
        )
        self._ranges.add(mapped)
        return CudaReservation(mapped)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        assert isinstance(reservation, CudaReservation)  # narrows the contract's type
        reservation.begin()
        try:
            reservation.check_commit(offset, nbytes)
            reservation.mapped.map(offset, offset + nbytes)
            reservation.blocks.add(offset, offset + nbytes)
        except QuarantineError as error:
            reservation.quarantine(*error.span)
            raise
        finally:
            reservation.busy = False

    def release(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        assert isinstance(reservation, CudaReservation)  # narrows the contract's type
        reservation.begin()
        try:
            reservation.check_release(offset, nbytes)
            reservation.mapped.unmap(offset, offset + nbytes)
            reservation.blocks.remove(offset, offset + nbytes)
        except QuarantineError as error:
            reservation.blocks.remove(offset, offset + nbytes)
            reservation.quarantine(*error.span)
            raise
        finally:
            reservation.busy = False

    def share(
        self,
        reservation: Reservation,
        offset: int,
        source: Reservation,
        source_offset: int,
        nbytes: int,
    ) -> None:
        """Map a committed span of *source* into *reservation* as well, read-only.

        The memory lives until the last of its spans is released. It is charged once, to the
        pool's authority.

        Raises:
            UsageError: If a span is not legal, the memory does not come from this backing's pool,
                or *source* is not of this device.
            CudaError: If the driver refuses; nothing has changed.
            QuarantineError: If it refuses and could not be put back.
        """
        assert isinstance(reservation, CudaReservation)  # narrows the contract's type
        assert isinstance(source, CudaReservation)
        if not isinstance(self.source, HandlePool):
            raise UsageError(
                "only memory of a pool can be shared", hint="open the backing with a pool"
            )
        if source.granularity != self.granularity:
            raise UsageError(
                f"memory in chunks of {format_size(source.granularity)} cannot be shared into chunks of "
                f"{format_size(self.granularity)}",
                hint="use two reservations of the same pool",
            )
        reservation.begin()
        try:
            reservation.check_commit(offset, nbytes)
            source.check_release(source_offset, nbytes)
            first = source_offset // self.granularity
            numbers = range(first, first + nbytes // self.granularity)
            handles = [source.mapped.handles[number] for number in numbers]
            self.source.share(handles)
            reservation.mapped.map_shared(offset, handles, self._read_only)
            reservation.blocks.add(offset, offset + nbytes)
        except QuarantineError as error:
            reservation.quarantine(*error.span)
            raise
        finally:
            reservation.busy = False

    def unreserve(self, reservation: Reservation) -> None:
        assert isinstance(reservation, CudaReservation)  # narrows the contract's type
        if reservation.closed:
            return
        failure: VmtoolError | None = None
        reservation.begin()
        try:
            reservation.mapped.free()
        except VmtoolError as error:
            if not reservation.mapped.freed:
                reservation.forget_unmapped()
                raise
            failure = error
        finally:
            reservation.busy = False
        reservation.finalizer.detach()
        reservation.mark_closed()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Give back what the pool keeps, then the context; the reservations are closed before.

        Raises:
            UsageError: If a reservation is open, or memory of the pool is still mapped elsewhere;
                nothing has changed.
            CudaError: If the driver does not take a handle back.
        """
        held = sum(not mapped.freed for mapped in self._ranges)
        if held and not self.context.lost:  # without the context nothing could be unmapped any more
            raise UsageError(
                f"{held} reservations of {self.name} are still open", hint="close its buffers"
            )
        if isinstance(self.source, HandlePool):
            self.source.close()
        self.context.close()


def granularity(context: DeviceContext, properties: Any, option: int) -> int:
    """Return the granularity for *properties* (B1: an answer that makes no sense is an error).

    Raises:
        CudaError: If the driver call fails.
        VmtoolError: If the answer is not a power of two.
    """
    nbytes = context.driver.granularity(properties, option)
    if nbytes <= 0 or nbytes & (nbytes - 1):
        raise VmtoolError(
            f"cuMemGetAllocationGranularity answered {nbytes}, which is not a power of two",
            cause="the driver, or something that stands in for it, is broken",
            hint="update the NVIDIA driver",
        )
    return nbytes
