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

import ctypes
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import CallError, UnavailableError, UsageError
from vmtool.memory.backing import Granularity, PhysicalMemoryAccounting
from vmtool.memory.errors import MisalignedError, QuarantineError
from vmtool.memory.governor import Tier
from vmtool.memory.reservation import Reservation
from vmtool.memory.span_map import SpanMap
from vmtool.memory.windows.calls import (
    ALLOCATION_BYTES,
    CALLS,
    HAS_PLACEHOLDERS,
    MEM_COALESCE_PLACEHOLDERS,
    MEM_COMMIT,
    MEM_DECOMMIT,
    MEM_PRESERVE_PLACEHOLDER,
    MEM_RELEASE,
    MEM_REPLACE_PLACEHOLDER,
    MEM_RESERVE,
    MEM_RESERVE_PLACEHOLDER,
    PAGE_BYTES,
    PAGE_FILE,
    PAGE_NOACCESS,
    PAGE_READWRITE,
    PROCESS,
    SEC_COMMIT,
    WindowsCalls,
    call_error,
)
from vmtool.memory.windows.counters import read_regions
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vmtool.memory.span_map import Span

METHODS: Final = ("view", "private", "decommit")

_RESERVE_PLACEHOLDER: Final = MEM_RESERVE | MEM_RESERVE_PLACEHOLDER
# Of VirtualFree: cut a part out of a placeholder, or turn memory back into one.
_TO_PLACEHOLDER: Final = MEM_RELEASE | MEM_PRESERVE_PLACEHOLDER
_COALESCE: Final = MEM_RELEASE | MEM_COALESCE_PLACEHOLDERS
_REPLACE: Final = MEM_RESERVE | MEM_COMMIT | MEM_REPLACE_PLACEHOLDER
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
            _DecommitRange(calls, self)
            if method == "decommit"
            else _PlaceholderRange(calls, self, views=method == "view")
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


