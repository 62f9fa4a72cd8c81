"""The Windows memory calls through ctypes: prototypes, constants, and the error of one that failed."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from vmtool.memory.errors import call_failure
from vmtool.memory.windows.counters import read_limits
from vmtool.memory.windows.diagnosis import (
    NO_ADDRESS_RANGE,
    OUT_OF_MEMORY,
    diagnose_windows,
    symbol_of,
)

if TYPE_CHECKING:
    from vmtool.errors import CallError

# winnt.h. MEM_DECOMMIT and MEM_REPLACE_PLACEHOLDER are the same bit, in different calls.
MEM_COALESCE_PLACEHOLDERS: Final = 0x1
MEM_PRESERVE_PLACEHOLDER: Final = 0x2
MEM_COMMIT: Final = 0x1000
MEM_RESERVE: Final = 0x2000
MEM_DECOMMIT: Final = 0x4000
MEM_REPLACE_PLACEHOLDER: Final = 0x4000
MEM_RELEASE: Final = 0x8000
MEM_RESERVE_PLACEHOLDER: Final = 0x40000
PAGE_NOACCESS: Final = 0x1
PAGE_READWRITE: Final = 0x4
SEC_COMMIT: Final = 0x8000000

#: The handle that makes CreateFileMapping use the page file instead of a file.
PAGE_FILE: Final = (1 << 64) - 1

_ALLOCATE_NAMES: Final = {
    MEM_RESERVE: "MEM_RESERVE",
    MEM_COMMIT: "MEM_COMMIT",
    MEM_REPLACE_PLACEHOLDER: "MEM_REPLACE_PLACEHOLDER",
    MEM_RESERVE_PLACEHOLDER: "MEM_RESERVE_PLACEHOLDER",
}
_FREE_NAMES: Final = {
    MEM_RELEASE: "MEM_RELEASE",
    MEM_DECOMMIT: "MEM_DECOMMIT",
    MEM_PRESERVE_PLACEHOLDER: "MEM_PRESERVE_PLACEHOLDER",
    MEM_COALESCE_PLACEHOLDERS: "MEM_COALESCE_PLACEHOLDERS",
}
_FLAG_NAMES: Final = {
    "VirtualAlloc": _ALLOCATE_NAMES,
    "VirtualAlloc2": _ALLOCATE_NAMES,
    "MapViewOfFile3": _ALLOCATE_NAMES,
    "VirtualFree": _FREE_NAMES,
    "UnmapViewOfFile2": _FREE_NAMES,
    "CreateFileMappingW": {PAGE_READWRITE: "PAGE_READWRITE", SEC_COMMIT: "SEC_COMMIT"},
}
_ERROR_PROC_NOT_FOUND: Final = 127

#: A call through ctypes: integers in, an integer out, 0 for failure with the error kept by ctypes.
Call: TypeAlias = Callable[..., int]


@dataclass(frozen=True, slots=True)
class WindowsCalls:
    """The calls a Windows backing makes; a test or ``--inject`` puts failing ones in their place.

    Every one of them returns 0 when it fails. The fields are named as the functions are.
    """

    VirtualAlloc: Call
    VirtualAlloc2: Call
    VirtualFree: Call
    CreateFileMappingW: Call
    MapViewOfFile3: Call
    UnmapViewOfFile2: Call
    CloseHandle: Call


# kernelbase.dll exports VirtualAlloc2 and MapViewOfFile3; kernel32.dll does not have them. Their
# import library is onecore.lib: https://learn.microsoft.com/en-us/windows/win32/api/memoryapi/
_kernelbase = ctypes.WinDLL("kernelbase", use_last_error=True)


def _missing(*_arguments: int) -> int:
    """Stand in for a function of a later Windows."""
    ctypes.set_last_error(_ERROR_PROC_NOT_FOUND)
    return 0


def _declare() -> WindowsCalls:
    # Addresses and handles are plain integers here: a pointer type would only turn 0 into None.
    size, dword, uint64 = ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64

    def function(name: str, returns: type, *takes: type) -> Call:
        try:
            call = getattr(_kernelbase, name)
        except AttributeError:
            return _missing
        call.restype, call.argtypes = returns, takes
        return call  # type: ignore[no-any-return] # ctypes types functions by attribute

    return WindowsCalls(
        VirtualAlloc=function("VirtualAlloc", size, size, size, dword, dword),
        VirtualAlloc2=function("VirtualAlloc2", size, size, size, size, dword, dword, size, dword),
        VirtualFree=function("VirtualFree", dword, size, size, dword),
        CreateFileMappingW=function(
            "CreateFileMappingW", size, size, size, dword, dword, dword, size
        ),
        MapViewOfFile3=function(
            "MapViewOfFile3", size, size, size, size, uint64, size, dword, dword, size, dword
        ),
        UnmapViewOfFile2=function("UnmapViewOfFile2", dword, size, size, dword),
        CloseHandle=function("CloseHandle", dword, size),
    )


class _SystemInfo(ctypes.Structure):
    """``SYSTEM_INFO`` of sysinfoapi.h."""

    _fields_ = (
        ("processor_architecture", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
        ("page_size", ctypes.c_uint32),
        ("minimum_address", ctypes.c_size_t),
        ("maximum_address", ctypes.c_size_t),
        ("processor_mask", ctypes.c_size_t),
        ("processors", ctypes.c_uint32),
        ("processor_type", ctypes.c_uint32),
        ("allocation_granularity", ctypes.c_uint32),
        ("processor_level", ctypes.c_uint16),
        ("processor_revision", ctypes.c_uint16),
    )


def _query_units() -> tuple[int, int]:
    info = _SystemInfo()
    _kernelbase.GetSystemInfo.restype = None
    _kernelbase.GetSystemInfo.argtypes = [ctypes.POINTER(_SystemInfo)]
    _kernelbase.GetSystemInfo(ctypes.byref(info))
    return int(info.page_size), int(info.allocation_granularity)


def _query_process() -> int:
    _kernelbase.GetCurrentProcess.restype = ctypes.c_size_t
    _kernelbase.GetCurrentProcess.argtypes = []
    return int(_kernelbase.GetCurrentProcess())


CALLS: Final = _declare()
#: The pseudo handle of this process. UnmapViewOfFile2 does not accept NULL instead.
PROCESS: Final = _query_process()
#: In bytes: the unit of protection, and what every base and placeholder is a multiple of
#: (docs/platform-facts.md#windows-units).
PAGE_BYTES, ALLOCATION_BYTES = _query_units()
#: Whether this Windows has placeholders: Windows 10 version 1803, Server 2019 and later.
HAS_PLACEHOLDERS: Final = CALLS.MapViewOfFile3 is not _missing


def last_error() -> int:
    """Return the error code of the last call that failed in this thread."""
    return ctypes.get_last_error()


def error_text(code: int) -> str:
    """Return Windows' own words for an error code."""
    return ctypes.FormatError(code).strip()


