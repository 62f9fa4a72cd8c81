"""``sysctl`` values and the counters of this task on macOS; nothing on other systems."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any, Final

from vmtool.memory.counter_types import Counters

_TEXT_BYTES: Final = 256
_NUMBER_BYTES: Final = 8


def read_text(name: str, libc: Any = None) -> str | None:
    """Return what ``sysctl -n NAME`` prints; ``None`` if there is nothing of that name.

    Args:
        name: Of a text, such as ``machdep.cpu.brand_string``.
        libc: The C library; this process's own by default.
    """
    text = _read(name, _TEXT_BYTES, libc)
    return text.partition(b"\0")[0].decode("utf-8", errors="replace") or None


def read_integer(name: str, libc: Any = None) -> int | None:
    """Return the number called *name*, such as ``kern.hv_vmm_present``; ``None`` if there is none."""
    number = _read(name, _NUMBER_BYTES, libc)
    return int.from_bytes(number, sys.byteorder) if number else None


def _read(name: str, most: int, libc: Any) -> bytes:
    sysctl = getattr(libc or ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return b""
    value = ctypes.create_string_buffer(most)
    size = ctypes.c_size_t(most)
    if sysctl(name.encode("ascii"), value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return b""
    return value.raw[: size.value]


# Flavors, and the structures that they fill in: bsd/sys/proc_info.h and bsd/sys/resource.h of
# https://github.com/apple-oss-distributions/xnu; neither has changed its first fields since 10.9.
_PROC_PIDTASKINFO: Final = 4
_TASK_INFO_BYTES: Final = 96  # sizeof(struct proc_taskinfo)
_VIRTUAL_SIZE: Final = struct.Struct("=Q")  # its first member, pti_virtual_size
_RUSAGE_INFO_V0: Final = 0
_RUSAGE_BYTES: Final = 96  # sizeof(struct rusage_info_v0)
_FOOTPRINT: Final = struct.Struct("=16s7QQ")  # ri_uuid, seven numbers, ri_phys_footprint


def read_task_counters(libc: Any = None) -> Counters:
    """Return address space and footprint of this process; ``None`` where macOS refuses.

    The footprint is reported as the resident memory: ``MADV_FREE_REUSABLE`` lowers it at once,
    while the pages stay in RAM, and in ``pti_resident_size``, until memory is short. It counts
    compressed and swapped pages, and no pages of files (docs/platform-facts.md#macos-footprint).
    There is no commit charge on macOS. The address space includes the shared cache of system
    libraries (docs/platform-facts.md#macos-rlimit-as).
    """
    return Counters(
        address_space_bytes=parse_virtual_size(_read_task_info(libc)),
        resident_bytes=parse_footprint(_read_usage(libc)),
    )


def read_virtual_size(libc: Any = None) -> int | None:
    """Return the address space in use, which macOS compares with ``RLIMIT_AS``."""
    return parse_virtual_size(_read_task_info(libc))


def _read_task_info(libc: Any) -> bytes:
    call = (libc or ctypes.CDLL(None)).proc_pidinfo
    call.restype = ctypes.c_int
    call.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    buffer = ctypes.create_string_buffer(_TASK_INFO_BYTES)
    got: int = call(os.getpid(), _PROC_PIDTASKINFO, 0, buffer, _TASK_INFO_BYTES)
    return buffer.raw[: max(got, 0)]


def _read_usage(libc: Any) -> bytes:
    call = (libc or ctypes.CDLL(None)).proc_pid_rusage
    call.restype = ctypes.c_int
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    buffer = ctypes.create_string_buffer(_RUSAGE_BYTES)
    return b"" if call(os.getpid(), _RUSAGE_INFO_V0, buffer) else buffer.raw


def parse_virtual_size(data: bytes) -> int | None:
    """Return the size in a ``struct proc_taskinfo``; ``None`` if it is cut short."""
    if len(data) < _VIRTUAL_SIZE.size:
        return None
    size: int = _VIRTUAL_SIZE.unpack_from(data)[0]
    return size


def parse_footprint(data: bytes) -> int | None:
    """Return the footprint in a ``struct rusage_info_v0``; ``None`` if it is cut short."""
    if len(data) < _FOOTPRINT.size:
        return None
    footprint: int = _FOOTPRINT.unpack_from(data)[-1]
    return footprint
