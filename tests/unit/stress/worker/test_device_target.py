"""A device under a session, on the stand-in: its pool, its peers, and whose memory is counted."""

from __future__ import annotations

import gc
from array import array

import pytest

from vmtool.memory.cuda import driver
from vmtool.memory.governor import Governor
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import FaultyCalls
from vmtool.report.stress import unmapping_words
from vmtool.results.stress import StressSettings
from vmtool.stress.worker.device_target import DeviceTarget

MIB = 1 << 20


@pytest.fixture
def make(fakecuda):
    """Return a function that makes the target of a worker, and the word that it beats."""
    made = []

    def target(backing="cuda:0", *, faults=None, devices=(), method="cold", budget=4 * MIB):
        sizes = {"capacity_bytes": 4 * MIB, "budget_bytes": budget}
        settings = StressSettings(
            backing=backing, methods=(method,), granule_bytes=64 << 10, devices=devices, **sizes
        )
        beat = memoryview(array("Q", (0,)))
        made.append(DeviceTarget(settings, backing, Governor(), faults, beat))
        return made[-1], beat

    yield target
    made.clear()
    gc.collect()


def test_filling_a_pool_is_no_hang(make, fakecuda):
    """It takes half a minute on a large device: each handle moves the journal."""
    fakecuda.reset(granularity="64KiB")
    target, beat = make(method="pooled")
    target.turn(None, 0, warm_up=True)
    assert beat[0] >= fakecuda.report()["calls"]["cuMemCreate"]["calls"] == 64


def test_growth_of_the_device_counts_only_where_its_owner_is_known(make, fakecuda):
    fakecuda.reset(granularity="64KiB")
    faults = FaultyCalls([parse_fault("cuMemRelease:1=SKIP")])
    for given, counter in ((None, "device_in_use"), (faults, "device_memory")):
        target, _ = make(faults=given)
        _, beyond = target.observer([]).compare_counters([], settled=True)
        assert beyond[counter] == 0
        assert len({"device_in_use", "device_memory"} & set(beyond)) == 1


@pytest.mark.parametrize(("peers", "expected"), [(1, (1, 2)), (0, ())])
def test_each_device_is_open_to_those_that_reach_it(make, fakecuda, peers, expected):
    fakecuda.reset(devices=3, peers=peers, granularity="64KiB", granularity_of="2:128KiB")
    target, _ = make(devices=("cuda:0", "cuda:1", "cuda:2"))
    (backing,) = target.backings
    assert backing.peers == expected
    assert backing.granularity == (128 << 10 if peers else 64 << 10)
    assert len(target.measure_unmapping().access_ns) == 1 + len(expected)


@pytest.mark.parametrize(
    ("setting", "budget", "reason"),
    [
        ({"fail": "cuMemsetD8Async:3=2"}, 4 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"),
        ({}, 64 << 10, "the 64 KiB left of the budget is too small for two chunks of 64 KiB"),
        ({"missing": "cuStreamQuery"}, 4 * MIB, "cuStreamQuery"),
        ({"missing": "cuMemsetD8Async"}, 4 * MIB, "cuMemsetD8Async"),
        ({"missing": "cuStreamCreate"}, 4 * MIB, "cuStreamCreate"),
    ],
)
def test_what_is_not_measured_says_why_and_keeps_nothing_else_back(
    make, fakecuda, setting, budget, reason
):
    driver.load()  # the bindings look their functions up once a process
    fakecuda.reset(devices=2, peers=1, granularity="64KiB", **setting)
    target, _ = make(devices=("cuda:0", "cuda:1"), budget=budget)
    found = target.measure_unmapping()
    assert reason in found.not_measured
    assert reason in unmapping_words(found)
    assert (found.waited, found.rounds, found.idle_ns, found.work_ns) == (None, 0, None, None)
    assert found.fresh_zero is not None
    assert len(found.access_ns) == 2
