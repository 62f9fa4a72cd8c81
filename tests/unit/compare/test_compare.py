"""Verdicts on known shifts, what is not compared, and what must be told about the runs."""

import math
import random
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from stored_runs import MACHINE, gaussian, method, phase, run

from vmtool.compare.assertions import parse_change
from vmtool.compare.differences import _MACHINE_FACTS
from vmtool.compare.runs import Direction, compare
from vmtool.documents import plain
from vmtool.machine import read_facts
from vmtool.memory.cuda.devices import DeviceInfo


def change_of(comparison, name="commit", statistic="median"):
    return next(c for c in comparison.changes if (c.phase, c.statistic) == (name, statistic))


def two(before, after, **options):
    return compare(run(method(commit=before)), run(method(commit=after)), **options)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.5, Direction.SLOWER),
        (1.15, Direction.SLOWER),
        (1.0, Direction.UNCHANGED),
        (1.02, Direction.UNCHANGED),
        (0.85, Direction.FASTER),
        (0.4, Direction.FASTER),
    ],
)
def test_a_known_shift_gets_its_verdict(factor, expected):
    change = change_of(two(gaussian(1, 100_000, 5000), gaussian(2, 100_000 * factor, 5000)))
    assert change.direction is expected
    assert change.certain
    assert change.low <= factor <= change.high
    assert change.ratio == pytest.approx(factor, rel=0.03)


def test_a_shift_of_the_tail_alone_is_seen_in_the_tail_alone():
    body = gaussian(3, 100_000, 20_000)
    tail = [value * 10 if i % 50 == 0 else value for i, value in enumerate(body)]
    comparison = two(body, tail)
    assert change_of(comparison).direction is Direction.UNCHANGED
    assert change_of(comparison, statistic="p99").direction is Direction.SLOWER


def test_few_samples_make_no_verdict_and_say_so():
    change = change_of(two([100] * 4, [200] * 4))
    assert change.direction is Direction.UNCHANGED
    assert not change.certain
    assert (change.low, change.high) == (0.0, None)


def test_a_percentile_that_the_samples_cannot_bound_is_left_out():
    comparison = two(gaussian(1, 1000, 200), gaussian(2, 1000, 200))
    assert [c.statistic for c in comparison.changes] == ["median", "p90"]


def test_a_change_below_the_threshold_is_unchanged_however_certain():
    before, after = (
        gaussian(1, 100_000, 50_000, spread=0.01),
        gaussian(2, 104_000, 50_000, spread=0.01),
    )
    assert change_of(two(before, after)).direction is Direction.UNCHANGED
    strict = change_of(two(before, after, threshold=Fraction(0)))
    assert strict.direction is Direction.SLOWER


def test_rounds_that_drift_widen_the_medians_interval():
    steady = gaussian(1, 100_000, 5000)
    drifting = [v * (9 if i < 2500 else 11) // 10 for i, v in enumerate(gaussian(2, 100_000, 5000))]
    calm, moved = change_of(two(steady, steady)), change_of(two(steady, drifting))
    assert moved.high - moved.low > 2 * (calm.high - calm.low)
    assert moved.low <= 0.92
    assert moved.high >= 1.08


def test_swapping_the_runs_swaps_the_verdict():
    fast, slow = gaussian(1, 1000, 2000), gaussian(2, 1400, 2000)
    there, back = change_of(two(fast, slow)), change_of(two(slow, fast))
    assert (there.direction, back.direction) == (Direction.SLOWER, Direction.FASTER)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)


def test_a_median_of_zero_is_compared_as_one_nanosecond():
    change = change_of(two([0] * 100, [3] * 100))
    assert change.ratio == 3
    assert change.before_ns == 0


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_ratios_interval_holds_the_true_ratio_at_least_as_often_as_it_says(confidence):
    generator = random.Random(99)
    runs, held = 200, 0
    for _ in range(runs):
        before = [round(generator.expovariate(1) * 1e6) for _ in range(300)]
        after = [round(generator.expovariate(1) * 1.3e6) for _ in range(300)]
        change = change_of(two(before, after, confidence=confidence))
        held += change.low <= 1.3 <= change.high
    assert held / runs >= confidence - 3 * math.sqrt(confidence * (1 - confidence) / runs)


@pytest.mark.parametrize("statistic", ["median", "p90"])
def test_runs_whose_rounds_differ_by_chance_are_not_called_different(statistic):
    generator = random.Random(5)
    runs, held, wrong = 150, 0, 0

    def bursty():
        """Twenty rounds, each slowed by something of its own, as on a shared machine."""
        paces = (100_000 * generator.lognormvariate(0, 0.2) for _ in range(20))
        return [round(pace * generator.gauss(1, 0.05)) for pace in paces for _ in range(100)]

    for _ in range(runs):
        found = [c for c in two(bursty(), bursty()).changes if c.statistic == statistic]
        # A percentile that cannot be bounded is left out, which is no wrong claim either.
        held += all(c.low <= 1 and (c.high is None or c.high >= 1) for c in found)
        wrong += any(c.direction is not Direction.UNCHANGED for c in found)
    assert held / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.95 * 0.05 / runs)


