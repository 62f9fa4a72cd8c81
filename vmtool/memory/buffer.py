"""A buffer whose base never moves: growth, leasing and rounding over any backing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from vmtool.errors import UnavailableError, UsageError
from vmtool.memory.buffer_views import (
    CPU,
    CUDA,
    Export,
    Exports,
    LiveViewError,
    capsule,
    cuda_array_interface,
    host_view,
)
from vmtool.memory.errors import CapacityError, ClosedError, QuarantineError
from vmtool.memory.governor import BudgetError, Owner, Role, Tier
from vmtool.memory.span_map import SpanMap
from vmtool.units import align_up, format_size

if TYPE_CHECKING:
    # Type checkers know it without the package; Python 3.13 has it in types.
    from typing_extensions import CapsuleType

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.governor import Governor, Lease
    from vmtool.memory.reservation import Reservation


class AuthorityError(UsageError):
    """A governor and a backing that charge different ledgers for the same bytes (V4)."""


class VirtualBuffer(Owner):
    """Bytes at a fixed base that grow and shrink in place.

    ``len(buffer)`` is the length that was set; ``committed`` is the length rounded up to granules,
    or less where spans were released. A buffer may be used from several threads: calls that change
    it wait for each other. A process that forks has two independent buffers of the same contents;
    one that another thread was changing at that moment must not be used in the child. (No CUDA
    buffer can be used in a forked child.)

    An exception that a signal handler raises in the middle of a call, as Ctrl-C does by default,
    leaves the buffer in a state in which only :meth:`close` is safe; it still gives back everything.
    Programs that continue record the signal instead, as vmtool's own commands do.

    Args:
        backing: Where the memory comes from.
        capacity: The largest length, in bytes; rounded up to a granule.
        governor: Whose limits apply; ``None`` for none.
        role: What the memory is for, in the governor's ledger.
        holder: A name in the governor's ledger.

    Raises:
        AuthorityError: If the backing charges its own ledger and the governor is another's.
        UsageError: If *capacity* is not positive.
        CallError: If the platform refuses the reservation.
    """

    def __init__(
        self,
        backing: VirtualBacking,
        capacity: int,
        *,
        governor: Governor | None = None,
        role: Role = Role.KV_CACHE,
        holder: str = "",
    ) -> None:
        if capacity <= 0:
            raise UsageError(
                f"a capacity of {capacity} bytes is not positive", hint="use 1 or more"
            )
        authority = backing.accounting.authority
        if authority is not None and governor is not None and governor.authority is not authority:
            raise AuthorityError(
                f"the backing {backing.name} charges the ledger of {authority.name!r}, but the "
                f"governor keeps the ledger of {governor.authority.name!r}",
                hint="give the buffer the governor that the backing's pool was made with",
            )
        self._granule = backing.granularity
        # Reentrant: a signal handler that runs in the middle of a call must not wait for itself.
        self._lock = threading.RLock()
        self._lease: Lease | None = None
        self._reservation: Reservation | None = None
        self._backing = backing
        self._capacity = capacity
        self._length = 0
        self._exports = Exports()
        # Set when it is closed while lent to someone who keeps this buffer.
        self._deferred: Reservation | None = None
        self._reservation = backing.reserve(align_up(capacity, self._granule))
        self._blocks = self._reservation.blocks
        if governor is not None and authority is None:
            self._lease = governor.lease(backing.tier, role=role, holder=holder)

    @property
    def backing(self) -> VirtualBacking:
        """Where the memory comes from."""
        return self._backing

    @property
    def reservation(self) -> Reservation:
        """The range of addresses and what is committed in it."""
        if self._reservation is None:
            raise ClosedError("the buffer is closed")
        return self._reservation

    @property
    def base(self) -> int:
        """The first address, which never changes. Not for the CPU when the tier is a device."""
        return self.reservation.base

    @property
    def capacity(self) -> int:
        """The largest length, in bytes."""
        return self._capacity

    @property
    def committed(self) -> int:
        """How many bytes have memory behind them."""
        return self._blocks.total

    @property
    def closed(self) -> bool:
        """Whether everything was given back."""
        return self._reservation is None

    def __len__(self) -> int:
        return self._length

    def grow_to(self, nbytes: int) -> None:
        """Make the length at least *nbytes*, committing only the granules that are missing.

        Raises:
            CapacityError: If *nbytes* is over the capacity.
            BudgetError: If the governor refuses; nothing was committed.
            CallError: If the platform refuses; what this call committed was released again.
        """
        with self._lock:
            if nbytes > self._capacity:
                raise CapacityError(nbytes, self._capacity)
            if nbytes <= self._length:
                self._check_length(nbytes)
                return
            end = -(-nbytes // self._granule) * self._granule
            total = self._blocks.total
            if total == self._blocks.end:  # no holes: the common case
                if end > total:
                    self._commit(total, end - total)
            else:
                self._fill(end)
            self._length = nbytes

    def shrink_to(self, nbytes: int) -> None:
        """Make the length at most *nbytes*, releasing only whole granules above it.

        Raises:
            LiveViewError: If a live view reaches into what would be released.
            CallError: If the platform refuses; the length has not changed, and of several spans
                those below the refused one are released.
        """
        with self._lock:
            self._check_length(nbytes)
            if nbytes >= self._length:
                return
            keep = -(-nbytes // self._granule) * self._granule
            total = self._blocks.total
            if total == self._blocks.end:  # no holes: the common case
                if total > keep:
                    self._release(keep, total - keep)
            else:
                for start, end in list(self._blocks.spans(keep, self.reservation.capacity)):
                    self._release(start, end - start)
            self._length = nbytes

    def commit(self, offset: int, nbytes: int) -> None:
        """Commit any free span, leased first (V2); the length stays as it is.

        Raises:
            MisalignedError, OutOfRangeError, OverlapError: If the span is not legal.
            BudgetError: If the governor refuses; nothing was committed.
            CallError: If the platform refuses; nothing was committed.
        """
        with self._lock:
            self._commit(offset, nbytes)

    def release(self, offset: int, nbytes: int) -> None:
        """Release any committed span; the length stays as it is.

        Raises:
            MisalignedError, OutOfRangeError, NotCommittedError: If the span is not legal.
            LiveViewError: If a live view reaches into it.
            CallError: If the platform refuses; nothing was released.
        """
        with self._lock:
            self._release(offset, nbytes)

    def view(self) -> memoryview:
        """Return a writable view of the length, valid while the buffer grows.

        It and whatever is made from it, such as a numpy array, keep the memory alive; closing the
        buffer, or releasing what they show, is refused meanwhile.

        Raises:
            UnavailableError: If the memory is a device's.
            UsageError: If part of the length was released.
        """
        base = self.reservation.base
        if self._backing.tier is not Tier.HOST:
            raise UnavailableError(f"{self._backing.name} memory has no view on the CPU")
        return host_view(self._export(), base)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Return a DLPack capsule of the length as bytes, without a copy; it lives as a view does.

        Consumers that ask for version 1.0 or later get a versioned capsule, whose arrays are
        writable; older ones get the old structure.

        Raises:
            BufferError: If a copy or another device is requested.
            UsageError: If part of the length was released.
        """
        device = self.__dlpack_device__()
        if copy or dl_device not in {None, device}:
            raise BufferError("a buffer is exported in place: no copy, no other device")
        export = self._export()
        return capsule(export, self._data_address(export.nbytes), device, max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device as DLPack counts them: ``(1, 0)`` is the CPU, ``(2, N)`` a CUDA device."""
        if self._backing.tier is Tier.HOST:
            return CPU, 0
        return CUDA, int(self._backing.name.partition(":")[2])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The length as bytes, for consumers that keep this buffer but never say they are done.

        From then on what it shows is not released, and closing is deferred to the last reference.

        Raises:
            AttributeError: If the memory is the host's.
            UsageError: If part of the length was released.
        """
        if self._backing.tier is Tier.HOST:
            raise AttributeError("__cuda_array_interface__")
        nbytes = self._export().nbytes
        self._exports.lent_bytes = max(self._exports.lent_bytes, nbytes)
        return cuda_array_interface(self._data_address(nbytes), nbytes)

    def close(self) -> None:
        """Give back every block, the addresses and the lease; a second call is a no-op.

        What was lent through ``__cuda_array_interface__`` is given back with the last reference.

        Raises:
            LiveViewError: If a view is live; nothing has changed.
            CallError: If the platform refuses; the buffer stays open and may be closed again.
        """
        with self._lock:
            if self._reservation is None:
                return
            if live := self._exports.live_bytes():
                raise LiveViewError(live)
            lent = self._exports.lent_bytes
            if lent:
                self._deferred = self._reservation
            else:
                self._backing.unreserve(self._reservation)
            self._reservation = None
            self._blocks = SpanMap()
            self._length = 0
            if self._lease is not None and not lent:
                self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except LiveViewError as refusal:
            # The traceback itself may keep the view alive; the first error matters more.
            if error is None:
                raise
            error.add_note(f"the buffer is freed with its last view: {refusal}")

    def __del__(self) -> None:
        # The reservation frees itself; the governor's ledger is updated here.
        if (lease := getattr(self, "_lease", None)) is not None:
            self._reservation = self._deferred = None
            lease.release()

    def __repr__(self) -> str:
        if self._reservation is None:
            return "<VirtualBuffer closed>"
        return (
            f"<VirtualBuffer {self._backing.name} at {self.base:#x}: {self._length} bytes of "
            f"{format_size(self._capacity)}, {format_size(self.committed)} committed>"
        )

    def _commit(self, offset: int, nbytes: int) -> None:
        reservation, lease = self._reservation, self._lease
        if reservation is None:
            raise ClosedError("the buffer is closed")
        if lease is None or nbytes <= 0:
            self._backing.commit(reservation, offset, nbytes)
            return
        try:
            lease.grow(nbytes)
        except BudgetError:
            reservation.check_commit(offset, nbytes)  # an illegal span is the better error
            raise
        try:
            self._backing.commit(reservation, offset, nbytes)
        except QuarantineError:
            self._charge_owned(lease)
            raise
        except BaseException:
            lease.shrink(nbytes)
            raise

    def _release(self, offset: int, nbytes: int) -> None:
        reservation = self._reservation
        if reservation is None:
            raise ClosedError("the buffer is closed")
        if self._exports.made or self._exports.lent_bytes:
            self._exports.check(offset, offset + nbytes)
        try:
            self._backing.release(reservation, offset, nbytes)
        except QuarantineError:
            if self._lease is not None:
                self._charge_owned(self._lease)
            raise
        if self._lease is not None:
            self._lease.shrink(nbytes)

    def _export(self) -> Export:
        with self._lock:
            if not self.reservation.blocks.covers(0, self._length):
                raise UsageError("part of the length is released", hint="commit it again first")
            return self._exports.add(self, self._length)

    def _data_address(self, nbytes: int) -> int:
        """Return the address to export: both protocols want 0 where there is no byte."""
        return self.reservation.base if nbytes else 0

    def _charge_owned(self, lease: Lease) -> None:
        """Shrink the lease to what is committed or quarantined, which stays owned."""
        lease.shrink(lease.nbytes - self._blocks.total - self.reservation.quarantined.total)

    def _check_length(self, nbytes: int) -> None:
        if self._reservation is None:
            raise ClosedError("the buffer is closed")
        if nbytes < 0:
            raise UsageError(f"a length of {nbytes} bytes is negative")

    def _fill(self, end: int) -> None:
        """Commit every gap below *end*, or none of them."""
        done: list[tuple[int, int]] = []
        try:
            for start, gap_end in list(self._blocks.gaps(0, end)):
                self._commit(start, gap_end - start)
                done.append((start, gap_end - start))
        except BaseException:
            for start, nbytes in done:
                self._release(start, nbytes)
            raise
