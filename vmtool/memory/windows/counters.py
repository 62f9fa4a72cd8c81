"""The memory counters and limits of Windows: for the machine, a process, or ranges of addresses.

Ranges are read as regions: runs of pages that are alike.
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
import mmap
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.memory.counter_types import Counters, MemoryLimits, ProcessLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.memory.span_map import Span

_DWORD, _SIZE, _HANDLE = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_UNSET: Final = (1 << 64) - 1
_PROCESS: Final = -1  # the pseudo handle that GetCurrentProcess() returns
_PROCESS_QUERY_INFORMATION: Final = 0x400
_MEM_COMMIT: Final = 0x1000
_MEM_FREE: Final = 0x10000
_MEM_IMAGE: Final = 0x1000000
# https://learn.microsoft.com/en-us/windows/win32/api/psapi/ns-psapi-psapi_working_set_ex_block
_VALID: Final = 1  # bit 0 of PSAPI_WORKING_SET_EX_BLOCK: the page is in the working set
_PAGES_A_CALL: Final = 1 << 16


class _PerformanceInformation(ctypes.Structure):
    """``PERFORMANCE_INFORMATION`` of psapi.h; everything but the last three counts pages."""

    _fields_ = (
        ("cb", _DWORD),
        ("commit_total", _SIZE),
        ("commit_limit", _SIZE),
        ("commit_peak", _SIZE),
        ("physical_total", _SIZE),
        ("physical_available", _SIZE),
        ("system_cache", _SIZE),
        ("kernel_total", _SIZE),
        ("kernel_paged", _SIZE),
        ("kernel_nonpaged", _SIZE),
        ("page_size", _SIZE),
        ("handle_count", _DWORD),
        ("process_count", _DWORD),
        ("thread_count", _DWORD),
    )


class _ProcessMemoryCounters(ctypes.Structure):
    """``PROCESS_MEMORY_COUNTERS_EX2`` of psapi.h, from Windows 10 22H2; it extends older ones."""

    _fields_ = (
        ("cb", _DWORD),
        ("page_faults", _DWORD),
        ("peak_working_set", _SIZE),
        ("working_set", _SIZE),
        ("quota_peak_paged", _SIZE),
        ("quota_paged", _SIZE),
        ("quota_peak_nonpaged", _SIZE),
        ("quota_nonpaged", _SIZE),
        ("pagefile", _SIZE),
        ("peak_pagefile", _SIZE),
        ("private_usage", _SIZE),
        ("private_working_set", _SIZE),
        ("shared_commit", ctypes.c_uint64),
    )


class _MemoryBasicInformation(ctypes.Structure):
    """``MEMORY_BASIC_INFORMATION`` of winnt.h."""

    _fields_ = (
        ("base", _SIZE),
        ("allocation_base", _SIZE),
        ("allocation_protect", _DWORD),
        ("partition", ctypes.c_uint16),
        ("region_size", _SIZE),
        ("state", _DWORD),
        ("protect", _DWORD),
        ("type", _DWORD),
    )


_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)


def _function(name: str, returns: type, *takes: type) -> Callable[..., int]:
    call = getattr(_kernel32, name)
    call.restype, call.argtypes = returns, takes
    return call  # type: ignore[no-any-return] # ctypes types functions by attribute


# The K32 names are exported by kernel32 itself; psapi.dll is not loaded.
_performance_info = _function("K32GetPerformanceInfo", _DWORD, _HANDLE, _DWORD)
_process_memory = _function("K32GetProcessMemoryInfo", _DWORD, _HANDLE, _HANDLE, _DWORD)
# https://learn.microsoft.com/en-us/windows/win32/api/psapi/nf-psapi-queryworkingsetex
_working_set = _function("K32QueryWorkingSetEx", _DWORD, _HANDLE, _HANDLE, _DWORD)
_query = _function("VirtualQueryEx", _SIZE, _HANDLE, _SIZE, _HANDLE, _SIZE)
_open_process = _function("OpenProcess", _SIZE, _DWORD, _DWORD, _DWORD)
_close_handle = _function("CloseHandle", _DWORD, _SIZE)


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """RAM and commit accounting of the machine.

    Attributes:
        total_bytes: RAM.
        available_bytes: RAM that is available without paging.
        charge_bytes: What all processes and the kernel have committed.
        charge_limit_bytes: What they may: RAM and page files, as large as those are now.
    """

    total_bytes: int
    available_bytes: int
    charge_bytes: int
    charge_limit_bytes: int


def read_system_memory() -> SystemMemory | None:
    """Return the counters of the machine, or ``None`` if Windows refuses them."""
    info = _PerformanceInformation()
    if not _performance_info(ctypes.byref(info), ctypes.sizeof(info)):
        return None
    page = info.page_size
    return SystemMemory(
        total_bytes=info.physical_total * page,
        available_bytes=info.physical_available * page,
        charge_bytes=info.commit_total * page,
        charge_limit_bytes=info.commit_limit * page,
    )


def read_limits() -> MemoryLimits:
    """Return the machine's commit limit and its use; Windows limits no process by itself."""
    memory = read_system_memory()
    if memory is None:
        return MemoryLimits()
    return MemoryLimits(
        charge_bytes=memory.charge_bytes,
        charge_limit_bytes=memory.charge_limit_bytes,
        available_bytes=memory.available_bytes,
    )


