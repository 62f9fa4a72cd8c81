"""The lengths that a buffer goes through: up to a peak in some pattern, and down to nothing; pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Protocol, cast

from vmtool.errors import UsageError
from vmtool.memory.counters import read_range
from vmtool.memory.governor import Tier
from vmtool.units import KIB, MIB

if TYPE_CHECKING:
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.copies import DeviceCopies

PATTERNS: Final = ("linear", "doubling", "sawtooth")

#: More steps than this would measure the harness and fill the memory with samples.
MAX_STEPS: Final = 1 << 18
#: A tooth goes up so many steps and down half as many.
_TOOTH_UP: Final = 4
_TOOTH_DOWN: Final = 2


def lengths(pattern: str, to: int, step: int) -> list[int]:
    """Return every length in turn, beginning after 0 and ending with 0.

    ``linear`` goes up and down by *step*; ``doubling`` starts at *step*, doubles, and halves on
    the way down; ``sawtooth`` goes up four steps and down two until it reaches the peak, then down
    by four. Each reaches *to* exactly.

    Args:
        pattern: One of :data:`PATTERNS`.
        to: The peak in bytes, positive.
        step: The step in bytes, positive.

    Raises:
        UsageError: If the pattern is unknown, or there would be more than 262,144 steps.
    """
    if pattern not in PATTERNS:
        raise UsageError(f"unknown pattern {pattern!r}", hint=f"use one of {', '.join(PATTERNS)}")
    if pattern == "doubling":
        up = _doublings(to, step)
        return [*up, *reversed(up[:-1]), 0]
    steps = -(-to // step) * (4 if pattern == "sawtooth" else 2)
    if steps > MAX_STEPS:
        least = -(-to * steps // (MAX_STEPS * -(-to // step)))
        raise UsageError(
            f"{steps} steps of {step} bytes are more than {MAX_STEPS}",
            hint=f"use a step of {least} bytes or more",
        )
    if pattern == "linear":
        up = [*range(step, to, step), to]
        return [*up, *reversed(up[:-1]), 0]
    return [*_teeth(to, step), *range(to - _TOOTH_UP * step, 0, -_TOOTH_UP * step), 0]


def _doublings(to: int, step: int) -> list[int]:
    up = []
    length = step
    while length < to:
        up.append(length)
        length *= 2
    return [*up, to]


def _teeth(to: int, step: int) -> list[int]:
    found = []
    low = 0
    while True:
        for rise in range(1, _TOOTH_UP + 1):
            found.append(min(low + rise * step, to))
            if found[-1] == to:
                return found
        low += (_TOOTH_UP - _TOOTH_DOWN) * step
        found.append(low)


#: A stamp stands at each multiple of this: the smallest page of any platform.
STRIDE: Final = 4 * KIB
_WORD: Final = 8
_STRIDE_WORDS: Final = STRIDE // _WORD
#: Checked in each step; the whole is checked at every turn from growing to shrinking and back.
_SAMPLE: Final = 1024
_CHUNK: Final = MIB
# Stamps must not be small numbers, which other data often is.
_SALT: Final = 0x5EED_0000_0000_0001


class Stamps:
    """Writes and checks the stamps of one buffer through a view of its length.

    Attributes:
        checked: How many stamps were compared so far.
    """

    def __init__(self, capacity: int) -> None:
        self._expected = memoryview(array("Q", range(_SALT, _SALT + _count(capacity))))
        self._zeros = bytes(_CHUNK)
        self._turn = 0
        self.checked = 0

    def write(self, view: memoryview, length_before: int) -> None:
        """Stamp what lies between *length_before* and the length of *view*."""
        first, last = _count(length_before), _count(len(view))
        if first < last:
            words = _words(view)
            words[first * _STRIDE_WORDS :: _STRIDE_WORDS][: last - first] = self._expected[
                first:last
            ]

    def wrong(self, view: memoryview, *, everything: bool) -> int | None:
        """Return the offset of a stamp that is not as it was written, or ``None``.

        Args:
            view: The length of the buffer.
            everything: Compare all stamps, and not 1,024 that differ from call to call.
        """
        count = _count(len(view))
        if not count:
            return None
        stride = 1 if everything else max(count // _SAMPLE, 1)
        first = 0 if everything else self._turn % stride
        self._turn += 1
        found = _words(view)[first * _STRIDE_WORDS :: _STRIDE_WORDS * stride]
        expected = self._expected[first:count:stride]
        found = found[: len(expected)]
        self.checked += len(expected)
        if found == expected:
            return None
        at = next(
            i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
        )
        return (first + at * stride) * STRIDE

    def not_zero(self, view: memoryview, start: int) -> int | None:
        """Return the offset of a byte that is not zero from *start* on, or ``None``."""
        for at in range(start, len(view), _CHUNK):
            piece = view[at : at + _CHUNK].tobytes()
            if piece != self._zeros[: len(piece)]:
                return at + next(i for i, byte in enumerate(piece) if byte)
        return None


def _count(length: int) -> int:
    """Return how many stamps fit whole into *length* bytes."""
    return max((length - _WORD) // STRIDE + 1, 0)


def _words(view: memoryview) -> memoryview:
    return view[: len(view) // _WORD * _WORD].cast("Q")


_STAMP: Final = 8
#: Stamps compared in each step; the whole is compared at every turn.
_SAMPLE_marks: Final = 256
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
        stride = 1 if everything else max(count // _SAMPLE_marks, 1)
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

        used, source = self._backing.context.used_bytes_if_available(), self._backing.source
        if used is None or not isinstance(source, HandlePool):
            return used
        pool = source.snapshot()
        return used - pool.pooled * pool.handle_bytes

    def _count(self, length: int) -> int:
        """Return how many stamps fit whole into *length* bytes."""
        return max((length - _STAMP) // self._granule + 1, 0)


def _stamp(index: int) -> bytes:
    return (_SALT + index).to_bytes(_STAMP, "little")
