"""Exported handles between processes, baselines of the driver, and peers."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from fakecuda import control
from fakecuda.rig import GRANULE, Rig, driver

EXPORTER = """
import os, socket, sys
from fakecuda.rig import GRANULE, Rig, driver
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
rig = Rig()
rig.properties.requestedHandleTypes = FD
handle = rig.create()
rig.map(0, handle)
rig.access(0)
rig.fill(0, 0x5A)
rig.ok("cuCtxSynchronize")
fd = rig.get("cuMemExportToShareableHandle", handle, FD, 0)
rig.ok("cuMemRelease", handle)
with socket.socket(fileno=int(sys.argv[1])) as channel:
    socket.send_fds(channel, [b"x"], [fd])
os.close(fd)
rig.close()
"""


@pytest.fixture
def rig(fakecuda):
    fakecuda.reset(granularity="64KiB")
    made = Rig()
    yield made
    made.close()


def test_memory_is_seen_on_the_other_side_and_outlives_its_exporter(rig, tmp_path):
    fd_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    ours, theirs = socket.socketpair()
    with ours, theirs:
        import subprocess

        subprocess.run(
            [sys.executable, "-c", EXPORTER, str(theirs.fileno())],
            env=control.environment(tmp_path, granularity="64KiB"),
            pass_fds=[theirs.fileno()],
            check=True,
            timeout=60,
        )
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    handle = rig.get("cuMemImportFromShareableHandle", fd, fd_type)
    os.close(fd)
    assert rig.map(0, handle) == 0
    rig.ok("cuMemRelease", handle)
    assert rig.access(0) == 0
    assert rig.read(0, 4) == b"\x5a" * 4


def test_an_allocation_is_memory_that_only_its_own_calls_give_back(rig, fakecuda):
    for allocate, free in (("cuMemAlloc", "cuMemFree"), ("cuMemAllocAsync", "cuMemFreeAsync")):
        stream = (0,) if "Async" in allocate else ()
        address = rig.get(allocate, 3 * GRANULE - 5, *stream)
        rig.ok("cuMemsetD8", address, 7, 3 * GRANULE)
        into = bytearray(4)
        rig.ok("cuMemcpyDtoH", into, address + GRANULE, 4)
        assert into == b"\x07" * 4
        assert rig.code("cuMemUnmap", address, 3 * GRANULE) == 1
        assert rig.code("cuMemAddressFree", address, 3 * GRANULE) == 1
        rig.ok(free, address, *stream)
        assert rig.code(free, address, *stream) == 1
    assert {rule.split()[0] for rule in fakecuda.forgive()} == {"D1"}


def test_stream_ordered_memory_stays_in_the_pool_up_to_its_threshold(rig):
    def free():
        return rig.get_pair("cuMemGetInfo")[0]

    before = free()
    for keep in (0, 2 * GRANULE):
        pool = rig.get("cuDeviceGetDefaultMemPool", 0)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        rig.ok("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t(keep))
        address = rig.get("cuMemAllocAsync", 3 * GRANULE, 0)
        rig.ok("cuMemFreeAsync", address, 0)
        assert free() == before - 3 * GRANULE
        rig.ok("cuStreamSynchronize", 0)
        assert free() == before - keep
    rig.ok("cuMemPoolTrimTo", pool, 0)
    assert free() == before


def test_peers_reach_each_other_only_where_they_are_linked(fakecuda):
    for peers, code in ((1, 0), (0, 101)):
        fakecuda.reset(granularity="64KiB", devices=2, peers=peers)
        rig = Rig()
        rig.commit(0)
        assert rig.get("cuDeviceCanAccessPeer", 0, 1) == peers
        assert rig.access(0, device=1) == code
        rig.close()


def test_a_fabric_handle_needs_a_channel(fakecuda):
    fabric = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
    for imex, code in ((0, 800), (1, 0)):
        fakecuda.reset(granularity="64KiB", fabric=1, imex=imex)
        rig = Rig()
        rig.properties.requestedHandleTypes = fabric
        found, handle = driver.cuMemCreate(GRANULE, rig.properties, 0)
        assert int(found) == code
        if not code:
            rig.ok("cuMemRelease", handle)
        rig.close()
