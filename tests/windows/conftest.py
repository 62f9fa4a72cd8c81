"""What the tests of the Windows backing share: the kernel's own view, and calls that fail."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest

MEM_COMMIT, MEM_RESERVE, MEM_FREE = 0x1000, 0x2000, 0x10000
MEM_PRIVATE, MEM_MAPPED = 0x20000, 0x40000


class Region(ctypes.Structure):
    """``MEMORY_BASIC_INFORMATION`` of winnt.h."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("allocation_base", ctypes.c_size_t),
        ("allocation_protect", ctypes.c_uint32),
        ("partition", ctypes.c_uint16),
        ("nbytes", ctypes.c_size_t),
        ("state", ctypes.c_uint32),
        ("protect", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
    )


class Kernel:
    """What ``VirtualQuery`` says about addresses."""

    free, reserved, committed = MEM_FREE, MEM_RESERVE, MEM_COMMIT
    private, mapped = MEM_PRIVATE, MEM_MAPPED

    def __init__(self):
        self._query = ctypes.WinDLL("kernelbase").VirtualQuery
        self._query.restype = ctypes.c_size_t
        self._query.argtypes = [ctypes.c_size_t, ctypes.POINTER(Region), ctypes.c_size_t]

    def region(self, address):
        """Return the region that begins at the page of *address*."""
        region = Region()
        assert self._query(address, region, ctypes.sizeof(region))
        return region

    def regions(self, reservation):
        """Yield the regions of a reservation's addresses, ascending."""
        at, end = reservation.base, reservation.base + reservation.capacity
        while at < end:
            region = self.region(at)
            yield region
            at = region.base + region.nbytes

    def states(self, reservation):
        """Return the state of each granule."""
        granule = reservation.granularity
        return [
            self.region(reservation.base + at).state
            for at in range(0, reservation.capacity, granule)
        ]


@pytest.fixture(scope="session")
def kernel():
    return Kernel()


class Recorder:
    """Counts the calls of a backing, and makes those that *fails* selects fail.

    Attributes:
        made: The name of each call, in order.
        fails: Tells from a call's index and name whether it is not made but fails.
        failed: Whether one was made to fail.
        code: The error that it fails with.
    """

    def __init__(self):
        self.made = []
        self.fails = lambda _index, _name: False
        self.failed = False
        self.code = 1455

    def wrap(self, calls):
        names = [field.name for field in dataclasses.fields(calls)]
        return dataclasses.replace(
            calls, **{name: self._recorded(name, getattr(calls, name)) for name in names}
        )

    def _recorded(self, name, call):
        def recorded(*arguments):
            self.made.append(name)
            if not self.fails(len(self.made) - 1, name):
                return call(*arguments)
            self.failed = True
            ctypes.set_last_error(self.code)
            return 0

        return recorded


@pytest.fixture
def new_recorder():
    return Recorder


@pytest.fixture(params=["view", "private", "decommit"])
def method(request):
    return request.param
