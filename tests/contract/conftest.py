"""One backing per parameter, and a way to touch its memory that never kills the test process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from dataclasses import dataclass

import pytest

from vmtool.errors import CallError, UnavailableError
from vmtool.memory.backing_by_name import host_methods, open_backing, open_device
from vmtool.memory.cuda.handles import HandlePool
from vmtool.memory.governor import Governor


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


class DeviceMemory:
    """Reads, writes and probes addresses of a device, through the driver."""

    def __init__(self, context):
        self._context = context

    def write(self, address: int, data: bytes) -> None:
        with self._context.current():
            self._context.call("cuMemcpyHtoD", address, data, len(data))

    def read(self, address: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        with self._context.current():
            self._context.call("cuMemcpyDtoH", data, address, nbytes)
        return bytes(data)

    def faults(self, address: int) -> bool:
        """Tell whether the driver refuses to copy from there."""
        try:
            self.read(address, 1)
        except CallError:
            return True
        return False


class RealDeviceMemory(DeviceMemory):
    """The same on hardware, where a copy from an address without memory may end the context."""

    def faults(self, address: int) -> bool:
        access = self._context.driver.access(self._context.info.ordinal)
        try:
            return not self._context.call("cuMemGetAccess", access.location, address & ~0xFFFF)
        except CallError:
            return True


@dataclass(frozen=True)
class Platform:
    """A backing under test, how to reach its memory, and the ledger that it is charged to."""

    backing: object
    memory: object
    governor: Governor

    def leased(self):
        """What the governor has leased, less what a pool keeps unmapped."""
        pool = getattr(self.backing, "source", None)
        snapshot = pool.snapshot() if isinstance(pool, HandlePool) else None
        kept = snapshot.pooled * snapshot.handle_bytes if snapshot else 0
        return self.governor.ledger(self.backing.tier).used_bytes - kept

    def trim(self):
        """Give back what a pool keeps."""
        pool = getattr(self.backing, "source", None)
        if isinstance(pool, HandlePool):
            pool.trim()


PLATFORMS = [
    *(f"host:{method}" for method in host_methods()),
    "standin:cold",
    "standin:pooled",
    "standin-2MiB:cold",
    pytest.param("gpu:cold", marks=pytest.mark.gpu),
    pytest.param("gpu:pooled", marks=pytest.mark.gpu),
]


@pytest.fixture(params=PLATFORMS)
def platform(request):
    """Every backing that this machine has, and the stand-in device, one after the other."""
    kind, _, method = request.param.partition(":")
    if kind == "host":
        yield Platform(open_backing("host", method=method), HostMemory(), Governor())
        return
    if kind.startswith("standin"):
        unit = kind.partition("-")[2] or "64KiB"
        request.getfixturevalue("fakecuda").reset(granularity=unit, poison=0xA5)
    elif driver_is_standin():
        pytest.skip("the stand-in driver is loaded in this process: run the gpu tests apart")
    try:
        governor = Governor()
        backing = open_device("cuda", method=method, governor=governor)
    except UnavailableError as error:
        pytest.skip(str(error))
    memory = RealDeviceMemory if kind == "gpu" else DeviceMemory
    yield Platform(backing, memory(backing.context), governor)
    gc.collect()
    backing.close()  # the stand-in is asked afterwards whether anything is held


def driver_is_standin():
    """Tell whether this process has the tests' own driver loaded."""
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
    except (OSError, AttributeError):
        return False
    return hasattr(loaded, "fakecuda_report")


@pytest.fixture
def reserved(platform):
    """A reservation of 64 granules on each backing; given back afterwards."""
    reservation = platform.backing.reserve(64 * platform.backing.granularity)
    yield reservation
    with contextlib.suppress(Exception):
        platform.backing.unreserve(reservation)
