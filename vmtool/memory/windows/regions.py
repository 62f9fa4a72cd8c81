"""The regions of a process's address space on Windows, and how much of one is resident."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
import mmap
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DWORD, _SIZE, _HANDLE = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_PROCESS: Final = -1  # the pseudo handle that GetCurrentProcess() returns
_PROCESS_QUERY_INFORMATION: Final = 0x400
_MEM_COMMIT: Final = 0x1000
_MEM_FREE: Final = 0x10000
_MEM_IMAGE: Final = 0x1000000
# https://learn.microsoft.com/en-us/windows/win32/api/psapi/ns-psapi-psapi_working_set_ex_block
_VALID: Final = 1  # bit 0 of PSAPI_WORKING_SET_EX_BLOCK: the page is in the working set
_PAGES_A_CALL: Final = 1 << 16


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


_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
# The K32 names are exported by kernel32 itself; psapi.dll is not loaded.
# https://learn.microsoft.com/en-us/windows/win32/api/psapi/nf-psapi-queryworkingsetex
_working_set = _kernel32.K32QueryWorkingSetEx
_working_set.restype, _working_set.argtypes = _DWORD, (_HANDLE, _HANDLE, _DWORD)
_query = _kernel32.VirtualQueryEx
_query.restype, _query.argtypes = _SIZE, (_HANDLE, _SIZE, _HANDLE, _SIZE)
_open_process = _kernel32.OpenProcess
_open_process.restype, _open_process.argtypes = _SIZE, (_DWORD, _DWORD, _DWORD)
_close_handle = _kernel32.CloseHandle
_close_handle.restype, _close_handle.argtypes = _DWORD, (_SIZE,)


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