class _PlaceholderRange:
    """A placeholder whose parts are exchanged for memory, one unit at a time.

    A *placeholder* is a range of addresses that is reserved and that no other call can take while its
    parts are exchanged for memory and back. Two rules shape this class:

    * Memory replaces a whole placeholder, never a part of one, so a placeholder is split first. A
      split takes a *strict* part: of a placeholder that fits exactly, Windows refuses it.
    * A view can't be unmapped in part, and nothing promises that private memory goes back to a
      placeholder in part. Any granule must be releasable alone, whatever it was committed with, so
      memory is put in *units* of one granule, and each goes back whole.

    Between blocks, every free gap is one placeholder again: neighbours are coalesced after each
    release, so that a large block fits where small ones were. Where Windows refuses to coalesce, the
    *seam* is remembered and mended before the gap is used; nothing is lost by it.

    https://learn.microsoft.com/en-us/windows/win32/api/memoryapi/nf-memoryapi-virtualalloc2 describes
    placeholders; what vmtool relies on is in docs/platform-facts.md#windows-placeholders and below it.

    A unit that Windows refuses to release is quarantined, unless it is the first of the span: then
    nothing has changed, and the others are not tried.

    Args:
        calls: The calls to make.
        reservation: The reservation; only its maps are kept, so that it can be reclaimed.
        views: Put a view of a section of its own behind each unit, instead of private memory.
    """

    def __init__(self, calls: WindowsCalls, reservation: Reservation, *, views: bool) -> None:
        self._calls = calls
        self._base = reservation.base
        self._capacity = reservation.capacity
        self._unit = reservation.granularity
        self._blocks = reservation.blocks
        self._quarantined = reservation.quarantined  # units that hold memory that must not be used
        self._views = views
        self._fill = self._map_view if views else self._allocate
        # Offsets inside free gaps where two placeholders still meet: empty but for failures.
        self._seams: set[int] = set()
        # Whether an exception such as KeyboardInterrupt ended a change halfway.
        self._interrupted = False

    def commit(self, offset: int, nbytes: int) -> None:
        self._change(self._commit, offset, nbytes)

    def release(self, offset: int, nbytes: int) -> None:
        self._change(self._release, offset, nbytes)

    def close(self) -> None:
        self._change(self._close)

    def _change(self, change: Callable[..., None], *span: int) -> None:
        """Make a change, after repairing what an interrupted one has left."""
        if self._interrupted:
            self._repair()
        self._interrupted = True
        try:
            change(*span)
        except (CallError, QuarantineError):  # undone, or recorded as quarantined
            self._interrupted = False
            raise
        except MemoryError:  # making the error of a refused call takes memory, too
            self._repair()
            self._interrupted = False
            raise
        self._interrupted = False

    def _repair(self) -> None:
        """Query what is committed, release what no block owns, and note every seam."""
        committed = SpanMap()
        for region in read_regions(self._base, self._base + self._capacity):
            start, end = region.start - self._base, region.end - self._base
            self._seams |= {start, end}
            if region.committed:
                committed.add(start, end)
        for owned in (self._blocks, self._quarantined):
            for start, end in list(owned):
                for gap in list(committed.gaps(start, end)):
                    owned.remove(*gap)
            for start, end in owned:
                committed.remove(start, end)
        for start, end in committed:
            units = range(start, end, self._unit)
            self._seams.update(units)
            self._quarantine(at for at in units if not self._empty(at))

    def _commit(self, offset: int, nbytes: int) -> None:
        unit, base, split = self._unit, self._base, self._calls.VirtualFree
        start, end = self._gap(offset)
        if not self._join(start, end):
            raise call_error("VirtualFree", base + start, end - start, _COALESCE)
        free = start  # where the placeholder that holds the next unit begins
        cuts = range(0)  # where it was split
        try:
            for at in range(offset, offset + nbytes, unit):
                if free < at or at + unit < end:  # a strict part of it
                    if not split(base + at, unit, _TO_PLACEHOLDER):
                        raise call_error("VirtualFree", base + at, unit, _TO_PLACEHOLDER)
                    cuts = range(offset, at + 2 * unit, unit)
                self._fill(at)
                free = at + unit
        except CallError as error:
            filled = range(offset, max(free, offset), unit)
            self._quarantine(at for at in filled if not self._empty(at))
            self._join_parts((start, end), cuts)
            self._report_stuck(offset, offset + nbytes, error)
            raise
        self._blocks.add(offset, offset + nbytes)

    def _release(self, offset: int, nbytes: int) -> None:
        unit, end = self._unit, offset + nbytes
        error: CallError | None = None
        stuck: list[int] = []
        for at in range(offset, end, unit):
            if not self._empty(at):
                refused = self._emptying_error(at)
                if at == offset:
                    raise refused
                error = error or refused
                stuck.append(at)
        self._blocks.remove(offset, end)
        self._quarantine(stuck)
        gap = self._blocks.gap_around(offset, self._capacity)
        self._join_parts(gap, range(offset, end + unit, unit))
        if error is not None:
            self._report_stuck(offset, end, error)

    def _close(self) -> None:
        error: CallError | None = None
        for start, end in list(self._blocks):
            try:
                self._release(start, end - start)
            except CallError as refused:
                error = error or refused
            except QuarantineError:
                continue  # the loop below tries it again, with those that are older
        for start, end in list(self._quarantined):
            for at in range(start, end, self._unit):
                if not self._empty(at):
                    error = error or self._emptying_error(at)
                    continue
                self._quarantined.remove(at, at + self._unit)
                gap = self._blocks.gap_around(at, self._capacity)
                self._join_parts(gap, range(at, at + 2 * self._unit, self._unit))
        if error is not None:
            raise error
        if not self._join(0, self._capacity):
            raise call_error("VirtualFree", self._base, self._capacity, _COALESCE)
        if not self._calls.VirtualFree(self._base, 0, MEM_RELEASE):
            raise call_error("VirtualFree", self._base, 0, MEM_RELEASE)

    def _map_view(self, at: int) -> None:
        """Replace the placeholder of one unit by a view of a section of its own.

        A section gives back its memory and charge when its last view and handle are gone. One for
        several units would keep the charge of all until the last of them is released
        (docs/platform-facts.md#windows-views).
        """
        address, unit, calls = self._base + at, self._unit, self._calls
        protect = PAGE_READWRITE | SEC_COMMIT
        section = calls.CreateFileMappingW(PAGE_FILE, 0, protect, unit >> 32, unit & 0xFFFF_FFFF, 0)
        if not section:
            raise call_error("CreateFileMappingW", unit, protect)
        try:
            view = calls.MapViewOfFile3(
                section, PROCESS, address, 0, unit, MEM_REPLACE_PLACEHOLDER, PAGE_READWRITE, 0, 0
            )
            code = ctypes.get_last_error()
        finally:
            closed = calls.CloseHandle(section)
        if not view:
            ctypes.set_last_error(code)
            error = call_error("MapViewOfFile3", address, unit, MEM_REPLACE_PLACEHOLDER)
            if not closed:
                error.add_note(f"CloseHandle failed too: {unit} bytes stay charged until exit")
            raise error
        if not closed:
            # Unmapping would not return the charge now, so the unit stays owned: quarantined.
            self._quarantined.add(at, at + unit)
            raise call_error("CloseHandle", section)

    def _allocate(self, at: int) -> None:
        """Replace the placeholder of one unit by private memory."""
        address = self._base + at
        if not self._calls.VirtualAlloc2(
            PROCESS, address, self._unit, _REPLACE, PAGE_READWRITE, 0, 0
        ):
            raise call_error("VirtualAlloc2", address, self._unit, _REPLACE)

    def _empty(self, at: int) -> int:
        """Turn the memory of one unit back into a placeholder; zero when Windows refuses."""
        if self._views:
            return self._calls.UnmapViewOfFile2(PROCESS, self._base + at, MEM_PRESERVE_PLACEHOLDER)
        return self._calls.VirtualFree(self._base + at, self._unit, _TO_PLACEHOLDER)

    def _emptying_error(self, at: int) -> CallError:
        address = self._base + at
        if self._views:
            return call_error("UnmapViewOfFile2", address, MEM_PRESERVE_PLACEHOLDER)
        return call_error("VirtualFree", address, self._unit, _TO_PLACEHOLDER)

    def _quarantine(self, units: Iterable[int]) -> None:
        for at in units:
            self._quarantined.add(at, at + self._unit)

    def _report_stuck(self, start: int, end: int, error: CallError) -> None:
        """Raise if a part of ``start..end`` had to be quarantined."""
        stuck = list(self._quarantined.spans(start, end))
        if not stuck:
            return
        quarantine = QuarantineError(stuck[0], error)
        for at, at_end in stuck[1:]:
            quarantine.add_note(f"{at}..{at_end} is quarantined too")
        raise quarantine from error

    def _gap(self, offset: int) -> Span:
        """Return the free gap around *offset*, between what is committed or quarantined."""
        start, end = self._blocks.gap_around(offset, self._capacity)
        if self._quarantined.total:
            left, right = self._quarantined.gap_around(offset, self._capacity)
            return max(start, left), min(end, right)
        return start, end

    def _join_parts(self, gap: Span, cuts: range) -> None:
        """Make each free part of *gap*, which *cuts* divide, one placeholder if Windows lets us."""
        for start, end in list(self._quarantined.gaps(*gap)):
            self._join(start, end, cuts)

    def _join(self, start: int, end: int, cuts: range = range(0)) -> bool:
        """Coalesce the placeholders of the free span ``start..end``; tell whether it is one."""
        seams = {cut for cut in cuts if start < cut < end}
        if self._seams:
            seams |= {seam for seam in self._seams if start < seam < end}
        if not seams:
            return True
        if not self._calls.VirtualFree(self._base + start, end - start, _COALESCE):
            self._seams |= seams
            return False
        self._seams -= seams
        return True


