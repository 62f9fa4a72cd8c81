"""What a trial writes into a buffer and finds again: by the CPU, or by copies to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from vmtool.memory.counters import read_range
from vmtool.memory.governor import Tier
from vmtool.trials.stamps import Stamps
from vmtool.units import KIB, MIB

if TYPE_CHECKING:
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.copies import DeviceCopies

_STAMP: Final = 8
_SALT: Final = 0x5EED_0000_0000_0001
#: Stamps compared in each step; the whole is compared at every turn.
_SAMPLE: Final = 256
_PIECE: Final = 4 * KIB
#: On a device, less than this is not told from what the driver takes for tables of its own.
_LEAST_TOLD: Final = 32 * MIB


class Marks(Protocol):
    """Writes into one buffer, and looks whether it is still there.

    Attributes:
        checked: How many stamps were compared so far.
        left: What :meth:`left_bytes` counts.
    """

    checked: int
    left: str

    def write(self, before: int) -> None:
        """Stamp what lies between the length *before* and that of the buffer."""

    def wrong(self, length: int, *, everything: bool) -> int | None:
        """Return the offset of a stamp in the first *length* bytes that is gone, or ``None``."""

    def not_zero(self, start: int) -> int | None:
        """Return the offset of a byte that is not zero from *start* on, or ``None``."""

    def left_bytes(self) -> int | None:
        """Return what was not given back of all that was committed; ``None`` where it is not told."""


def marks_for(buffer: VirtualBuffer, capacity: int) -> Marks:
    """Return what marks *buffer*, whose reservation has *capacity* bytes."""
    if buffer.backing.tier is Tier.HOST:
        return HostMarks(buffer, capacity)
    from vmtool.memory.cuda.copies import DeviceCopies

    backing = cast("CudaBacking", buffer.backing)  # the only one with memory of a device
    return DeviceMarks(buffer, backing, DeviceCopies(backing.context), capacity)


class HostMarks:
    """Stamps every 4 KiB, through a view."""

    left = "resident"

    def __init__(self, buffer: VirtualBuffer, capacity: int) -> None:
        self._buffer = buffer
        self._capacity = capacity
        self._base = buffer.base
        self._stamps = Stamps(capacity)
        self.checked = 0

    def write(self, before: int) -> None:
        """See :class:`Marks`."""
        with self._buffer.view() as view:
            self._stamps.write(view, before)

    def wrong(self, length: int, *, everything: bool) -> int | None:
        """See :class:`Marks`; 1,024 stamps are compared unless *everything* is asked for."""
        with self._buffer.view() as whole, whole[:length] as view:
            at = self._stamps.wrong(view, everything=everything)
        self.checked = self._stamps.checked
        return at

    def not_zero(self, start: int) -> int | None:
        """See :class:`Marks`; every byte is looked at."""
        with self._buffer.view() as view:
            return self._stamps.not_zero(view, start)

    def left_bytes(self) -> int | None:
        """See :class:`Marks`."""
        return read_range(self._base, self._capacity).resident_bytes


class DeviceMarks:
    """One stamp at the start of each granule, by copies: a device's memory is not for the CPU."""

    left = "in use on the device"

    def __init__(
        self, buffer: VirtualBuffer, backing: CudaBacking, copies: DeviceCopies, capacity: int
    ) -> None:
        self._buffer = buffer
        self._backing = backing
        self._capacity = capacity
        self._used_before = self._used()
        self._copies = copies
        self._granule = buffer.backing.granularity
        self._turn = 0
        self.checked = 0

    def write(self, before: int) -> None:
        """See :class:`Marks`."""
        first, last = self._count(before), self._count(len(self._buffer))
        for index in range(first, last):
            self._copies.write(self._buffer.reservation, index * self._granule, _stamp(index))

    def wrong(self, length: int, *, everything: bool) -> int | None:
        """See :class:`Marks`; 256 stamps are compared unless *everything* is asked for."""
        count = self._count(length)
        stride = 1 if everything else max(count // _SAMPLE, 1)
        self._turn += 1
        found = bytearray(_STAMP)
        for index in range(self._turn % stride, count, stride):
            self._copies.read(self._buffer.reservation, index * self._granule, found)
            self.checked += 1
            if found != _stamp(index):
                return index * self._granule
        return None

    def not_zero(self, start: int) -> int | None:
        """See :class:`Marks`; the first and the last 4 KiB of each granule are looked at."""
        found = bytearray(_PIECE)
        for granule in range(start, len(self._buffer), self._granule):
            for at in (granule, granule + self._granule - _PIECE):
                self._copies.read(self._buffer.reservation, at, found)
                if any(found):
                    return at + next(i for i, byte in enumerate(found) if byte)
        return None

    def left_bytes(self) -> int | None:
        """See :class:`Marks`; by what the driver counts of the whole device, which moves a little."""
        from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES

        used, before = self._used(), self._used_before
        if used is None or before is None or self._capacity < _LEAST_TOLD:
            return None
        left = used - before
        return left if left > min(DEVICE_TOLERANCE_BYTES, self._capacity // 2) else 0

    def _used(self) -> int | None:
        """Return what is in use on the device beyond what a pool keeps unmapped."""
        from vmtool.memory.cuda.pool import HandlePool

        used, source = self._backing.context.used_bytes_if_told(), self._backing.source
        if used is None or not isinstance(source, HandlePool):
            return used
        pool = source.snapshot()
        return used - pool.pooled * pool.handle_bytes

    def _count(self, length: int) -> int:
        """Return how many stamps fit whole into *length* bytes."""
        return max((length - _STAMP) // self._granule + 1, 0)


def _stamp(index: int) -> bytes:
    return (_SALT + index).to_bytes(_STAMP, "little")
