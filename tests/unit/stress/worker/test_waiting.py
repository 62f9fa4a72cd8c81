"""Whether unmapping and releasing wait for running work: asked of each call, on the stand-in."""

from __future__ import annotations

import pytest

from vmtool.errors import RefusedError
from vmtool.memory.cuda.driver import DeviceLostError
from vmtool.stress.worker.waiting import CallBesideWork, measure_waiting

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
