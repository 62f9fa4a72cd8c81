"""The counters of macOS that are told about this process."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

from vmtool.memory.counters import Ledgers

_PROC_PIDTASKINFO: Final = 4
_TASK_INFO_BYTES: Final = 96  # sizeof(struct proc_taskinfo) of bsd/sys/proc_info.h in xnu
_SIZES: Final = struct.Struct("=QQ")  # its first members: pti_virtual_size, pti_resident_size


def read_task_ledgers() -> Ledgers:
    """Return address space and residency of this process; all ``None`` if macOS refuses.

    There is no commit charge on macOS. The address space includes the shared cache of system
    libraries.
    """
    libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
    libproc.proc_pidinfo.restype = ctypes.c_int
    libproc.proc_pidinfo.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    buffer = ctypes.create_string_buffer(_TASK_INFO_BYTES)
    got: int = libproc.proc_pidinfo(os.getpid(), _PROC_PIDTASKINFO, 0, buffer, _TASK_INFO_BYTES)
    return parse_task_info(buffer.raw[: max(got, 0)])


def parse_task_info(data: bytes) -> Ledgers:
    """Return the ledgers in a ``struct proc_taskinfo``, or unknown ones if it is cut short."""
    if len(data) < _SIZES.size:
        return Ledgers()
    space, resident = _SIZES.unpack_from(data)
    return Ledgers(address_space_bytes=space, resident_bytes=resident)
