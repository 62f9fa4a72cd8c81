"""The calls of a device's context: timed, or made to fail; and memory of the host that it pins."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from vmtool.errors import UsageError
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.context import INJECTABLE, TIMED, CallTimes, DeviceContext
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, CudaOutOfMemoryError, DeviceLostError
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import FaultyCalls

CHUNK = 64 << 10


@pytest.fixture
def opened(fakecuda):
    fakecuda.reset(granularity="64KiB")
    made = []

    def call(*faults, **settings):
        faulty = FaultyCalls([parse_fault(text) for text in faults]) if faults else None
        made.append(open_device("cuda", faults=faulty, **settings))
        return made[-1], faulty

    yield call
    for backing in made:
        backing.close()


def cycle(backing, granules=4):
    reservation = backing.reserve(8 * CHUNK)
    try:
        backing.commit(reservation, 0, granules * CHUNK)
        backing.release(reservation, 0, granules * CHUNK)
    finally:
        backing.unreserve(reservation)


def test_every_call_of_a_cycle_is_timed_apart(opened):
    times = CallTimes()
    backing, _ = opened(times=times)
    cycle(backing)
    taken = times.take()
    counts = {name: len(samples) for name, samples in taken.items()}
    assert counts == {
        "cuMemAddressReserve": 1,
        "cuMemCreate": 4,
        "cuMemMap": 4,
        "cuMemSetAccess": 1,
        "cuMemUnmap": 1,
        "cuCtxSynchronize": 1,
        "cuMemRelease": 4,
        "cuMemAddressFree": 1,
    }
    assert all(ns > 0 for samples in taken.values() for ns in samples)
    assert times.take() == {}


def test_the_clearing_of_pooled_memory_is_timed_apart_from_the_wait_before_unmapping(opened):
    times = CallTimes()
    backing, _ = opened(times=times, method="pooled")
    cycle(backing)
    counts = {name: len(samples) for name, samples in times.take().items()}
    assert counts["cuMemsetD8"] == counts["cuStreamSynchronize"] == counts["cuCtxSynchronize"] == 1
    assert "cuMemRelease" not in counts


def test_a_call_that_fails_is_not_timed(opened, fakecuda):
    times = CallTimes()
    backing, _ = opened(times=times)
    fakecuda.fail("cuMemMap:2=999")
    with pytest.raises(CudaError):
        cycle(backing)
    assert len(times.take()["cuMemMap"]) == 1


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("cuMemMap:3", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemMap:3=999", "CUDA_ERROR_UNKNOWN"),
        ("cuMemSetAccess:1=cuda_error_invalid_value", "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_an_injected_fault_is_the_drivers_own_error(opened, fakecuda, text, symbol):
    backing, faults = opened(text)
    with pytest.raises(CudaError) as raised:
        cycle(backing)
    assert raised.value.symbol == symbol
    assert isinstance(raised.value, CudaOutOfMemoryError) == (symbol.endswith("OF_MEMORY"))
    assert [fault.effect for fault in faults.applied] == [symbol]
    assert fakecuda.report()["live"]["mappings"] == 0
    cycle(backing)


def test_an_injected_sticky_error_marks_the_device_lost(fakecuda):
    fakecuda.reset(granularity="64KiB")
    backing = open_device("cuda", faults=FaultyCalls([parse_fault("cuCtxSynchronize:1=700")]))
    reservation = backing.reserve(2 * CHUNK)
    backing.commit(reservation, 0, CHUNK)
    with pytest.raises(DeviceLostError):
        backing.release(reservation, 0, CHUNK)
    before = fakecuda.report()["calls"]
    with pytest.raises(DeviceLostError):
        backing.commit(reservation, CHUNK, CHUNK)
    backing.unreserve(reservation)
    backing.close()
    assert fakecuda.report()["calls"] == before
    fakecuda.reset()


def test_a_skipped_call_reports_success_and_does_nothing(opened, fakecuda):
    backing, _ = opened("cuMemSetAccess:1=SKIP")
    reservation = backing.reserve(CHUNK)
    backing.commit(reservation, 0, CHUNK)
    access = backing.context.driver.access(0)
    granted = backing.context.call("cuMemGetAccess", access.location, reservation.base)
    assert granted == 0
    backing.unreserve(reservation)


@pytest.mark.parametrize("text", ["cuMemMapp:1", "mmap:1"])
def test_a_fault_in_a_call_that_is_not_made_is_refused(fakecuda, text):
    with pytest.raises(UsageError) as raised:
        open_device("cuda", faults=FaultyCalls([parse_fault(text)]))
    assert "cuMemMap" in raised.value.hint


def test_an_unknown_result_is_refused():
    pytest.importorskip("cuda.bindings", reason="the names are the bindings'")
    for text in ("cuMemMap:1=ENOMEM", "cuMemMap:1=0", "cuMemMap:1=CUDA_ERROR_NO_SUCH"):
        with pytest.raises(UsageError):
            parse_fault(text)


def test_what_is_timed_can_also_fail():
    assert set(TIMED) <= set(INJECTABLE)


def test_what_was_pinned_is_given_back_when_its_use_fails(fakecuda):
    context = DeviceContext(0)
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        held = ctypes.c_char.from_buffer(page)
        with pytest.raises(KeyError), context.pinned(ctypes.addressof(held), mmap.PAGESIZE):
            assert fakecuda.report()["live"]["pinned"] == 1
            raise KeyError
        del held
    context.close()
