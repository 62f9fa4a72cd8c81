"""Stamps written into a growing buffer, on the host or a device, and checked at each step."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Protocol, cast

from vmtool.machine.device_memory import DeviceMemoryUse
from vmtool.memory.counters import read_range
from vmtool.memory.governor import Tier
from vmtool.units import KIB, MIB

if TYPE_CHECKING:
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.copies import DeviceCopies


#: A view has a stamp at each multiple of this: the smallest page of any platform.
STRIDE: Final = 4 * KIB
_WORD: Final = 8
_STRIDE_WORDS: Final = STRIDE // _WORD
#: Stamps compared in each step; all are compared at each turn from growing to shrinking and back.
_HOST_SAMPLE: Final = 1024
_DEVICE_SAMPLE: Final = 256
_CHUNK: Final = MIB
#: Compared with zero at each end of a granule of a device.
_PIECE: Final = 4 * KIB
#: A driver takes memory for its own tables: less than this cannot be distinguished from those.
_MIN_DEVICE_BYTES: Final = 32 * MIB
# Stamps must not be small numbers, which other data often is.
_SALT: Final = 0x5EED_0000_0000_0001


class Stamps:
    """Writes and checks stamps in a view.

    Attributes:
        compared: How many stamps were compared so far.
    """

    def __init__(self, capacity: int) -> None:
        self._expected = memoryview(array("Q", range(_SALT, _SALT + _count(capacity))))
        self._zeros = bytes(_CHUNK)
        self._turn = 0
        self.compared = 0

    def write(self, view: memoryview, length_before: int) -> None:
        """Stamp the bytes between *length_before* and the length of *view*."""
        first, last = _count(length_before), _count(len(view))
        if first < last:
            words = _words(view)
            words[first * _STRIDE_WORDS :: _STRIDE_WORDS][: last - first] = self._expected[
                first:last
            ]

    def find_wrong(self, view: memoryview, *, everything: bool) -> int | None:
        """Return the offset of a wrong stamp, or ``None``.

        Args:
            view: Where to look.
            everything: Compare all stamps, and not a sample that differs from call to call.
        """
        count = _count(len(view))
        if not count:
            return None
        stride = 1 if everything else max(count // _HOST_SAMPLE, 1)
        first = 0 if everything else self._turn % stride
        self._turn += 1
        found = _words(view)[first * _STRIDE_WORDS :: _STRIDE_WORDS * stride]
        expected = self._expected[first:count:stride]
        found = found[: len(expected)]
        self.compared += len(expected)
        if found == expected:
            return None
        at = next(
            i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
        )
        return (first + at * stride) * STRIDE

    def find_nonzero(self, view: memoryview, start: int) -> int | None:
        """Return the offset of a byte from *start* on that is not zero, or ``None``."""
        for at in range(start, len(view), _CHUNK):
            piece = view[at : at + _CHUNK].tobytes()
            if piece != self._zeros[: len(piece)]:
                return at + next(i for i, byte in enumerate(piece) if byte)
        return None


def _count(length: int) -> int:
    """Return how many whole stamps fit into *length* bytes."""
    return max((length - _WORD) // STRIDE + 1, 0)


def _words(view: memoryview) -> memoryview:
    return view[: len(view) // _WORD * _WORD].cast("Q")


class BufferStamps(Protocol):
    """Writes stamps into one buffer and checks that they are still there.

    Attributes:
        compared: How many stamps were compared so far.
        others_bytes: What somebody else may have taken meanwhile, so that what is unreleased is unknown.
    """

    compared: int
    others_bytes: int | None

    def write(self, before: int) -> None:
        """Stamp the bytes between the length *before* and that of the buffer."""

    def find_wrong(self, length: int, *, everything: bool) -> int | None:
        """Return the offset of a wrong stamp in the first *length* bytes, or ``None``.

        Args:
            length: How far to look.
            everything: Compare all stamps, and not a sample that differs from call to call.
        """

    def find_nonzero(self, start: int) -> int | None:
        """Return the offset of a byte from *start* on that is not zero, or ``None``."""

    def unreleased_bytes(self) -> int | None:
        """Return the memory that the released buffer still uses; ``None`` where it is unknown."""


def stamps_for(buffer: VirtualBuffer, capacity: int) -> BufferStamps:
    """Return the stamps of *buffer*, whose reservation has *capacity* bytes."""
    if buffer.backing.tier is Tier.HOST:
        return HostStamps(buffer, capacity)
    from vmtool.memory.cuda.copies import DeviceCopies

    backing = cast("CudaBacking", buffer.backing)  # the only backing with device memory
    return DeviceStamps(buffer, backing, DeviceCopies(backing.context), capacity)


class HostStamps:
    """A stamp every 4 KiB, written through a view; every new byte is compared with zero."""

    def __init__(self, buffer: VirtualBuffer, capacity: int) -> None:
        self._buffer = buffer
        self._capacity = capacity
        self._base = buffer.base
        self._stamps = Stamps(capacity)
        self.compared = 0
        self.others_bytes: int | None = None

    def write(self, before: int) -> None:
        with self._buffer.view() as view:
            self._stamps.write(view, before)

    def find_wrong(self, length: int, *, everything: bool) -> int | None:
        with self._buffer.view() as whole, whole[:length] as view:
            at = self._stamps.find_wrong(view, everything=everything)
        self.compared = self._stamps.compared
        return at

    def find_nonzero(self, start: int) -> int | None:
        with self._buffer.view() as view:
            return self._stamps.find_nonzero(view, start)

    def unreleased_bytes(self) -> int | None:
        return read_range(self._base, self._capacity).resident_bytes


class DeviceStamps:
    """One stamp at the start of each granule, written by copies.

    Only the first and the last 4 KiB of each new granule are compared with zero. What is unreleased
    is what NVML counts for this process. Without it the driver's figure of the whole device is taken,
    where a large difference may be somebody else's and proves nothing.
    """

    def __init__(
        self, buffer: VirtualBuffer, backing: CudaBacking, copies: DeviceCopies, capacity: int
    ) -> None:
        self._buffer = buffer
        self._backing = backing
        self._capacity = capacity
        self._use = DeviceMemoryUse(backing.context)
        self._used_before = self._used()
        self._copies = copies
        self._granule = buffer.backing.granularity
        self._turn = 0
        self.compared = 0
        self.others_bytes: int | None = None

    def write(self, before: int) -> None:
        first, last = self._count(before), self._count(len(self._buffer))
        for index in range(first, last):
            self._copies.write(self._buffer.reservation, index * self._granule, _stamp(index))

    def find_wrong(self, length: int, *, everything: bool) -> int | None:
        count = self._count(length)
        stride = 1 if everything else max(count // _DEVICE_SAMPLE, 1)
        self._turn += 1
        found = bytearray(_WORD)
        for index in range(self._turn % stride, count, stride):
            self._copies.read(self._buffer.reservation, index * self._granule, found)
            self.compared += 1
            if found != _stamp(index):
                return index * self._granule
        return None

    def find_nonzero(self, start: int) -> int | None:
        found = bytearray(_PIECE)
        for granule in range(start, len(self._buffer), self._granule):
            for at in (granule, granule + self._granule - _PIECE):
                self._copies.read(self._buffer.reservation, at, found)
                if any(found):
                    return at + next(i for i, byte in enumerate(found) if byte)
        return None

    def unreleased_bytes(self) -> int | None:
        from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES

        used, before = self._used(), self._used_before
        if used is None or before is None or self._capacity < _MIN_DEVICE_BYTES:
            return None
        unreleased = used - before
        # All of the capacity is what a driver keeps that gives nothing back; any other amount may be
        # somebody else's.
        if abs(unreleased - self._capacity) > self._granule and self._use.others_grew(
            unreleased, min(DEVICE_TOLERANCE_BYTES, self._capacity // 2)
        ):
            self.others_bytes = unreleased
            return None
        return unreleased if unreleased > min(DEVICE_TOLERANCE_BYTES, self._capacity // 2) else 0

    def _used(self) -> int | None:
        """Return the device memory in use without what the pool keeps unmapped."""
        from vmtool.memory.cuda.errors_and_diagnosis import CudaError
        from vmtool.memory.cuda.handles import HandlePool

        source = self._backing.source
        try:
            used = None if self._backing.context.lost else self._use.read()
        except CudaError:
            used = None
        if used is None or not isinstance(source, HandlePool):
            return used
        pool = source.snapshot()
        return used - pool.pooled * pool.handle_bytes

    def _count(self, length: int) -> int:
        """Return how many whole stamps fit into *length* bytes."""
        return max((length - _WORD) // self._granule + 1, 0)


def _stamp(index: int) -> bytes:
    return (_SALT + index).to_bytes(_WORD, "little")