class _DecommitRange:
    """A plain reservation in which pages are committed and decommitted in place.

    Args:
        calls: The calls to make.
        reservation: The reservation; only its maps are kept, so that it can be reclaimed.
    """

    def __init__(self, calls: WindowsCalls, reservation: Reservation) -> None:
        self._calls = calls
        self._base = reservation.base
        self._blocks = reservation.blocks
        self._quarantined = reservation.quarantined

    def commit(self, offset: int, nbytes: int) -> None:
        address = self._base + offset
        if not self._calls.VirtualAlloc(address, nbytes, MEM_COMMIT, PAGE_READWRITE):
            code = ctypes.get_last_error()
            # Nothing says that a refused call committed no page. Decommitting a page that is not
            # committed is allowed. It comes before the error is made, which takes memory.
            undone = self._calls.VirtualFree(address, nbytes, MEM_DECOMMIT)
            span = (offset, offset + nbytes)
            if not undone:
                self._quarantined.add(*span)
            ctypes.set_last_error(code)
            error = call_error("VirtualAlloc", address, nbytes, MEM_COMMIT)
            if not undone:
                raise QuarantineError(span, error) from error
            raise error
        self._blocks.add(offset, offset + nbytes)

    def release(self, offset: int, nbytes: int) -> None:
        address = self._base + offset
        if not self._calls.VirtualFree(address, nbytes, MEM_DECOMMIT):
            raise call_error("VirtualFree", address, nbytes, MEM_DECOMMIT)
        self._blocks.remove(offset, offset + nbytes)

    def close(self) -> None:
        if not self._calls.VirtualFree(self._base, 0, MEM_RELEASE):
            raise call_error("VirtualFree", self._base, 0, MEM_RELEASE)