def test_methods_pair_by_name_and_what_is_alone_is_told():
    a = run(method("fixed", commit=[100] * 50), method("advise", commit=[90] * 50))
    b = run(method("fixed", commit=[100] * 50, touch=[5] * 50), method("protect", commit=[80] * 50))
    comparison = compare(a, b)
    assert {(c.method, c.method_after) for c in comparison.changes} == {("fixed", "fixed")}
    assert comparison.unmatched == (
        "method advise (first run only)",
        "method protect (second run only)",
        "fixed: touch (second run only)",
    )


def test_single_methods_of_two_names_are_compared_with_each_other():
    comparison = compare(
        run(method("fixed", commit=[100] * 50)), run(method("protect", commit=[50] * 50))
    )
    change = change_of(comparison)
    assert (change.method, change.method_after) == ("fixed", "protect")
    assert change.direction is Direction.FASTER


def test_gates_judge_the_measured_change():
    gates = [
        parse_change(text)
        for text in ("commit.p99>+20%", "commit.median>+60%", "cycles_per_s<-10%", "touch.p50>0%")
    ]
    comparison = compare(
        run(method(commit=gaussian(1, 1000, 5000), rate=1000)),
        run(method(commit=gaussian(2, 1500, 5000), rate=700)),
        fail_on=gates,
    )
    assert [gate.failed for gate in comparison.gates] == [True, False, True, True]
    assert not comparison.passed
    assert "no touch was measured" in comparison.gates[3].detail
    assert "-30.0 %" in comparison.gates[2].detail


def test_a_gate_on_a_method_that_no_run_has_fails():
    comparison = two([1] * 50, [1] * 50, fail_on=[parse_change("protect.commit.p50>+5%")])
    assert not comparison.passed


def test_machines_differ_by_what_matters_and_not_by_what_comes_and_goes():
    other = {
        **MACHINE,
        "system": {**MACHINE["system"], "kernel": "6.9.0"},
        "memory": {"total_bytes": 8 << 30, "available_bytes": 1},
        "huge_pages": {"thp_mode": "always", "pmd_bytes": 2 << 20},
        "commit": {"mode": 2, "ratio_percent": 50},
        "cgroup": {"levels": [{"path": "/b", "limit_bytes": None, "high_bytes": 2 << 30}]},
        "process": {"mappings": 5000, "max_mappings": 65530},
        "device": {"name": "H200", "driver_version": 13000, "uuid": "1"},
    }
    comparison = compare(run(method(commit=[1])), run(method(commit=[1]), machine=other))
    assert {d.name: (d.before, d.after) for d in comparison.machine} == {
        "kernel": ("6.1.0", "6.9.0"),
        "THP mode": ("madvise", "always"),
        "vm.overcommit_memory": (0, 2),
        "cgroup limit in bytes": (4 << 30, 2 << 30),
        "GPU": (None, "H200"),
        "CUDA version of the driver": (None, 13000),
    }


@pytest.mark.parametrize(
    "facts", [{"system": 3}, {"cgroup": {"levels": 7}}, {"cgroup": {"levels": [1]}}]
)
def test_facts_of_an_unknown_shape_count_as_not_told(facts):
    comparison = compare(run(method(commit=[1])), run(method(commit=[1]), machine=facts))
    assert all(difference.after is None for difference in comparison.machine)


def test_settings_that_differ_are_told_and_the_seed_is_not_one():
    a = run(method(commit=[1]), settings={"seed": 1})
    b = run(method(commit=[1]), settings={"seed": 2, "granule_bytes": 2 << 20})
    assert [(d.name, d.before, d.after) for d in compare(a, b).settings] == [
        ("granule_bytes", 65536, 2 << 20)
    ]


def test_runs_without_a_phase_in_common_compare_to_nothing():
    empty = replace(method(), phases=())
    assert compare(run(empty), run(replace(empty, phases=(phase("touch", [1]),)))).changes == ()


def test_every_fact_that_is_compared_is_one_that_is_recorded():
    facts = plain(read_facts())
    facts["device"] = dict.fromkeys(field.name for field in fields(DeviceInfo))
    for path in _MACHINE_FACTS:
        *parents, last = path.split(".")
        group = facts
        for key in parents:
            group = group[key]
        assert last in group, path
    assert all("limit_bytes" in level for level in facts["cgroup"]["levels"])
