"""Large pages on Windows: their size, and whether this process may use them."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROCESS: Final = -1  # GetCurrentProcess()
_TOKEN_QUERY: Final = 0x8
_TOKEN_PRIVILEGES: Final = 3  # TOKEN_INFORMATION_CLASS of winnt.h
_LOCK_MEMORY: Final = "SeLockMemoryPrivilege"


class _Privilege(ctypes.Structure):
    """``LUID_AND_ATTRIBUTES`` of winnt.h."""

    _fields_ = (("low", ctypes.c_uint32), ("high", ctypes.c_int32), ("attributes", ctypes.c_uint32))


_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
_kernel32.GetLargePageMinimum.restype = ctypes.c_size_t
_kernel32.GetLargePageMinimum.argtypes = []
_kernel32.CloseHandle.argtypes = [ctypes.c_void_p]
_advapi32.OpenProcessToken.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
_advapi32.LookupPrivilegeValueW.argtypes = [ctypes.c_wchar_p, ctypes.c_wchar_p, ctypes.c_void_p]
_advapi32.GetTokenInformation.argtypes = [
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
]


def large_page_bytes() -> int | None:
    """Return the size of a large page, or ``None`` if the processor has none."""
    return int(_kernel32.GetLargePageMinimum()) or None


def may_lock_memory() -> bool | None:
    """Return whether this process holds the privilege that large pages need, enabled or not.

    ``None`` if Windows does not say. An administrator grants it as "Lock pages in memory".
    """
    wanted = _Privilege()
    if not _advapi32.LookupPrivilegeValueW(None, _LOCK_MEMORY, ctypes.byref(wanted)):
        return None
    with _token() as token:
        if token is None:
            return None
        needed = ctypes.c_uint32()
        _advapi32.GetTokenInformation(token, _TOKEN_PRIVILEGES, None, 0, ctypes.byref(needed))
        data = ctypes.create_string_buffer(needed.value)
        if not _advapi32.GetTokenInformation(
            token, _TOKEN_PRIVILEGES, data, needed.value, ctypes.byref(needed)
        ):
            return None
    count = ctypes.c_uint32.from_buffer(data).value
    granted = (_Privilege * count).from_buffer(data, ctypes.sizeof(ctypes.c_uint32))
    return any((each.low, each.high) == (wanted.low, wanted.high) for each in granted)


@contextmanager
def _token() -> Iterator[ctypes.c_void_p | None]:
    token = ctypes.c_void_p()
    if not _advapi32.OpenProcessToken(_PROCESS, _TOKEN_QUERY, ctypes.byref(token)):
        yield None
        return
    try:
        yield token
    finally:
        _kernel32.CloseHandle(token)