def describe(call: str, arguments: tuple[int, ...]) -> str:
    """Return the arguments of a call with their symbolic names.

    Args:
        call: The function.
        arguments: Address or handle, the length if the call takes one, and its flags.
    """
    names = _FLAG_NAMES.get(call)
    if names is None:
        return ", ".join(f"{argument:#x}" for argument in arguments)
    *where, flags = arguments
    if call != "CreateFileMappingW":
        where[0:1], lengths = [], [str(n) for n in where[1:]]
        text = ["NULL" if arguments[0] == 0 else f"{arguments[0]:#x}", *lengths]
    else:
        text = ["INVALID_HANDLE_VALUE", *(str(n) for n in where)]
    return ", ".join([*text, "|".join(name for bit, name in names.items() if flags & bit)])


def call_error(call: str, *arguments: int, purpose: str = "") -> CallError:
    """Return the error for a call that just failed, with its likely cause on this machine.

    Args:
        call: The function.
        arguments: Its address, its length where it has one, and its flags.
        purpose: ``reserve`` when only address space was requested.
    """
    code = ctypes.get_last_error()
    nbytes = 0 if call in {"UnmapViewOfFile2", "CloseHandle"} else arguments[-2]
    diagnosis = diagnose_windows(code, purpose or call, nbytes, read_limits())
    ran_out = code in OUT_OF_MEMORY or diagnosis.kind == NO_ADDRESS_RANGE
    return call_failure(
        call,
        describe(call, arguments),
        code=code,
        symbol=symbol_of(code),
        detail=ctypes.FormatError(code).strip(),
        diagnosis=diagnosis,
        out_of_memory=ran_out,
    )
