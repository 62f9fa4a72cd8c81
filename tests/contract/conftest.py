"""One backing per parameter, and a way to touch its memory that never kills the test process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass

import pytest

from vmtool.memory import host_methods, open_backing


class HostMemory:
    """Reads, writes and probes addresses of this process."""

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def faults(self, address: int) -> bool:
        """Tell whether reading one byte at *address* would fault, by letting the kernel try."""
        if sys.platform == "win32":
            kernel32 = ctypes.WinDLL("kernel32")
            kernel32.GetCurrentProcess.restype = ctypes.c_void_p
            kernel32.ReadProcessMemory.argtypes = [ctypes.c_void_p] * 3 + [
                ctypes.c_size_t,
                ctypes.c_void_p,
            ]
            byte = ctypes.create_string_buffer(1)
            process = kernel32.GetCurrentProcess()
            return not kernel32.ReadProcessMemory(process, address, byte, 1, None)
        reader, writer = os.pipe()
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
            libc.write.restype = ctypes.c_ssize_t
            return libc.write(writer, address, 1) == -1
        finally:
            os.close(reader)
            os.close(writer)


@dataclass(frozen=True)
class Platform:
    """A backing under test and how to reach its memory."""

    backing: object
    memory: HostMemory


PLATFORMS = [f"host:{method}" for method in host_methods()]


@pytest.fixture(params=PLATFORMS)
def platform(request):
    """Every backing that this machine has, one after the other."""
    _kind, _, method = request.param.partition(":")
    return Platform(open_backing("host", method=method), HostMemory())


@pytest.fixture
def reserved(platform):
    """A reservation of 64 granules on each backing; given back afterwards."""
    reservation = platform.backing.reserve(64 * platform.backing.granularity)
    yield reservation
    with contextlib.suppress(Exception):
        platform.backing.unreserve(reservation)
