"""A reservation on the stand-in and short ways to call it, for the tests of the stand-in itself."""

import pytest

# Who imports this module needs the bindings: its tests are skipped where there are none (macOS).
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

GRANULE = 64 << 10
GRANULES = 8


def plain(value):
    """Handles and addresses as integers."""
    return int(value) if type(value).__name__.startswith(("CUdeviceptr", "CUmemG")) else value


class Rig:
    """Device 0 with a current context and a reservation of ``GRANULES`` granules at ``base``."""

    def __init__(self):
        driver.cuInit(0)
        self.properties = driver.CUmemAllocationProp()
        self.properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.context = self.get("cuDevicePrimaryCtxRetain", 0)
        self.ok("cuCtxSetCurrent", self.context)
        self.base = self.get("cuMemAddressReserve", GRANULES * GRANULE, 0, 0, 0)
        self.mapped = {}

    def at(self, granule):
        """The address of a granule."""
        return self.base + granule * GRANULE

    def code(self, name, *arguments):
        """The result code of one call."""
        return int(getattr(driver, name)(*arguments)[0])

    def ok(self, name, *arguments):
        """Call, and expect success."""
        assert self.code(name, *arguments) == 0, name

    def get(self, name, *arguments):
        """The one output of a call that succeeds."""
        code, value = getattr(driver, name)(*arguments)
        assert code == 0, name
        return plain(value)

    def get_pair(self, name, *arguments):
        """The two outputs of a call that succeeds."""
        code, *values = getattr(driver, name)(*arguments)
        assert code == 0, name
        return tuple(values)

    def create(self, count=1):
        """A new handle of *count* granules."""
        return self.get("cuMemCreate", count * GRANULE, self.properties, 0)

    def map(self, granule, handle, count=1):
        """The code of mapping *handle*, which has *count* granules."""
        code = self.code("cuMemMap", self.at(granule), count * GRANULE, 0, handle, 0)
        if code == 0:
            self.mapped[granule] = count
        return code

    def access(self, granule, count=1, flags=3, device=0):
        """The code of giving *device* access to granules."""
        description = driver.CUmemAccessDesc()
        description.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.location.id = device
        description.flags = driver.CUmemAccess_flags(flags)
        return self.code("cuMemSetAccess", self.at(granule), count * GRANULE, [description], 1)

    def commit(self, granule, count=1):
        """Map *count* new handles of one granule each, with access."""
        for index in range(granule, granule + count):
            handle = self.create()
            assert self.map(index, handle) == 0
            self.ok("cuMemRelease", handle)
        assert self.access(granule, count) == 0

    def unmap(self, granule, count=1):
        """The code of unmapping granules."""
        code = self.code("cuMemUnmap", self.at(granule), count * GRANULE)
        if code == 0:
            gone = range(granule, granule + count)
            self.mapped = {at: n for at, n in self.mapped.items() if at not in gone}
        return code

    def fill(self, granule, value, count=1, stream=None):
        """Fill granules, on the default stream or another, without waiting."""
        if stream is None:
            self.ok("cuMemsetD8", self.at(granule), value, count * GRANULE)
        else:
            self.ok("cuMemsetD8Async", self.at(granule), value, count * GRANULE, stream)

    def read(self, granule, nbytes=1):
        """The first bytes of a granule."""
        into = bytearray(nbytes)
        self.ok("cuMemcpyDtoH", into, self.at(granule), nbytes)
        return bytes(into)

    def close(self):
        """Give back what a test left mapped, then the reservation and the context."""
        self.ok("cuCtxSetCurrent", self.context)
        self.ok("cuCtxSynchronize")
        for granule, count in list(self.mapped.items()):
            assert self.unmap(granule, count) == 0
        self.ok("cuMemAddressFree", self.base, GRANULES * GRANULE)
        self.ok("cuDevicePrimaryCtxRelease", 0)
