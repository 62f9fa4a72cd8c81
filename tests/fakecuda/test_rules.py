"""What the stand-in does for callers that follow the rules of README.md."""

import os
import threading
from pathlib import Path

from fakecuda.rig import GRANULE, GRANULES, driver

INVALID_VALUE = 1
NOWHERE = 1 << 46
ALL = GRANULES * GRANULE


def test_a_refused_call_changes_nothing(rig, fakecuda):
    rig.commit(0, 2)
    before = fakecuda.report()["live"]
    assert rig.unmap(0, 3) == INVALID_VALUE
    assert rig.code("cuMemAddressFree", rig.base, ALL) == INVALID_VALUE
    assert rig.access(1, 2) == INVALID_VALUE
    assert fakecuda.report()["live"] == before
    assert len(fakecuda.forgive()) == 3


def test_a_hint_is_kept_when_free_and_neighbours_are_freed_apart(rig):
    two_mib = 2 << 20
    first = rig.get("cuMemAddressReserve", two_mib, 4 * two_mib, 0, 0)
    assert first % (4 * two_mib) == 0
    rig.ok("cuMemAddressFree", first, two_mib)
    first = rig.get("cuMemAddressReserve", two_mib, 0, first, 0)
    second = rig.get("cuMemAddressReserve", two_mib, 0, first + two_mib, 0)
    third = rig.get("cuMemAddressReserve", two_mib, 0, first, 0)
    assert second == first + two_mib
    assert third not in (first, second)
    for address in (third, first, second):
        rig.ok("cuMemAddressFree", address, two_mib)


def test_neighbours_are_two_reservations_for_one_call(rig, fakecuda):
    two_mib = 2 << 20
    large = rig.get("cuMemAddressReserve", 2 * two_mib, 0, 0, 0)
    rig.ok("cuMemAddressFree", large, 2 * two_mib)
    first = rig.get("cuMemAddressReserve", two_mib, 0, large, 0)
    second = rig.get("cuMemAddressReserve", two_mib, 0, large + two_mib, 0)
    handle = rig.create(2)
    code = rig.code("cuMemMap", second - GRANULE, 2 * GRANULE, 0, handle, 0)
    assert code == INVALID_VALUE
    assert rig.code("cuMemAddressFree", first, 2 * two_mib) == INVALID_VALUE
    assert [text.split()[0] for text in fakecuda.forgive()] == ["M2", "R3"]
    rig.ok("cuMemRelease", handle)
    rig.ok("cuMemAddressFree", first, two_mib)
    rig.ok("cuMemAddressFree", second, two_mib)


def test_memory_lives_until_released_and_unmapped(rig, fakecuda):
    handle = rig.create()
    assert rig.map(0, handle) == 0
    rig.ok("cuMemRelease", handle)
    assert rig.access(0) == 0
    rig.fill(0, 7)
    assert rig.read(0) == b"\7"
    again = rig.get("cuMemRetainAllocationHandle", rig.base)
    assert again == handle
    assert rig.unmap(0) == 0
    assert fakecuda.report()["live"]["physical_bytes"] == GRANULE
    assert rig.map(3, again) == 0
    assert rig.access(3) == 0
    assert rig.read(3) == b"\7"
    rig.ok("cuMemRelease", again)
    assert rig.unmap(3) == 0
    assert fakecuda.report()["live"]["physical_bytes"] == 0


def test_released_memory_goes_back_to_the_machine(rig):
    rig.commit(0, 4)
    assert blocks_held() >= 4 * GRANULE // 512
    assert rig.unmap(0, 4) == 0
    assert blocks_held() == 0


