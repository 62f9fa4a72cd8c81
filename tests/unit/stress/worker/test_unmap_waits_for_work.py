"""Whether unmapping and releasing wait for running work: asked of each call, on the stand-in."""

from __future__ import annotations

import gc

import pytest

from vmtool.errors import RefusedError, UnavailableError
from vmtool.memory.cuda import driver
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, DeviceLostError
from vmtool.stress.worker.unmap_waits_for_work import CallBesideWork, measure_waiting

MIB = 1 << 20


@pytest.mark.parametrize(
    ("settings", "unmap", "release"),
    [
        ({}, False, False),
        ({"unmap_waits": 1}, True, False),
        ({"release_waits": 1}, False, True),
        ({"unmap_waits": 1, "release_waits": 1}, True, True),
    ],
)
def test_each_call_is_requested_itself(fakecuda, settings, unmap, release):
    fakecuda.reset(busy_ms=60, **settings)
    found = measure_waiting("cuda", chunk=None, budget_bytes=8 * MIB)
    assert (found.unmap.waits, found.release.waits) == (unmap, release)
    assert len(found.unmap.idle_ns) == len(found.release.idle_ns) == len(found.synchronise_ns) == 9
    assert found.work_ns >= 60 * 10**6
    fakecuda.assert_clean()


def test_work_that_ends_by_itself_decides_nothing(fakecuda):
    found = measure_waiting("cuda", chunk=None, budget_bytes=4 * MIB)  # no work lasts at all
    assert (found.unmap.waits, found.release.waits) == (None, None)


def test_a_call_has_waited_if_it_took_most_of_what_was_left():
    found = CallBesideWork()
    found.add(30_000, 2_000_000, 2_100_000)  # the work went on
    found.add(2_000_000, 0, 2_100_000)  # it ended with the call
    found.add(30_000, 0, 2_100_000)  # it ended by itself, earlier than planned
    found.add(30_000, 0, -5)
    assert found.waited == [False, True]
    assert found.waits is False
    assert found.left_ns == [2_030_000, 2_100_000, 2_100_000, 0]


def test_a_small_budget_is_refused_and_a_lost_device_is_not_swallowed(fakecuda):
    with pytest.raises(RefusedError):
        measure_waiting("cuda", chunk=None, budget_bytes=2 * MIB)
    fakecuda.fail("cuStreamQuery:1=700")
    with pytest.raises(DeviceLostError):
        measure_waiting("cuda", chunk=None, budget_bytes=8 * MIB)
    fakecuda.reset()


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("cuStreamQuery:1=304", "cuStreamQuery"),
        ("cuMemsetD8Async:3=304", "cuMemsetD8Async"),
        ("cuMemUnmap:12=304", "cuMemUnmap"),
        ("cuMemRelease:12=304", "cuMemRelease"),
        ("cuMemSetAccess:5=2", "cuMemSetAccess"),
        ("cuMemAddressFree:1=304", "cuMemAddressFree"),
        ("cuStreamQuery:1=304,cuMemUnmap:11+=304", "cuStreamQuery"),
    ],
)
def test_what_failed_first_is_what_is_raised(fakecuda, fault, call):
    """Giving back what was in use then must not hide it."""
    fakecuda.fail(fault)
    with pytest.raises(CudaError) as caught:
        measure_waiting("cuda", chunk=None, budget_bytes=8 * MIB)
    assert caught.value.call == call
    del caught
    gc.collect()  # the error's frames hold a reservation, which else would be freed in a later test
    if "+" not in fault and "Free" not in fault and "Release" not in fault:
        fakecuda.assert_clean()
    fakecuda.reset()


def test_a_driver_without_the_calls_is_found_before_anything_is_mapped(fakecuda):
    driver.load()  # the bindings look their functions up once a process
    fakecuda.reset(missing="cuMemsetD8Async")
    with pytest.raises(UnavailableError, match="cuMemsetD8Async"):
        measure_waiting("cuda", chunk=None, budget_bytes=8 * MIB)
    assert "cuMemMap" not in {k for k, v in fakecuda.report()["calls"].items() if v["calls"]}
    fakecuda.assert_clean()
