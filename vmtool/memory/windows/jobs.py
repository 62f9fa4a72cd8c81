"""Windows job objects: the limits of this process's job, and a job that ends children with it.

Windows answers for a job to who has a handle of it, and to its own processes, which need none: so the
limits of another process are known only where it shares the job of this one
(https://learn.microsoft.com/en-us/windows/win32/api/jobapi2/nf-jobapi2-queryinformationjobobject).
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
import functools
from dataclasses import dataclass
from typing import Final

_DWORD, _SIZE, _HANDLE = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_EXTENDED_LIMITS: Final = 9  # JobObjectExtendedLimitInformation
_ACTIVE_PROCESSES, _PROCESS_MEMORY, _JOB_MEMORY, _KILL_ON_JOB_CLOSE = 0x8, 0x100, 0x200, 0x2000
_PROCESS_TERMINATE, _PROCESS_SET_QUOTA = 0x1, 0x100  # what AssignProcessToJobObject needs


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
_create_job = _kernel32.CreateJobObjectW
_create_job.restype, _create_job.argtypes = _HANDLE, (_HANDLE, ctypes.c_wchar_p)
_set_job = _kernel32.SetInformationJobObject
_set_job.restype, _set_job.argtypes = _DWORD, (_HANDLE, _DWORD, _HANDLE, _DWORD)
_assign_to_job = _kernel32.AssignProcessToJobObject
_assign_to_job.restype, _assign_to_job.argtypes = _DWORD, (_HANDLE, _HANDLE)
_open_process = _kernel32.OpenProcess
_open_process.restype, _open_process.argtypes = _HANDLE, (_DWORD, _DWORD, _DWORD)
_close = _kernel32.CloseHandle
_close.restype, _close.argtypes = _DWORD, (_HANDLE,)


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


def end_with_this_process(pid: int) -> bool:
    """Let Windows end the process *pid* when this one ends, however that happens.

    Return whether Windows does: it refuses where a job of ours forbids others in it.
    """
    process = _open_process(_PROCESS_TERMINATE | _PROCESS_SET_QUOTA, 0, pid)
    if not process:
        return False
    try:
        return bool(_assign_to_job(_job_of_children(), process))
    finally:
        _close(process)


@functools.cache
def _job_of_children() -> int | None:
    """Return a job whose processes are ended when its only handle closes: with this process."""
    job: int | None = _create_job(None, None)
    limits = _ExtendedLimits(flags=_KILL_ON_JOB_CLOSE)
    _set_job(job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits))
    return job
