"""Contexts on the stand-in: per thread, counted, and gone when released (X1..X3, S3)."""

import threading

import pytest
from fakecuda.rig import driver

INVALID_CONTEXT, DESTROYED, INVALID_HANDLE = 201, 709, 400


NEEDS_CONTEXT = {
    "cuMemGetInfo": (),
    "cuCtxSynchronize": (),
    "cuCtxGetDevice": (),
    "cuMemsetD8": (0, 0, 1),
    "cuMemcpyDtoH": (bytearray(1), 0, 1),
    "cuStreamCreate": (0,),
    "cuEventCreate": (0,),
}


@pytest.mark.parametrize("name", NEEDS_CONTEXT)
def test_without_a_current_context_there_is_no_work(rig, name):
    rig.ok("cuCtxSetCurrent", 0)
    assert rig.code(name, *NEEDS_CONTEXT[name]) == INVALID_CONTEXT


@pytest.mark.parametrize("name", NEEDS_CONTEXT)
def test_a_released_context_is_destroyed_for_those_who_still_use_it(fakecuda, name):
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    driver.cuDevicePrimaryCtxRelease(0)
    assert getattr(driver, name)(*NEEDS_CONTEXT[name])[0] == DESTROYED


def test_memory_calls_need_no_context_and_outlive_it(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB")
    rig = Rig()
    rig.commit(0, 2)
    rig.fill(0, 5, 2)
    rig.ok("cuDevicePrimaryCtxRelease", 0)  # waits for the fill
    assert rig.unmap(1) == 0
    rig.commit(1)
    rig.context = rig.get("cuDevicePrimaryCtxRetain", 0)
    rig.ok("cuCtxSetCurrent", rig.context)
    assert rig.read(0) == b"\5"
    rig.close()


def test_a_context_is_current_in_its_own_thread_only(rig):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(rig.code("cuCtxSynchronize")))
    thread.start()
    thread.join()
    assert seen == [INVALID_CONTEXT]
    assert rig.code("cuCtxSynchronize") == 0


def test_contexts_stack_and_a_stale_one_is_refused(rig, fakecuda):
    other = rig.get("cuDevicePrimaryCtxRetain", 1)
    rig.ok("cuCtxPushCurrent", other)
    assert int(rig.get("cuCtxGetDevice")) == 1
    assert int(rig.get("cuCtxPopCurrent")) == int(other)
    assert int(rig.get("cuCtxGetDevice")) == 0
    rig.ok("cuDevicePrimaryCtxRelease", 1)
    assert rig.code("cuCtxSetCurrent", other) == INVALID_CONTEXT
    assert rig.code("cuDevicePrimaryCtxRelease", 1) == INVALID_CONTEXT
    assert [text.split()[0] for text in fakecuda.forgive()] == ["X1", "X3"]


def test_streams_and_events_belong_to_their_context(rig, fakecuda):
    stream, event = rig.get("cuStreamCreate", 0), rig.get("cuEventCreate", 0)
    rig.ok("cuCtxSetCurrent", rig.get("cuDevicePrimaryCtxRetain", 1))
    assert rig.code("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert rig.code("cuEventRecord", event, 0) == INVALID_HANDLE
    rig.ok("cuDevicePrimaryCtxRelease", 1)
    rig.ok("cuCtxSetCurrent", rig.context)
    rig.ok("cuStreamDestroy", stream)
    rig.ok("cuEventDestroy", event)
    assert rig.code("cuStreamDestroy", stream) == INVALID_HANDLE
    assert rig.code("cuEventDestroy", event) == INVALID_HANDLE
    assert [text.split()[0] for text in fakecuda.forgive()] == ["S3"] * 4
