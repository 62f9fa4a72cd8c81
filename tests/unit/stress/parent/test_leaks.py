"""Checkpoints stay bounded and keep the first difference; a leak is distinguished from a warm-up."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from stored_runs import checkpoint

from vmtool.report.check_sentences import describe
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.stress import COUNTERS
from vmtool.stress.parent.leaks import LEAK_FLOORS, leak_checks, leak_slopes
from vmtool.stress.worker.checkpoint import KeptCheckpoints
from vmtool.units import MIB


@pytest.mark.parametrize("count", [0, 1, 8, 9, 1000])
def test_a_timeline_keeps_evenly_spaced_checkpoints_in_order(count):
    timeline = KeptCheckpoints(most=8)
    for index in range(count):
        timeline.add(checkpoint(index))
    cycles = [kept.cycle for kept in timeline.kept()]
    assert len(cycles) <= 8
    assert len(cycles) >= min(count, 4)
    assert len({b - a for a, b in pairwise(cycles)}) <= 1
    assert not cycles or cycles[0] == 0


def test_the_first_difference_is_kept_whatever_follows():
    timeline = KeptCheckpoints(most=8)
    for index in range(1000):
        timeline.add(checkpoint(index, observed=-1 if index in {333, 400} else None))
    differing = [c.cycle for c in timeline.kept() if not all(r.agrees for r in c.buffers)]
    assert differing == [checkpoint(333).cycle]


def test_a_leak_of_one_page_in_each_cycle_is_a_leak():
    noise = Random(1)
    points = [
        (cycle, dict.fromkeys(COUNTERS, 4096 * cycle + noise.randrange(40_960)))
        for cycle in range(0, 2000, 20)
    ]
    slopes = leak_slopes([points], 0)
    assert [slope.counter for slope in slopes] == list(COUNTERS)
    assert all(slope.leaks and slope.low < 4096 < slope.high for slope in slopes)
    assert slopes[0].grown == pytest.approx(4096 * 1980, rel=0.05)


def test_growth_that_may_be_anybody_s_is_no_leak():
    points = [(cycle, {"device_in_use": MIB * cycle, "device_memory": 0}) for cycle in range(100)]
    slopes = leak_slopes([points], 0)
    assert [slope.leaks for slope in slopes if slope.counter == "device_in_use"] == [True]
    (check,) = leak_checks([s for s in slopes if s.counter == "device_in_use"], [])[len(COUNTERS) :]
    assert (check.name, check.outcome) == ("leak.device_memory", CheckOutcome.NOT_DONE)
    assert check.values["reason"] == "device-shared"


@pytest.mark.parametrize("counter", ["device_memory", "device_in_use"])
def test_a_device_with_too_few_checkpoints_was_not_judged(counter):
    one = replace(checkpoint(1), process=dict.fromkeys((*COUNTERS, counter), 0))
    (*_, check) = leak_checks((), [one])
    assert (check.name, check.outcome) == ("leak.device_memory", CheckOutcome.NOT_DONE)
    assert check.values["reason"] == "too few checkpoints"


def test_growth_below_the_floor_is_not_a_leak():
    points = [(cycle, dict.fromkeys(COUNTERS, cycle * 0.001)) for cycle in range(100)]
    assert not any(slope.leaks for slope in leak_slopes([points], 0))
    assert set(LEAK_FLOORS) == {*COUNTERS, "device_memory", "device_in_use"}


def test_a_heap_that_warms_up_is_no_leak():
    points = [
        (cycle, dict.fromkeys(("charge", "resident"), 32 * MIB - round(32 * MIB * 0.99**step)))
        for step, cycle in enumerate(range(0, 60_000, 100))
    ]
    slopes = leak_slopes([points], 0)
    assert all(slope.low > 0 and slope.grown > slope.floor for slope in slopes)
    assert not any(slope.leaks for slope in slopes)


def test_a_heap_that_reaches_its_level_in_the_last_quarter_is_no_leak():
    noise = Random(3)
    amounts = [MIB * min(step, 48 + step // 10) + noise.randrange(40_960) for step in range(64)]
    points = [(20 * step, {"resident": each}) for step, each in enumerate(amounts)]
    (slope,) = leak_slopes([points], 0)
    assert slope.low > 0
    assert slope.grown > slope.floor
    assert not slope.leaks
    assert not leak_slopes([points, points], 0)[0].leaks
    line = [(cycle, {"resident": MIB // 20 * cycle}) for cycle, _ in points]
    assert leak_slopes([points, line], 0)[0].leaks  # one run is enough


@pytest.mark.parametrize("period", [12, 15, 20])
def test_waves_that_were_seen_several_times_are_no_leak(period):
    for phase in range(period):
        points = [(i, {"resident": (i + phase) % period * 4 * MIB}) for i in range(61)]
        assert not any(slope.leaks for slope in leak_slopes([points], 0))


def test_notes_about_granules_are_no_leak():
    points = [(cycle, dict.fromkeys(COUNTERS, 300 * cycle)) for cycle in range(0, 50_000, 1000)]
    notes = {"address_space", "charge", "resident"}
    assert {s.counter for s in leak_slopes([points], 0) if s.leaks} == set(COUNTERS)
    assert {s.counter for s in leak_slopes([points], 0, 50_000) if s.leaks} == set(COUNTERS) - notes


def test_a_counter_that_is_not_available_has_no_slope():
    points = [(cycle, {**dict.fromkeys(COUNTERS, 0), "charge": None}) for cycle in range(50)]
    assert [slope.counter for slope in leak_slopes([points], 0)] == [
        "address_space",
        "resident",
        "mappings",
    ]


def test_runs_share_a_slope_and_keep_their_own_levels():
    noise = Random(2)
    runs = [
        [
            (cycle, {"resident": level + 8192 * cycle + noise.randrange(40_960)})
            for cycle in range(0, 2000, 400)
        ]
        for level in (0, 900 * MIB, 30 * MIB, 300 * MIB, 5 * MIB)
    ]
    (slope,) = leak_slopes(runs, 0)
    assert slope.leaks
    assert slope.points == 25
    assert slope.low < 8192 < slope.high
    (quiet,) = leak_slopes(
        [[(c, {"resident": v["resident"] - 8192 * c}) for c, v in r] for r in runs], 0
    )
    assert not quiet.leaks


def test_too_few_points_have_no_slope_and_the_check_says_so():
    points = [(cycle, {"resident": 4096 * cycle}) for cycle in range(5)]
    assert leak_slopes([points], 0) == ()
    kept = [checkpoint(cycle) for cycle in range(3)]
    checks = {check.name: check for check in leak_checks((), kept)}
    assert checks["leak.resident"].values["reason"] == "too few checkpoints"
    assert all(check.outcome is CheckOutcome.NOT_DONE for check in checks.values())


def test_the_smallest_leak_that_could_have_been_seen_is_a_leak():
    def slope_of(per_cycle):
        return leak_slopes([[(c, {"resident": per_cycle * c}) for c in range(0, 2000, 20)]], 0)[0]

    seen = slope_of(0).detectable_per_cycle
    assert slope_of(round(seen * 1.05)).leaks
    assert not slope_of(round(seen * 0.95)).leaks


def test_a_sentence_about_growth_says_what_it_is_of():
    values = {"low": 8, "high": 17, "confidence": 0.99, "grown": 19_000, "floor": 4 << 20}
    check = Check("leak.resident", CheckOutcome.PASSED, values | {"detectable_per_cycle": 3000})
    assert describe(check) == (
        "8 B to 17 B per cycle (99 % interval), 18.55 KiB in a whole run: up to 4 MiB counts as"
        " warm-up; a leak of 2.93 KiB per cycle would have been seen"
    )