def blocks_held():
    """How many 512-byte blocks the stand-in's device memory takes."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    files = [link for link in links if str(link.readlink()).startswith("/memfd:fakecuda")]
    return sum(link.stat().st_blocks for link in files)


def test_each_retain_needs_its_own_release(rig, fakecuda):
    rig.commit(0)
    for _ in range(3):
        rig.get("cuMemRetainAllocationHandle", rig.base)
    handle = rig.get("cuMemRetainAllocationHandle", rig.base + 5)
    for _ in range(4):
        rig.ok("cuMemRelease", handle)
    assert rig.code("cuMemRelease", handle) == INVALID_VALUE
    assert len(fakecuda.forgive()) == 1


def test_handles_are_never_used_twice(rig):
    seen = set()
    for _ in range(1000):
        handle = rig.create()
        rig.ok("cuMemRelease", handle)
        seen.add(handle)
    assert len(seen) == 1000


def test_one_handle_at_two_addresses_is_the_same_memory(rig):
    handle = rig.create()
    assert rig.map(0, handle) == 0
    assert rig.map(5, handle) == 0
    rig.ok("cuMemRelease", handle)
    assert rig.access(0) == 0
    assert rig.access(5, flags=1) == 0
    rig.fill(0, 0x42)
    assert rig.read(5) == b"\x42"
    assert rig.code("cuMemsetD8", rig.at(5), 1, 1) == INVALID_VALUE  # read-only there


def test_a_mapping_starts_and_restarts_without_access(rig):
    handle = rig.create()
    for _ in range(2):
        assert rig.map(0, handle) == 0
        assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == INVALID_VALUE
        assert rig.access(0) == 0
        assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == 0
        assert rig.unmap(0) == 0
    rig.ok("cuMemRelease", handle)


def test_access_is_per_device(rig):
    rig.commit(0)
    other = rig.get("cuDevicePrimaryCtxRetain", 1)
    rig.ok("cuCtxSetCurrent", other)
    assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == INVALID_VALUE
    assert rig.access(0, device=1, flags=1) == 0
    assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == 0
    assert rig.code("cuMemsetD8", rig.base, 1, 1) == INVALID_VALUE
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for device, flags in ((0, 3), (1, 1)):
        location.id = device
        assert rig.get("cuMemGetAccess", location, rig.base) == flags
    rig.ok("cuCtxSynchronize")
    rig.ok("cuDevicePrimaryCtxRelease", 1)


def test_copies_to_what_is_not_mapped_fail_without_a_crash(rig):
    rig.commit(0)
    for address in (rig.at(1), rig.at(1) - 1, NOWHERE, 0, (1 << 64) - 1):
        assert rig.code("cuMemcpyDtoH", bytearray(2), address, 2) == INVALID_VALUE
    assert rig.code("cuMemcpyHtoD", rig.base, b"x", (1 << 64) - 1) == INVALID_VALUE


def test_new_memory_is_poisoned_and_never_another_owners(rig):
    rig.commit(0, 2)
    rig.fill(0, 0x11, 2)
    rig.ok("cuCtxSynchronize")
    assert rig.unmap(0, 2) == 0
    rig.commit(0, 2)
    assert rig.read(0, GRANULE) == b"\xa5" * GRANULE


def test_bytes_survive_copies_across_mappings(rig):
    rig.commit(0, 6)
    data = bytes(range(256)) * (2 * GRANULE // 256)
    rig.ok("cuMemcpyHtoD", rig.base + 100, data, len(data))
    rig.ok("cuMemcpyDtoD", rig.at(3) + 7, rig.base + 100, len(data))
    back = bytearray(len(data))
    rig.ok("cuMemcpyDtoH", back, rig.at(3) + 7, len(data))
    assert back == data
    rig.ok("cuMemsetD32", rig.at(3), 0x01020304, 2)
    assert rig.read(3, 9)[:8] == bytes([4, 3, 2, 1] * 2)


def test_memory_is_per_device_and_finite(rig):
    handle = rig.create(16 * 16)
    assert rig.get_pair("cuMemGetInfo") == (0, 16 << 20)
    assert rig.code("cuMemCreate", GRANULE, rig.properties, 0) == 2
    rig.ok("cuMemRelease", handle)
    assert rig.get_pair("cuMemGetInfo") == (16 << 20, 16 << 20)


def test_an_exported_descriptor_names_the_same_memory(rig):
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    rig.properties.requestedHandleTypes = kind
    handle = rig.create()
    fd = rig.get("cuMemExportToShareableHandle", handle, kind, 0)
    copy = rig.get("cuMemImportFromShareableHandle", fd, kind)
    os.close(fd)
    assert copy != handle
    assert rig.map(0, handle) == rig.map(1, copy) == 0
    assert rig.access(0, 2) == 0
    rig.fill(0, 9)
    assert rig.read(1) == b"\x09"
    rig.ok("cuMemRelease", handle)
    rig.ok("cuMemRelease", copy)


def test_threads_may_call_at_once(rig, fakecuda):
    def churn(granule):
        for _ in range(200):
            rig.commit(granule)
            assert rig.code("cuMemUnmap", rig.at(granule), GRANULE) == 0
            rig.mapped.pop(granule)

    threads = [threading.Thread(target=churn, args=(granule,)) for granule in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fakecuda.report()["calls"]["cuMemMap"] == {"calls": 800, "failures": 0}