def read_process_limits() -> ProcessLimits:
    """Return no limits: Windows limits no process but through job objects."""
    return ProcessLimits()


def read_process() -> Counters:
    """Return the counters of this process; a mapping is an allocation, view or placeholder.

    The charge is that of private and shared memory together, because memory behind sections is
    shared memory to Windows; ``None`` before Windows 10 22H2, which reports only private memory.
    """
    resident, charge = _read_counters()
    space, allocations = 0, set()
    for region in read_regions(0, _UNSET):
        space += region.end - region.start
        allocations.add(region.allocation)
    return Counters(space, charge, resident, len(allocations))


def read_range(start: int, end: int) -> Counters:
    """Return the counters of ``start..end``, allocations that reach outside clipped to it.

    Committed memory is charged, touched or not (docs/platform-facts.md#windows-commit-limit).
    """
    space = charge = resident = 0
    known = True
    allocations = set()
    for region in read_regions(start, end):
        size = region.end - region.start
        space += size
        allocations.add(region.allocation)
        if region.committed and not region.image:
            charge += size
        if region.committed:
            present = count_resident(region.start, region.end)
            known = known and present is not None
            resident += present or 0
    return Counters(space, charge, resident if known else None, len(allocations))


def read_split(ranges: Sequence[Span]) -> tuple[Counters, tuple[Counters, ...]]:
    """Return the counters of this process, and of each of *ranges*, pairs of addresses."""
    return read_process(), tuple(read_range(*span) for span in ranges)


def _read_counters() -> tuple[int | None, int | None]:
    """Return the working set and the commit charge of this process, ``None`` for what Windows does not report."""
    info = _ProcessMemoryCounters()
    size = ctypes.sizeof(info)
    # An older Windows fills in the fields it knows and leaves the others as they are.
    ctypes.memset(ctypes.byref(info), 0xFF, size)
    info.cb = size
    if not _process_memory(_PROCESS, ctypes.byref(info), size):
        return None, None
    if _UNSET in {info.private_usage, info.shared_commit}:
        return info.working_set, None
    return info.working_set, info.private_usage + info.shared_commit


def count_mappings() -> int | None:
    """Return how many allocations, views and placeholders this process has."""
    return read_process().mappings


@dataclass(frozen=True, slots=True)
class Region:
    """A run of pages that are alike, as ``VirtualQuery`` reports it.

    Attributes:
        start: Its first address.
        end: The address after its last byte.
        allocation: The base of the allocation, view or placeholder that it belongs to.
        committed: Whether there is memory behind it.
        image: Whether it is a loaded program or library, whose clean pages are not charged.
    """

    start: int
    end: int
    allocation: int
    committed: bool
    image: bool


@contextmanager
def opened_process(pid: int) -> Iterator[int]:
    """Open the process *pid* for :func:`read_regions`.

    Raises:
        OSError: If there is none, or it may not be opened.
    """
    handle = _open_process(_PROCESS_QUERY_INFORMATION, 0, pid)
    if not handle:
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        yield handle
    finally:
        _close_handle(handle)


def read_regions(start: int, end: int, process: int = _PROCESS) -> Iterator[Region]:
    """Yield what is not free in ``start..end`` of a process, clipped to it, ascending."""
    info = _MemoryBasicInformation()
    pointer, size = ctypes.byref(info), ctypes.sizeof(info)
    at = start
    while at < end and _query(process, at, pointer, size):
        after = info.base + info.region_size
        if info.state != _MEM_FREE:
            yield Region(
                at,
                min(after, end),
                info.allocation_base,
                info.state == _MEM_COMMIT,
                info.type == _MEM_IMAGE,
            )
        at = after


def count_resident(start: int, end: int, process: int = _PROCESS) -> int | None:
    """Return how many bytes of a committed span of a process are in its working set."""
    page, present = mmap.PAGESIZE, 0
    while start < end:
        stop = min(end, start + _PAGES_A_CALL * page)
        # An array of PSAPI_WORKING_SET_EX_INFORMATION: address, attributes, address, ...
        entries = array("Q", bytes((stop - start) // page * 16))
        entries[0::2] = array("Q", range(start, stop, page))
        address, length = entries.buffer_info()
        if not _working_set(process, address, length * entries.itemsize):
            return None
        present += sum(attributes & _VALID for attributes in entries[1::2])
        start = stop
    return present * page
