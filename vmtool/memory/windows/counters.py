"""The counters of Windows: the machine's commit charge, this process, and ranges of addresses."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.memory.counter_types import Counters
from vmtool.memory.windows.regions import count_resident, read_regions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.span_map import Span

_DWORD, _SIZE, _HANDLE = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_PROCESS: Final = -1  # the pseudo handle that GetCurrentProcess() returns
_UNSET: Final = (1 << 64) - 1


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


_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)


def _function(name: str, returns: type, *takes: type) -> Callable[..., int]:
    call = getattr(_kernel32, name)
    call.restype, call.argtypes = returns, takes
    return call  # type: ignore[no-any-return] # ctypes types functions by attribute


# The K32 names are exported by kernel32 itself; psapi.dll is not loaded.
_performance_info = _function("K32GetPerformanceInfo", _DWORD, _HANDLE, _DWORD)
_process_memory = _function("K32GetProcessMemoryInfo", _DWORD, _HANDLE, _HANDLE, _DWORD)


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
