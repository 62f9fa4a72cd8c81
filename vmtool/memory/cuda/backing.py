"""A CUDA device's address space: reserved ranges, whose chunks are mapped from physical handles.

A handle is mapped whole and unmapped whole, so the chunk that a handle covers is the unit of commit
and release. The driver's rules that this relies on are in ``docs/platform-facts.md``.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError, VmtoolError
from vmtool.memory.backing import Granularity, PhysicalMemoryAccounting
from vmtool.memory.cuda import driver as cu
from vmtool.memory.cuda.errors import CudaError
from vmtool.memory.cuda.handles import ColdHandles, HandlePool, HandleSource
from vmtool.memory.errors import MisalignedError, QuarantineError
from vmtool.memory.governor import Tier
from vmtool.memory.reservation import Reservation
from vmtool.units import align_up, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.memory.cuda.context import DeviceContext

_MAX_LENGTH: Final = 1 << 63


class CudaReservation(Reservation):
    """A range of device addresses, and what is mapped in it."""

    __slots__ = ("finalizer", "mapped")

    def __init__(self, mapped: _MappedRange) -> None:
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
        self._ranges: weakref.WeakSet[_MappedRange] = weakref.WeakSet()

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
        mapped = _MappedRange(
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


class _MappedRange:
    """A reserved range of device addresses and the handle mapped at each of its chunks.

    It outlives the reservation that a caller forgets, and can then give everything back.

    Attributes:
        base: The first device address.
        nbytes: The size of the range.
        chunk: The size of one handle.
        handles: The handle at each chunk that is mapped, or perhaps still is, by its number.
        freed: Whether the addresses were given back.
    """

    __slots__ = (
        "__weakref__",
        "_access",
        "_context",
        "_source",
        "base",
        "chunk",
        "freed",
        "handles",
        "nbytes",
    )

    def __init__(
        self,
        context: DeviceContext,
        source: HandleSource,
        access: list[Any],
        span: tuple[int, int],
        chunk: int,
    ) -> None:
        self._context = context
        self._source = source
        self._access = access
        self.base, self.nbytes = span
        self.chunk = chunk
        self.handles: dict[int, int] = {}
        self.freed = False

    def map(self, start: int, end: int) -> None:
        """Map a handle at each chunk of ``start..end``, and give the device access to all at once.

        Raises:
            CudaError, BudgetError: If a handle or a mapping cannot be had; nothing has changed.
            QuarantineError: If what was mapped meanwhile could not be unmapped again.
        """
        with self._undoing(start, end) as done:
            for at in range(start, end, self.chunk):
                self._map_one(at, self._source.take(), done)
            self._set_access(start, end, self._access)
            if self._source.dirty:
                self._clear(start, end)

    def map_shared(self, start: int, handles: list[int], access: list[Any]) -> None:
        """Map *handles*, which another range holds too, from *start* on with *access*.

        The caller has counted one user more at their source.

        Raises:
            CudaError: If a mapping cannot be had; nothing has changed but that all are given back.
            QuarantineError: If what was mapped meanwhile could not be unmapped again.
        """
        end = start + len(handles) * self.chunk
        left = list(reversed(handles))
        try:
            with self._undoing(start, end) as done:
                for at in range(start, end, self.chunk):
                    self._map_one(at, left.pop(), done)
                self._set_access(start, end, access)
        except VmtoolError:
            self._give(left)
            raise

    def unmap(self, start: int, end: int, *, wait: bool = True) -> None:
        """Unmap ``start..end``, whole mappings without a hole, in one call; give back the handles.

        Args:
            start: The first offset.
            end: The offset after the last.
            wait: False only where nothing that was submitted can touch the range.

        Raises:
            CudaError: If the driver refuses; everything is still mapped, or the device is lost.
            QuarantineError: If it is not known whether it is, or a handle was not taken back.
        """
        call = self._context.call
        if wait:  # cuMemUnmap does not wait for work in flight, which would then fault (docs)
            self._context.synchronise()
        try:
            call("cuMemUnmap", self.base + start, end - start)
        except CudaError as error:
            # A lost device answers nothing any more: that is reported, not a doubt about one span.
            mapped = self._is_mapped(start) and self._is_mapped(end - self.chunk)
            if self._context.lost or mapped:
                raise
            raise QuarantineError((start, end), error) from error
        chunks = range(start // self.chunk, end // self.chunk)
        lost = self._give([self.handles.pop(number) for number in chunks])
        if lost:
            numbers = [chunks[index] for index, _ in lost]
            span = (numbers[0] * self.chunk, (numbers[-1] + 1) * self.chunk)
            raise QuarantineError(span, lost[0][1]) from lost[0][1]

    def free(self) -> None:
        """Unmap everything and give back the addresses; on a lost device the process's end does.

        Raises:
            CudaError: If the driver refuses; what is left can be tried again.
            QuarantineError: If only a handle was not taken back; the addresses are.
        """
        if self._context.lost:
            self.handles.clear()
            self.freed = True
            return
        failure: QuarantineError | None = None
        for start, end in self._runs():
            try:
                self.unmap(start, end)
            except QuarantineError as error:
                if start // self.chunk in self.handles:
                    raise
                failure = error
        self._context.call("cuMemAddressFree", self.base, self.nbytes)
        self.freed = True
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Give everything back and report nothing: for a reservation that was forgotten."""
        try:
            self.free()
        except VmtoolError:
            return  # the driver shuts down with the process and takes the rest

    @contextmanager
    def _undoing(self, start: int, end: int) -> Iterator[list[int]]:
        """Keep the handles that the body maps from *start* on, or unmap them if it fails."""
        done: list[int] = []
        try:
            yield done
        except CudaError as error:
            # First: undoing gives back what ran out.
            explained = self._context.explain(error, end - start, len(self.handles) + len(done))
            self._roll_back(start, done, explained)
            raise explained from error
        except BaseException as error:
            self._roll_back(start, done, error)
            raise
        self._keep(start, done)

    def _map_one(self, at: int, handle: int, done: list[int]) -> None:
        try:
            self._context.call("cuMemMap", self.base + at, self.chunk, 0, handle, 0)
        except BaseException:
            self._give([handle])
            raise
        done.append(handle)

    def _set_access(self, start: int, end: int, access: list[Any]) -> None:
        self._context.call("cuMemSetAccess", self.base + start, end - start, access, len(access))

    def _clear(self, start: int, end: int) -> None:
        """Make ``start..end`` zero, and wait: the user's streams need not order with ours."""
        call = self._context.call
        with self._context.current():
            call("cuMemsetD8", self.base + start, 0, end - start)
            call("cuStreamSynchronize", 0)  # the default stream, which the memset is on

    def _keep(self, start: int, handles: list[int]) -> None:
        first = start // self.chunk
        self.handles.update(zip(range(first, first + len(handles)), handles, strict=True))

    def _roll_back(self, start: int, handles: list[int], error: BaseException) -> None:
        """Unmap what a failing commit has mapped; only our own clearing can be in flight there."""
        if not handles or self._context.lost:
            return
        end = start + len(handles) * self.chunk
        try:
            self._context.synchronise()
            self._context.call("cuMemUnmap", self.base + start, end - start)
        except CudaError as failure:
            if self._context.lost:
                return  # the process's end gives all of it back
            self._keep(start, handles)
            failure.add_note(f"while undoing a commit that failed: {error}")
            raise QuarantineError((start, end), failure) from failure
        for _, lost in self._give(handles):
            error.add_note(f"and a handle was lost: {lost}")

    def _give(self, handles: list[int]) -> list[tuple[int, CudaError]]:
        """Give handles back to their source; which of them it could not take, and why."""
        lost = []
        for index, handle in enumerate(handles):
            try:
                self._source.give(handle)
            except CudaError as error:
                lost.append((index, error))
        return lost

    def _is_mapped(self, offset: int) -> bool:
        """Return whether the driver still has access rights at *offset*; an error is a no."""
        try:
            location = self._access[0].location
            return bool(self._context.call("cuMemGetAccess", location, self.base + offset))
        except CudaError:
            return False

    def _runs(self) -> list[tuple[int, int]]:
        """Return the maximal runs of mapped chunks, as offsets."""
        runs: list[tuple[int, int]] = []
        for number in sorted(self.handles):
            start, end = number * self.chunk, (number + 1) * self.chunk
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        return runs
