"""Copies to and from committed device memory, with every length checked.

The bindings do not check them: they write past the end of a short buffer, and into ``bytes``
(seen with cuda-bindings 13.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError
from vmtool.memory.errors import ClosedError, NotCommittedError, OutOfRangeError

if TYPE_CHECKING:
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.reservation import Reservation

_WORD: Final = 4


class DeviceCopies:
    """Writes, fills and reads what is committed on one device.

    Each call waits for its own work, unless told not to.

    Args:
        context: The device. A context of their own keeps these calls out of another's clock.
    """

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def write(self, reservation: Reservation, offset: int, data: Any, *, wait: bool = True) -> None:
        """Copy *data* to *offset*; it may change as soon as this returns.

        Args:
            reservation: Where.
            offset: In it.
            data: What.
            wait: Whether to wait until the device has it; :meth:`wait` does so later.

        Raises:
            UsageError: If *data* is not contiguous, or the target is not committed.
            CudaError: If the driver refuses.
        """
        view = _contiguous(data)
        if not view.nbytes:
            return
        address = _address(reservation, offset, view.nbytes)
        with self._context.current():
            self._context.call("cuMemcpyHtoD", address, view, view.nbytes)
            # Pageable memory is staged: the call may return before the device has it (docs).
            if wait:
                self._context.call("cuStreamSynchronize", 0)

    def read(self, reservation: Reservation, offset: int, into: Any) -> None:
        """Fill *into* with what is at *offset*.

        Raises:
            UsageError: If *into* is read-only or not contiguous, or the source is not committed.
            CudaError: If the driver refuses.
        """
        view = _contiguous(into)
        if view.readonly:
            raise UsageError("cannot copy into read-only memory", hint="use a bytearray")
        if not view.nbytes:
            return
        address = _address(reservation, offset, view.nbytes)
        with self._context.current():
            self._context.call("cuMemcpyDtoH", view, address, view.nbytes)

    def fill(
        self, reservation: Reservation, offset: int, nbytes: int, word: int, *, wait: bool = True
    ) -> None:
        """Fill a span with a repeated word of 32 bits.

        Args:
            reservation: Where.
            offset: In it.
            nbytes: How much.
            word: What.
            wait: Whether to wait until it is done; :meth:`wait` does so later.

        Raises:
            UsageError: If the span is not made of whole aligned words, or is not committed.
            CudaError: If the driver refuses.
        """
        if (offset | nbytes) % _WORD or nbytes <= 0:
            raise UsageError(f"{nbytes} bytes at offset {offset} are not whole words of 4 bytes")
        address = _address(reservation, offset, nbytes)
        with self._context.current():
            self._context.call("cuMemsetD32", address, word, nbytes // _WORD)
            if wait:  # a fill returns before it is done (docs)
                self._context.call("cuStreamSynchronize", 0)

    def wait(self) -> None:
        """Wait for every write and fill of this context so far."""
        with self._context.current():
            self._context.call("cuStreamSynchronize", 0)


def _contiguous(data: Any) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise UsageError("the host memory is not contiguous", hint="copy it first")
    return view.cast("B") if view.nbytes else view


def _address(reservation: Reservation, offset: int, nbytes: int) -> int:
    if reservation.closed:
        raise ClosedError(f"the reservation at {reservation.base:#x} was given back already")
    if offset < 0 or offset + nbytes > reservation.capacity:
        raise OutOfRangeError(offset, nbytes, reservation.capacity)
    if not reservation.blocks.covers(offset, offset + nbytes):
        gap = next(reservation.blocks.gaps(offset, offset + nbytes))
        raise NotCommittedError(offset, nbytes, gap)
    return reservation.base + offset
