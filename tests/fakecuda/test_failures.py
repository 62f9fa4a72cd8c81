"""Failures on the stand-in: lost devices, injected faults, limits, and what a process leaves (E1)."""

import pytest
from fakecuda.rig import GRANULE, driver

from vmtool.memory.cuda import driver as vmtool_driver
from vmtool.memory.cuda import errors_and_diagnosis as vmtool_errors


def test_a_bad_copy_can_lose_the_device(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", bad_copy=700)
    rig = Rig()
    assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == 700
    for name, arguments in (("cuMemUnmap", (rig.base, GRANULE)), ("cuCtxSynchronize", ())):
        assert rig.code(name, *arguments) == 700
    assert rig.code("cuDriverGetVersion") == 0
    assert fakecuda.report()["sticky"] == 700


def test_faults_hit_the_call_that_was_named(rig, fakecuda):
    fakecuda.fail("cuMemCreate:2,cuMemGetInfo:2+=999")
    handle = rig.create()
    assert rig.code("cuMemCreate", GRANULE, rig.properties, 0) == 2
    rig.ok("cuMemRelease", rig.create())
    assert [rig.code("cuMemGetInfo") for _ in range(4)] == [0, 999, 999, 999]
    fakecuda.fail("cuMemCreate:1=801")
    assert rig.code("cuMemCreate", GRANULE, rig.properties, 0) == 801
    fakecuda.fail("")
    assert rig.code("cuMemGetInfo") == 0
    rig.ok("cuMemRelease", handle)
    assert fakecuda.report()["injected"] == 5


def test_one_of_several_devices_fails_alone(fakecuda):
    fakecuda.reset(devices=2, attributes="20@1=3")
    cuda = vmtool_driver.load()
    create = [("cuMemCreate", 2 << 20, cuda.allocation_properties(n), 0) for n in (0, 1)]
    fakecuda.fail("cuMemCreate@1:2+=2,cuDeviceGetName@0:1=999")
    handles = [cuda.call(*create[n]) for n in (0, 0, 1, 0)]
    for _ in range(2):
        with pytest.raises(vmtool_errors.CudaOutOfMemoryError):
            cuda.call(*create[1])
    handles.append(cuda.call(*create[0]))
    for handle in handles:
        cuda.call("cuMemRelease", handle)
    assert cuda.call("cuDeviceGetName", 8, 1)
    with pytest.raises(vmtool_errors.CudaError, match="999"):
        cuda.call("cuDeviceGetName", 8, 0)
    assert [cuda.attribute("COMPUTE_MODE", n) for n in (0, 1)] == [0, 3]


def test_devices_may_have_different_granules(fakecuda):
    fakecuda.reset(devices=3, granularity="64KiB", granularity_rec="2MiB", granularity_of="1:4MiB")
    cuda = vmtool_driver.load()
    properties = [cuda.allocation_properties(n) for n in range(3)]
    found = [[cuda.granularity(each, option) for option in (0, 1)] for each in properties]
    assert found == [[64 << 10, 2 << 20], [4 << 20, 4 << 20], [64 << 10, 2 << 20]]
    cuda.call("cuMemRelease", cuda.call("cuMemCreate", 2 << 20, properties[2], 0))
    with pytest.raises(vmtool_errors.CudaError, match="INVALID_VALUE"):
        cuda.call("cuMemCreate", 2 << 20, properties[1], 0)
    assert len(fakecuda.forgive()) == 1


def test_limits_of_address_space_and_mappings_are_out_of_memory(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", va_limit="1MiB", max_mappings=2)
    rig = Rig()
    assert rig.code("cuMemAddressReserve", (1 << 20) + GRANULE, 0, 0, 0) == 2
    rig.commit(0, 2)
    handle = rig.create()
    assert rig.map(2, handle) == 0
    rig.ok("cuMemRelease", handle)
    assert rig.access(2) == 2
    assert rig.access(0, 2, flags=1) == 0  # no new mapping
    assert rig.unmap(0) == 0
    assert rig.access(2) == 0
    rig.close()


def test_recommended_and_minimum_granularity_differ(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", granularity_rec="2MiB")
    rig = Rig()
    kinds = driver.CUmemAllocationGranularity_flags
    for kind, nbytes in (
        (kinds.CU_MEM_ALLOC_GRANULARITY_MINIMUM, 64 << 10),
        (kinds.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 2 << 20),
    ):
        assert rig.get("cuMemGetAllocationGranularity", rig.properties, kind) == nbytes
    rig.close()


def test_a_device_address_faults_on_the_cpu(python_with_fakecuda):
    done = python_with_fakecuda(
        "import ctypes\n"
        "from fakecuda.rig import Rig\n"
        "rig = Rig(); rig.commit(0); print('mapped', flush=True)\n"
        "ctypes.string_at(rig.base, 1)\n",
        granularity="64KiB",
    )
    assert (done.returncode, done.stdout) == (-11, "mapped\n")


def test_an_exit_report_names_what_was_left(python_with_fakecuda):
    done = python_with_fakecuda(
        "from fakecuda.rig import Rig\nrig = Rig(); rig.commit(0, 3); rig.create()",
        granularity="64KiB",
    )
    live = done.reports[0]["live"]
    assert (live["reservations"], live["mappings"], live["handles"]) == (1, 3, 1)
    assert live["physical_bytes"] == 4 * GRANULE
    assert live["context_refs"] == 1
    with pytest.raises(AssertionError):
        done.assert_clean()
