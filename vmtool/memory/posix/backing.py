"""The process's own address space on Linux and macOS, committed by one of three methods.

=========  ==============================  =============================  ====================
method     commit                          release                        gives back
=========  ==============================  =============================  ====================
fixed      ``mmap(MAP_FIXED, RW)``         ``mmap(MAP_FIXED, NONE)``      residency and charge
protect    ``mprotect(RW)``                ``MADV_DONTNEED``, ``NONE``    residency
advise     ``MADV_POPULATE_WRITE``         ``MADV_DONTNEED``              residency; no guard
=========  ==============================  =============================  ====================

``fixed`` is the default because only replacing an area gives back its commit charge
(docs/platform-facts.md#released). On macOS there is no charge, ``advise`` commits nothing, and
``MADV_FREE_REUSABLE`` takes the place of ``MADV_DONTNEED``: it gives back footprint at once, the
pages when memory is short (docs/platform-facts.md#macos-footprint).
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import errno
import mmap
import weakref
from typing import Final

from vmtool.errors import CallError, UnavailableError, UsageError
from vmtool.memory.backing import Granularity, PhysicalMemoryAccounting
from vmtool.memory.errors import BusyError, MisalignedError, QuarantineError
from vmtool.memory.governor import Tier
from vmtool.memory.posix.calls import (
    CALLS,
    FAILED,
    HAS_HUGETLB,
    MADV_DONTNEED,
    MADV_FREE_REUSABLE,
    MADV_FREE_REUSE,
    MADV_HUGEPAGE,
    MADV_POPULATE_WRITE,
    MAP_ANON,
    MAP_FIXED,
    MAP_FIXED_NOREPLACE,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PR_SET_VMA,
    PR_SET_VMA_ANON_NAME,
    PROT_NONE,
    PROT_RW,
    PosixCalls,
    call_error,
    last_errno,
)
from vmtool.memory.posix.huge_pages import mmap_flags
from vmtool.memory.posix.numa import read_nodes
from vmtool.memory.reservation import Reservation
from vmtool.units import MIB, align_up, format_size

METHODS: Final = ("fixed", "protect", "advise")

_RESERVE: Final = MAP_PRIVATE | MAP_ANON
_REPLACE: Final = MAP_PRIVATE | MAP_ANON | MAP_FIXED
_FILL_HOLE: Final = MAP_PRIVATE | MAP_ANON | MAP_FIXED_NOREPLACE
# Darwin's DONTNEED keeps pages resident; REUSABLE takes them off the footprint at once:
# docs/platform-facts.md#macos-footprint
_DISCARD: Final = MADV_DONTNEED if MADV_FREE_REUSABLE is None else MADV_FREE_REUSABLE
# The size of a PMD on x86-64 and on arm64 with 4 KiB pages: a transparent huge page fits only
# where the base is aligned to it (Documentation/admin-guide/mm/transhuge.rst).
_HUGE_ALIGNMENT: Final = 2 * MIB
# No 64-bit system has more addresses than half of what size_t counts.
_MAX_LENGTH: Final = 1 << 63


class PosixReservation(Reservation):
    """A reservation, and the mapping that holds it (larger when the base had to be aligned)."""

    __slots__ = ("finalizer", "mapping")

    def __init__(
        self,
        base: int,
        capacity: int,
        granularity: int,
        mapping: tuple[int, int],
        calls: PosixCalls,
    ) -> None:
        super().__init__(base, capacity, granularity)
        self.mapping = mapping
        self.finalizer = weakref.finalize(self, calls.munmap, *mapping)
        # At exit the kernel unmaps, after the last thread that might use the memory has ended.
        self.finalizer.atexit = False

    @property
    def address_space_bytes(self) -> int:
        return self.mapping[1]


class PosixBacking:
    """Reserve, commit and release parts of the process's own address space.

    At the limit of memory areas the kernel refuses a release that would split one. The pages are
    given back all the same, because advice needs no new area; the span is then *degraded*:
    released, zero when committed again, but still charged and perhaps without a guard.
    ``Reservation.degraded`` counts it (docs/platform-facts.md#linux-max-map-count).

    Args:
        method: ``fixed``, ``protect`` or ``advise``; see the table above.
        prefault: Make commit fault every page in, and report it when that fails.
        huge: Ask for transparent huge pages, on a base aligned to 2 MiB.
        huge_page_bytes: Use reserved huge pages of this size, which is then the granule; only by
            ``fixed``. Commit faults them in, because a control group's limit would otherwise kill
            the process at the first touch.
        node: Bind what is committed to this NUMA node.
        label: Name the mapping in ``/proc/self/maps``, where the kernel can.
        calls: The calls to make; tests pass failing ones.

    Raises:
        UsageError: If *method* is unknown, or lacks what is requested.
        UnavailableError: If this platform lacks what *prefault*, *huge* or *node* needs, or no
            huge page of that size is available, which is tried.
    """

    name = "host"
    device_name = None
    tier = Tier.HOST

    def __init__(
        self,
        method: str = "fixed",
        *,
        prefault: bool = False,
        huge: bool = False,
        huge_page_bytes: int | None = None,
        node: int | None = None,
        label: str = "",
        calls: PosixCalls = CALLS,
    ) -> None:
        if method not in METHODS:
            raise UsageError(f"unknown method {method!r}", hint=f"use one of {', '.join(METHODS)}")
        if prefault and MADV_POPULATE_WRITE is None:
            raise UnavailableError("pre-faulting needs MADV_POPULATE_WRITE, which only Linux has")
        if huge and MADV_HUGEPAGE is None:
            raise UnavailableError("transparent huge pages are a Linux feature")
        if huge_page_bytes is not None:
            _check_huge_pages(method, huge_page_bytes, calls, huge=huge)
        if node is not None:
            _check_node(node, calls)
        self.method = method
        self.accounting = PhysicalMemoryAccounting()
        # The interpreter's sysconf(_SC_PAGESIZE), or what hugetlb maps and unmaps whole.
        self.granularity = huge_page_bytes or mmap.PAGESIZE
        self.units = Granularity(self.granularity, self.granularity, self.granularity)
        self.zeroes = method == "fixed" or _DISCARD == MADV_DONTNEED
        self.guards = method != "advise"
        self._calls = calls
        self._mmap = calls.mmap
        self._mask = self.granularity - 1
        self._huge = huge
        self._huge_page_bytes = huge_page_bytes
        self._node = node
        self._replace = (
            _REPLACE if huge_page_bytes is None else _REPLACE | mmap_flags(huge_page_bytes)
        )
        # A base is aligned to what is larger than a page.
        self._slack = _HUGE_ALIGNMENT if huge else (huge_page_bytes or 0)
        # ANON_VMA_NAME_MAX_LEN is 80 with the final zero (kernel/sys.c).
        self._label = label.encode(errors="replace")[:79] or None
        self.populates = (
            prefault
            or huge_page_bytes is not None
            or (method == "advise" and MADV_POPULATE_WRITE is not None)
        )
        # MAP_FIXED makes a new mapping without the old one's advice and name:
        # docs/platform-facts.md#linux-map-fixed-advice
        self._prepares = prefault or (
            method == "fixed"
            and (huge or huge_page_bytes is not None or node is not None or self._label is not None)
        )
        self._commit_span, self._release_span = {
            "fixed": (self._commit_fixed, self._release_fixed),
            "protect": (self._commit_protect, self._release_protect),
            "advise": (self._commit_advise, self._release_advise),
        }[method]

    def reserve(self, nbytes: int) -> PosixReservation:
        if nbytes <= 0:
            raise UsageError(
                f"cannot reserve {nbytes} bytes", hint=f"use {self.granularity} or more"
            )
        if nbytes & self._mask:
            raise MisalignedError("length", nbytes, self.granularity)
        slack = self._slack
        if nbytes + slack >= _MAX_LENGTH:
            raise UsageError(
                f"{format_size(nbytes)} is larger than any address space",
                hint="`vmtool granularity` shows the largest reservation that works here",
            )
        # A writable reservation would be charged without NORESERVE. On a PROT_NONE one the flag
        # would do harm: commits by mprotect would escape the charge, and the OOM killer would come
        # instead of an error (docs/platform-facts.md#linux-prot-none).
        if self.method == "advise":
            prot, flags = PROT_RW, _RESERVE | MAP_NORESERVE
        else:
            prot, flags = PROT_NONE, _RESERVE
        address = self._mmap(0, nbytes + slack, prot, flags, -1, 0)
        if address == FAILED:
            purpose = "reserve" if prot == PROT_NONE else "reserve writable"
            raise call_error("mmap", 0, nbytes + slack, prot, flags, purpose=purpose)
        base = align_up(address, slack) if slack else address
        mapping = (address, nbytes + slack)
        reservation = PosixReservation(base, nbytes, self.granularity, mapping, self._calls)
        try:
            if self._huge and self._calls.madvise(base, nbytes, MADV_HUGEPAGE):
                raise call_error("madvise", base, nbytes, MADV_HUGEPAGE)
            if self.method != "fixed":
                self._bind(base, nbytes)
        except CallError:
            self.unreserve(reservation)
            raise
        self._set_label(base, nbytes)
        return reservation

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        if reservation.busy:  # begin(), without the cost of a call
            raise BusyError(reservation.base)
        reservation.busy = True
        try:
            end = offset + nbytes
            blocks = reservation.blocks
            if (
                (offset | nbytes) & self._mask
                or not 0 <= offset < end <= reservation.capacity
                or blocks.overlap(offset, end) is not None
                or reservation.quarantined.total
                or reservation.closed
            ):
                reservation.check_commit(offset, nbytes)
            self._commit_span(reservation, offset, nbytes)
            blocks.add(offset, end)
        finally:
            reservation.busy = False

    def release(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        if reservation.busy:
            raise BusyError(reservation.base)
        reservation.busy = True
        try:
            end = offset + nbytes
            blocks = reservation.blocks
            if (
                (offset | nbytes) & self._mask
                or not 0 <= offset < end
                or not blocks.covers(offset, end)
                or reservation.closed
            ):
                reservation.check_release(offset, nbytes)
            self._release_span(reservation, offset, nbytes)
            blocks.remove(offset, end)
        finally:
            reservation.busy = False

    def unreserve(self, reservation: Reservation) -> None:
        assert isinstance(reservation, PosixReservation)  # narrows the contract's type
        if reservation.closed:
            return
        reservation.begin()
        try:
            address, nbytes = reservation.mapping
            if self._calls.munmap(address, nbytes):
                raise call_error("munmap", address, nbytes)
            reservation.finalizer.detach()
            reservation.mark_closed()
        finally:
            reservation.busy = False

    def _commit_fixed(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        flags = self._replace
        if self._mmap(address, nbytes, PROT_RW, flags, -1, 0) == FAILED:
            error = call_error(
                "mmap", address, nbytes, PROT_RW, flags, huge_page_bytes=self._huge_page_bytes
            )
            self._fill_hole(reservation, offset, nbytes, error)
            raise error
        if self._prepares:
            try:
                self._prepare(address, nbytes)
            except CallError as error:
                if self._mmap(address, nbytes, PROT_NONE, _REPLACE, -1, 0) == FAILED:
                    self._quarantine(reservation, offset, nbytes, error)
                raise
        if reservation.degraded.total:
            reservation.forget_degraded(offset, offset + nbytes)

    def _release_fixed(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        # macOS keeps the pages of a part that was replaced for as long as another part of the same
        # mapping lives, unless they were given up while the part was writable:
        # docs/platform-facts.md#macos-map-fixed
        discarded = MADV_FREE_REUSABLE is not None and not self._calls.madvise(
            address, nbytes, MADV_FREE_REUSABLE
        )
        if self._mmap(address, nbytes, PROT_NONE, _REPLACE, -1, 0) != FAILED:
            if self._label:
                self._set_label(address, nbytes)
            return
        refused = last_errno() == errno.ENOMEM
        error = call_error("mmap", address, nbytes, PROT_NONE, _REPLACE)
        if discarded or (refused and not self._calls.madvise(address, nbytes, _DISCARD)):
            # A whole area can still be guarded; it stays charged all the same.
            self._calls.mprotect(address, nbytes, PROT_NONE)
            reservation.degraded.add(offset, offset + nbytes)
            return
        if refused and last_errno() == errno.ENOMEM:
            # Not all of it is mapped: before Linux 6.12 the refused call had unmapped it already
            # (docs/platform-facts.md#linux-failed-map-fixed). A guard in the hole releases it.
            reservation.blocks.remove(offset, offset + nbytes)
            self._fill_hole(reservation, offset, nbytes, error)
            reservation.blocks.add(offset, offset + nbytes)
            return
        raise error

    def _commit_protect(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        if reservation.degraded.total:
            self._rezero_degraded(reservation, offset, offset + nbytes)
        if self._calls.mprotect(address, nbytes, PROT_RW):
            error = call_error("mprotect", address, nbytes, PROT_RW)
            self._guard_again(reservation, offset, nbytes)
            raise error
        if MADV_FREE_REUSE is not None:
            self._calls.madvise(address, nbytes, MADV_FREE_REUSE)  # accounting only
        if self._prepares:
            try:
                self._prepare(address, nbytes)
            except CallError:
                self._calls.madvise(address, nbytes, _DISCARD)
                self._guard_again(reservation, offset, nbytes)
                raise
        if reservation.degraded.total:
            reservation.forget_degraded(offset, offset + nbytes)

    def _release_protect(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        if self._calls.madvise(address, nbytes, _DISCARD):
            raise call_error("madvise", address, nbytes, _DISCARD)
        self._guard_again(reservation, offset, nbytes)

    def _commit_advise(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        if MADV_FREE_REUSE is not None:
            self._calls.madvise(address, nbytes, MADV_FREE_REUSE)  # accounting only
        if self.populates:
            try:
                self._prepare(address, nbytes)
            except CallError:
                self._calls.madvise(address, nbytes, _DISCARD)
                raise

    def _release_advise(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        address = reservation.base + offset
        if self._calls.madvise(address, nbytes, _DISCARD):
            raise call_error("madvise", address, nbytes, _DISCARD)

    def _prepare(self, address: int, nbytes: int) -> None:
        """Apply advice, name and prefault to a span that was just made writable."""
        madvise = self._calls.madvise
        if self.method == "fixed":
            if self._huge and madvise(address, nbytes, MADV_HUGEPAGE):
                raise call_error("madvise", address, nbytes, MADV_HUGEPAGE or 0)
            self._bind(address, nbytes)
            self._set_label(address, nbytes)
        if self.populates and madvise(address, nbytes, MADV_POPULATE_WRITE):
            raise call_error(
                *("madvise", address, nbytes, MADV_POPULATE_WRITE or 0),
                huge_page_bytes=self._huge_page_bytes,
            )

    def _bind(self, address: int, nbytes: int) -> None:
        """Allow a span to have pages of the chosen node only."""
        node, mbind = self._node, self._calls.mbind
        if node is not None and mbind is not None and mbind(address, nbytes, node):
            raise call_error("mbind", address, nbytes, node)

    def _fill_hole(
        self, reservation: Reservation, offset: int, nbytes: int, error: CallError
    ) -> None:
        """Put a guard where a failed MAP_FIXED may have left nothing.

        Until Linux 6.12 such a call unmapped the old range before it could fail, and another
        thread's mmap may land in the hole (docs/platform-facts.md#linux-failed-map-fixed). The span
        holds no contents, so DONTNEED is harmless; it fails where something is not mapped. At the
        limit of memory areas mmap fails with ENOMEM before it looks at the range, so NOREPLACE alone
        shows nothing (docs/platform-facts.md#linux-noreplace).
        """
        address = reservation.base + offset
        if not self._calls.madvise(address, nbytes, MADV_DONTNEED):
            return
        got = self._mmap(address, nbytes, PROT_NONE, _FILL_HOLE, -1, 0)
        if got == FAILED and last_errno() != errno.EEXIST:
            self._quarantine(reservation, offset, nbytes, error)
        if got not in {FAILED, address}:
            self._calls.munmap(got, nbytes)  # the flag was only a hint here: there was no hole

    def _guard_again(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Make an empty span fault; where the kernel refuses, it is degraded."""
        if self._calls.mprotect(reservation.base + offset, nbytes, PROT_NONE):
            for start, end in list(reservation.degraded.gaps(offset, offset + nbytes)):
                reservation.degraded.add(start, end)

    def _rezero_degraded(self, reservation: Reservation, start: int, end: int) -> None:
        """Drop what stray writes may have left in spans that no longer faulted."""
        for at, at_end in list(reservation.degraded.spans(start, end)):
            address = reservation.base + at
            if self._calls.madvise(address, at_end - at, _DISCARD):
                raise call_error("madvise", address, at_end - at, _DISCARD)

    @staticmethod
    def _quarantine(reservation: Reservation, offset: int, nbytes: int, error: CallError) -> None:
        span = (offset, offset + nbytes)
        reservation.quarantine(*span)
        raise QuarantineError(span, error) from error

    def _set_label(self, address: int, nbytes: int) -> None:
        """Name a mapping where the kernel can: Linux 5.17 with CONFIG_ANON_VMA_NAME."""
        if self._label and self._calls.prctl is not None:
            self._calls.prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, address, nbytes, self._label)


def _check_node(node: int, calls: PosixCalls) -> None:
    """Raise unless memory can be bound to a node, as far as the machine says which it has."""
    if calls.mbind is None:
        raise UnavailableError("NUMA nodes can be chosen on Linux only", hint="leave out --node")
    nodes = read_nodes()
    if nodes and node not in nodes:
        raise UnavailableError(
            f"this machine has no NUMA node {node}",
            hint=f"use {f'one of 0 to {nodes[-1]}' if nodes[-1] else '0, the only one'}",
        )


def _check_huge_pages(method: str, page_bytes: int, calls: PosixCalls, *, huge: bool) -> None:
    """Raise unless reserved huge pages of one size can be used: one is mapped and given back."""
    if not HAS_HUGETLB:
        raise UnavailableError("reserved huge pages are a Linux feature", hint="leave out --huge")
    if huge:
        raise UsageError("huge pages are transparent or reserved, not both")
    if method != "fixed":
        raise UsageError(
            f"the method {method!r} does not use reserved huge pages", hint="use --method fixed"
        )
    if page_bytes <= mmap.PAGESIZE or page_bytes & (page_bytes - 1):
        raise UsageError(
            f"{page_bytes} bytes is not the size of a huge page", hint="use 2MiB or 1GiB"
        )
    flags = _RESERVE | mmap_flags(page_bytes)
    address = calls.mmap(0, page_bytes, PROT_RW, flags, -1, 0)
    if address == FAILED:
        error = call_error("mmap", 0, page_bytes, PROT_RW, flags, huge_page_bytes=page_bytes)
        raise UnavailableError(
            f"no reserved huge page of {format_size(page_bytes)} is available: {error}",
            cause=error.cause,
            hint=error.hint,
        ) from error
    calls.munmap(address, page_bytes)
