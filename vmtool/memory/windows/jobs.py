"""Job objects of Windows: whether a process is in one, and the limits of the job of this process.

Windows answers for a job to who has a handle of it, and to its own processes, which need none: so the
limits of another process are known only where it shares the job of this one
(https://learn.microsoft.com/en-us/windows/win32/api/jobapi2/nf-jobapi2-queryinformationjobobject).
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
from dataclasses import dataclass
from typing import Final

_DWORD, _SIZE, _HANDLE = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_EXTENDED_LIMITS: Final = 9  # JobObjectExtendedLimitInformation
_ACTIVE_PROCESSES, _PROCESS_MEMORY, _JOB_MEMORY = 0x8, 0x100, 0x200


class _ExtendedLimits(ctypes.Structure):
    """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION`` of winnt.h, the basic information within it."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", _DWORD),
        ("minimum_working_set", _SIZE),
        ("maximum_working_set", _SIZE),
        ("active_processes", _DWORD),
        ("affinity", _SIZE),
        ("priority_class", _DWORD),
        ("scheduling_class", _DWORD),
        ("io", ctypes.c_uint64 * 6),
        ("process_memory", _SIZE),
        ("job_memory", _SIZE),
        ("peak_process_memory", _SIZE),
        ("peak_job_memory", _SIZE),
    )


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of a job; ``None`` is unlimited.

    Attributes:
        process_bytes: What each of its processes may commit.
        job_bytes: What all of them together may.
        processes: How many there may be.
        peak_job_bytes: The most that all of them had committed.
    """

    process_bytes: int | None
    job_bytes: int | None
    processes: int | None
    peak_job_bytes: int


_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_is_in_job = _kernel32.IsProcessInJob
_is_in_job.restype, _is_in_job.argtypes = _DWORD, (_HANDLE, _HANDLE, _HANDLE)
_query_job = _kernel32.QueryInformationJobObject
_query_job.restype = _DWORD
_query_job.argtypes = (_HANDLE, _DWORD, _HANDLE, _DWORD, _HANDLE)


def is_in_job(process: int) -> bool:
    """Return whether the process with the handle *process* is in any job object."""
    answer = _DWORD()
    return bool(_is_in_job(process, None, ctypes.byref(answer))) and bool(answer.value)


def read_job_limits() -> JobLimits | None:
    """Return the limits of the job that this process is in; ``None`` if it is in none."""
    limits = _ExtendedLimits()
    size = ctypes.sizeof(limits)
    if not _query_job(None, _EXTENDED_LIMITS, ctypes.byref(limits), size, None):
        return None
    flags = limits.flags
    return JobLimits(
        process_bytes=limits.process_memory if flags & _PROCESS_MEMORY else None,
        job_bytes=limits.job_memory if flags & _JOB_MEMORY else None,
        processes=limits.active_processes if flags & _ACTIVE_PROCESSES else None,
        peak_job_bytes=limits.peak_job_memory,
    )
