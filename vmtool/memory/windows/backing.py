"""The process's own address space on Windows, committed by one of three methods.

=========  ==========================================  =======================  ===============
method     commit                                      release                  granule
=========  ==========================================  =======================  ===============
view       split; ``MapViewOfFile3`` of a new section  ``UnmapViewOfFile2``     64 KiB [1]_
private    split; ``VirtualAlloc2`` replacing          ``VirtualFree`` release  64 KiB [1]_
decommit   ``VirtualAlloc(MEM_COMMIT)``                ``MEM_DECOMMIT``         page (4 KiB)
=========  ==========================================  =======================  ===============

``view`` and ``private`` work on placeholders, one granule at a time: a commit of N granules makes
N splits and 3 N calls (``view``) or N (``private``), a release N calls, and each coalesces once.
``decommit`` makes one call for any span. All three give back residency and charge. The charge of
``view`` is that of shared memory: ``PrivateUsage`` leaves it out, the machine's total has it
(docs/platform-facts.md#windows-shared-charge). Where Windows refuses to release a granule after it
has released others, only the refused ones are quarantined.

.. [1] The allocation granularity that ``GetSystemInfo`` reports: docs/platform-facts.md#windows-units
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import weakref
from typing import Final, Protocol

from vmtool.errors import UnavailableError, UsageError
from vmtool.memory.backing import Granularity, PhysicalMemoryAccounting
from vmtool.memory.errors import MisalignedError
from vmtool.memory.governor import Tier
from vmtool.memory.reservation import Reservation
from vmtool.memory.windows.calls import (
    ALLOCATION_BYTES,
    CALLS,
    HAS_PLACEHOLDERS,
    MEM_RESERVE,
    MEM_RESERVE_PLACEHOLDER,
    PAGE_BYTES,
    PAGE_NOACCESS,
    PROCESS,
    WindowsCalls,
    call_error,
)
from vmtool.memory.windows.decommit_range import DecommitRange
from vmtool.memory.windows.placeholder_range import PlaceholderRange
from vmtool.units import format_size

METHODS: Final = ("view", "private", "decommit")

_RESERVE_PLACEHOLDER: Final = MEM_RESERVE | MEM_RESERVE_PLACEHOLDER
# No 64-bit system has more addresses than half of what SIZE_T counts.
_MAX_LENGTH: Final = 1 << 63


class WindowsRange(Protocol):
    """What a method does with a reserved range; offsets and lengths were checked before."""

    def commit(self, offset: int, nbytes: int) -> None:
        """Put memory behind a free span and add it to the blocks, or change nothing."""

    def release(self, offset: int, nbytes: int) -> None:
        """Give back the memory of a committed span and take it from the blocks."""

    def close(self) -> None:
        """Give back everything; on :class:`CallError` what is left is still owned."""


class WindowsReservation(Reservation):
    """A reservation, and what exchanges its parts for memory and back."""

    __slots__ = ("finalizer", "range")

    def __init__(
        self, base: int, capacity: int, granularity: int, method: str, calls: WindowsCalls
    ) -> None:
        super().__init__(base, capacity, granularity)
        self.range: WindowsRange = (
            DecommitRange(calls, self)
            if method == "decommit"
            else PlaceholderRange(calls, self, views=method == "view")
        )
        self.finalizer = weakref.finalize(self, self.range.close)
        # At exit Windows unmaps, after the last thread that might use the memory has ended.
        self.finalizer.atexit = False


class WindowsBacking:
    """Reserve, commit and release parts of the process's own address space.

    Args:
        method: ``view``, ``private`` or ``decommit``; see the table above.
        calls: The calls to make; tests pass failing ones.

    Raises:
        UsageError: If *method* is unknown.
        UnavailableError: If this Windows has no placeholders and *method* needs them.
    """

    name = "host"
    device_name = None
    tier = Tier.HOST
    zeroes = True
    guards = True
    populates = False

    def __init__(self, method: str = "view", *, calls: WindowsCalls = CALLS) -> None:
        if method not in METHODS:
            raise UsageError(f"unknown method {method!r}", hint=f"use one of {', '.join(METHODS)}")
        if method != "decommit" and not HAS_PLACEHOLDERS:
            raise UnavailableError(
                f"the method {method!r} needs placeholders: Windows 10 version 1803 or later",
                hint="use --method decommit",
            )
        self.method = method
        self.accounting = PhysicalMemoryAccounting()
        self.granularity = PAGE_BYTES if method == "decommit" else ALLOCATION_BYTES
        self.units = Granularity(PAGE_BYTES, ALLOCATION_BYTES, self.granularity)
        self._calls = calls

    def reserve(self, nbytes: int) -> WindowsReservation:
        if nbytes <= 0:
            raise UsageError(
                f"cannot reserve {nbytes} bytes", hint=f"use {self.granularity} or more"
            )
        if nbytes % self.granularity:
            raise MisalignedError("length", nbytes, self.granularity)
        if nbytes >= _MAX_LENGTH:
            raise UsageError(
                f"{format_size(nbytes)} is larger than any address space",
                hint="`vmtool granularity` shows the largest reservation that works here",
            )
        if self.method == "decommit":
            base = self._calls.VirtualAlloc(0, nbytes, MEM_RESERVE, PAGE_NOACCESS)
            call, flags = "VirtualAlloc", MEM_RESERVE
        else:
            base = self._calls.VirtualAlloc2(
                PROCESS, 0, nbytes, _RESERVE_PLACEHOLDER, PAGE_NOACCESS, 0, 0
            )
            call, flags = "VirtualAlloc2", _RESERVE_PLACEHOLDER
        if not base:
            raise call_error(call, 0, nbytes, flags, purpose="reserve")
        return WindowsReservation(base, nbytes, self.granularity, self.method, self._calls)

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        assert isinstance(reservation, WindowsReservation)  # narrows the contract's type
        reservation.begin()
        try:
            reservation.check_commit(offset, nbytes)
            reservation.range.commit(offset, nbytes)
        finally:
            reservation.busy = False

    def release(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        assert isinstance(reservation, WindowsReservation)  # narrows the contract's type
        reservation.begin()
        try:
            reservation.check_release(offset, nbytes)
            reservation.range.release(offset, nbytes)
        finally:
            reservation.busy = False

    def unreserve(self, reservation: Reservation) -> None:
        assert isinstance(reservation, WindowsReservation)  # narrows the contract's type
        if reservation.closed:
            return
        reservation.begin()
        try:
            reservation.range.close()
            reservation.finalizer.detach()
            reservation.mark_closed()
        finally:
            reservation.busy = False
