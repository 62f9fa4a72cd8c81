"""Verdicts on sets of runs, what is not compared, and what must be said about the runs."""

import json
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from printed import printed
from stored_runs import MACHINE, described, eventful, gaussian, method, phase, run, run_set, several

from vmtool.compare.assertions import parse_change
from vmtool.compare.differences import MACHINE_FACTS
from vmtool.compare.runs import compare
from vmtool.documents import encode, plain
from vmtool.machine import read_facts
from vmtool.machine.facts import DeviceFacts
from vmtool.report.compare import caveats, headline, other_rows, side_text, to_text, warnings_of
from vmtool.report.compare_page import to_html
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.compare import Direction, Doubt
from vmtool.results.kinds import document_of
from vmtool.results.stress import Outcome, RunResult


def change_of(result, name="cycle", statistic="median"):
    return next(c for c in result.changes if (c.phase, c.statistic) == (name, statistic))


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.5, Direction.SLOWER),
        (1.15, Direction.SLOWER),
        (1.0, Direction.UNCHANGED),
        (0.85, Direction.FASTER),
        (0.4, Direction.FASTER),
    ],
)
def test_a_known_factor_gets_its_verdict(factor, expected):
    result = compare(several(5), several(5, seed=2, factor=factor))
    for name in ("cycle", "commit", "touch", "release"):
        change = change_of(result, name)
        assert change.direction is expected
        assert change.low <= factor <= change.high
        assert change.ratio == pytest.approx(factor, rel=0.04)


def test_the_whole_cycle_is_the_sum_of_its_parts():
    result = compare(several(5), several(5, seed=2))
    parts = [change_of(result, name) for name in ("commit", "touch", "release")]
    whole = change_of(result)
    assert list(whole.before_runs_ns) == [
        pytest.approx(sum(values), abs=2)
        for values in zip(*(part.before_runs_ns for part in parts), strict=True)
    ]
    assert [change.phase for change in result.changes][:2] == ["cycle", "commit"]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (3, 9)])
def test_below_four_runs_a_side_nothing_is_proven(before, after):
    result = compare(several(before), several(after, seed=2, factor=3))
    assert {change.direction for change in result.changes} == {Direction.NOT_PROVEN}
    assert {(change.low, change.high) for change in result.changes} == {(None, None)}
    assert change_of(result).ratio == pytest.approx(3, rel=0.1)


def test_noisy_runs_prove_nothing_and_say_how_many_would_do():
    change = change_of(
        compare(several(5, variation=0.2), several(5, seed=2, variation=0.2, factor=1.1))
    )
    assert change.direction is Direction.NOT_PROVEN
    assert 0.1 < change.variation < 0.4
    assert change.runs_needed > 8


def test_a_change_below_the_threshold_is_not_called_slower_however_certain():
    sides = several(6, variation=0.002), several(6, seed=2, variation=0.002, factor=1.03)
    assert change_of(compare(*sides)).direction is Direction.UNCHANGED
    assert change_of(compare(*sides, threshold=Fraction(0))).direction is Direction.SLOWER


def test_methods_pair_by_name_and_what_is_alone_is_named():
    a = run(method("fixed", commit=[100] * 50), method("advise", commit=[90] * 50))
    b = run(method("fixed", commit=[100] * 50, touch=[5] * 50), method("protect", commit=[80] * 50))
    result = compare(run_set(a), run_set(b))
    assert {(c.method, c.method_after) for c in result.changes} == {("fixed", "fixed")}
    assert result.unmatched == (
        "method advise (before only)",
        "method protect (after only)",
        "fixed: touch (after only)",
    )


def test_single_methods_of_two_names_are_compared_with_each_other():
    sets = [
        run_set(*[run(method(name, commit=[value] * 50))] * 4)
        for name, value in (("fixed", 100), ("protect", 50))
    ]
    change = change_of(compare(*sets), "commit")
    assert (change.method, change.method_after) == ("fixed", "protect")
    assert change.direction is Direction.FASTER


def test_runs_without_a_phase_in_common_compare_to_nothing():
    empty = replace(method(), phases=())
    other = run(replace(empty, phases=(phase("touch", [1]),)))
    assert compare(run_set(run(empty)), run_set(other)).changes == ()


@pytest.mark.parametrize(
    ("outcome", "compared"), [(Outcome.INTERRUPTED, True), (Outcome.HUNG, False)]
)
def test_runs_that_did_not_end_as_they_should_are_named(outcome, compared):
    good = run(method(commit=[100] * 50))
    found = run_set(good, replace(good, outcome=outcome), eventful())
    assert len(found.runs) == 1 + compared
    assert [(item.outcome, item.compared) for item in found.incomplete] == [
        (outcome, compared),
        (Outcome.CRASHED, False),
    ]


@pytest.mark.parametrize(
    ("condition", "outcome", "strict"),
    [
        ("cycle.median>+20%", CheckOutcome.FAILED, CheckOutcome.FAILED),
        ("cycle.median>+90%", CheckOutcome.PASSED, CheckOutcome.PASSED),
        ("cycle.median>+50%", CheckOutcome.NOT_DONE, CheckOutcome.FAILED),
        ("cycle.median<+20%", CheckOutcome.PASSED, CheckOutcome.PASSED),
        ("cycles_per_s<-10%", CheckOutcome.FAILED, CheckOutcome.FAILED),
        ("verify.median>+1%", CheckOutcome.FAILED, CheckOutcome.FAILED),
        ("protect.commit.median>+1%", CheckOutcome.FAILED, CheckOutcome.FAILED),
        ("commit.p99.9>+1%", CheckOutcome.FAILED, CheckOutcome.FAILED),
    ],
)
def test_a_condition_is_judged_by_the_interval(condition, outcome, strict):
    sides = several(5), several(5, seed=2, factor=1.5)
    gates = [parse_change(condition)]
    (check,) = compare(*sides, fail_on=gates).checks
    assert check.outcome is outcome
    (check,) = compare(*sides, fail_on=gates, strict=True).checks
    assert check.outcome is strict


def test_what_was_not_measured_has_failed_and_says_so():
    gates = [parse_change(text) for text in ("verify.p50>0%", "protect.commit.p50>0%")]
    result = compare(several(5), several(5), fail_on=gates)
    assert not result.passed
    reasons = [check.values["reason"] for check in result.checks]
    assert reasons == ["not measured", "method did not run"]


def test_a_comparison_is_described_to_the_last_key():
    for before, after in ((several(1), several(5)), (several(5), several(5, seed=2, factor=2))):
        result = compare(
            before, after, fail_on=[parse_change("commit.p50>+1%")] * (before is after)
        )
        text = encode(result, document_of(result).head(["vmtool", "compare"]))
        described(json.loads(text))


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
    result = compare(
        run_set(run(method(commit=[1]))), run_set(run(method(commit=[1]), machine=other))
    )
    assert {d.name: (d.before, d.after) for d in result.machine} == {
        "kernel": ("6.1.0", "6.9.0"),
        "THP mode": ("madvise", "always"),
        "vm.overcommit_memory": (0, 2),
        "cgroup limit in bytes": (4 << 30, 2 << 30),
        "GPU": (None, "H200"),
        "CUDA version of the driver": (None, 13000),
    }


def test_what_is_set_of_the_conditions_is_compared_and_what_comes_and_goes_is_not():
    made = run(method(commit=[1]))
    later = replace(
        made.conditions,
        started="2026-11-30T22:31:00Z",
        load_average=(9.0, 9.0, 9.0),
        cpu_governor="powersave",
        mitigations={"spectre_v2": "Vulnerable"},
        sysctls={"vm.swappiness": "10"},
    )
    result = compare(run_set(made), run_set(replace(made, conditions=later)))
    assert {d.name: (d.before, d.after) for d in result.machine} == {
        "CPU governor": ("performance", "powersave"),
        "mitigation of spectre_v2": (None, "Vulnerable"),
        "vm.swappiness": (None, "10"),
    }
    assert "load 9.0; idle 93%" in side_text("after", result.after)


@pytest.mark.parametrize(
    "facts", [{"system": 3}, {"cgroup": {"levels": 7}}, {"cgroup": {"levels": [1]}}]
)
def test_facts_of_an_unknown_shape_count_as_not_available(facts):
    result = compare(
        run_set(run(method(commit=[1]))), run_set(run(method(commit=[1]), machine=facts))
    )
    assert all(difference.after is None for difference in result.machine)


def test_settings_that_differ_are_named_and_the_seed_is_not_one():
    a = run(method(commit=[1]), settings={"seed": 1})
    b = run(method(commit=[1]), settings={"seed": 2, "granule_bytes": 2 << 20})
    assert [(d.name, d.before, d.after) for d in compare(run_set(a), run_set(b)).settings] == [
        ("granule_bytes", 65536, 2 << 20)
    ]


def test_what_is_unlike_within_one_side_is_named_by_file():
    made = method(commit=[1])
    mixed = run_set(
        run(made),
        run(made, settings={"seed": 3}),
        run(made, settings={"pattern": "random"}),
        run(made, method("advise", commit=[2]), machine=MACHINE | {"page_bytes": 16384}),
        path="mixed",
    )
    assert [
        (f.path, [d.name for d in f.differences]) for f in compare(mixed, mixed).before.unlike
    ] == [
        ("mixed/2.json", ["pattern"]),
        ("mixed/3.json", ["page size in bytes", "methods"]),
    ]


def test_every_fact_that_is_compared_is_one_that_is_recorded():
    facts = plain(read_facts())
    facts["device"] = dict.fromkeys(field.name for field in fields(DeviceFacts))
    for path in MACHINE_FACTS:
        *parents, last = path.split(".")
        group = facts
        for key in parents:
            group = group[key]
        assert last in group, path
    assert all("limit_bytes" in level for level in facts["cgroup"]["levels"])


def tail_slower(count, *, seed, tail_ns):
    """Runs whose cycles are alike, with the 99th percentile of the releases at *tail_ns*."""
    return run_set(
        *[
            run(
                method(
                    commit=gaussian(seed + i, 50_000, 200, spread=0.01),
                    touch=gaussian(seed + i, 400_000, 200, spread=0.01),
                    release=[90_000] * 195 + [tail_ns + i] * 5,
                )
            )
            for i in range(count)
        ]
    )


def test_the_headline_is_about_the_cycle_and_other_rows_are_details():
    result = compare(
        tail_slower(5, seed=1, tail_ns=100_000), tail_slower(5, seed=6, tail_ns=200_000)
    )
    assert change_of(result, "release", "p99").direction is Direction.SLOWER
    assert headline(result) == "the whole cycle is unchanged within 5 %; 5 runs against 5"
    assert list(other_rows(result)) == [
        "other rows that differ: release p99 of fixed +100.0 % (slower)"
    ]
    slower = compare(several(5), several(5, seed=2, factor=1.5))
    assert headline(slower).startswith("slower: the whole cycle of fixed +")
    assert list(other_rows(slower)) == []


def made(*minutes, idle=0.9, runs=1):
    """Results that were started at these minutes, of *runs* runs each."""
    base = run(method(commit=[100] * 50, touch=[100] * 50, release=[100] * 50))
    one = RunResult(0, Outcome.COMPLETE, 1, ("fixed",), base.methods)
    return run_set(
        *[
            replace(
                base,
                runs=(one,) * runs,
                conditions=replace(
                    base.conditions, started=f"2026-11-30T22:{at:02}:00Z", idle_share=idle
                ),
            )
            for at in minutes
        ]
    )


@pytest.mark.parametrize(
    ("before", "after", "doubts"),
    [
        (made(0, runs=5), made(1, runs=5), []),  # idle
        (made(0, runs=5), made(1, runs=5, idle=0.0), [Doubt.BUSY]),
        (made(0, runs=5, idle=0.24), made(30, runs=5), [Doubt.BUSY, Doubt.APART]),
        (made(0, runs=5, idle=None), made(11, runs=5, idle=None), [Doubt.APART]),
        (made(0, 2, 4, 6, idle=0.0), made(1, 3, 5, 7, idle=0.0), []),
        (made(0, 3, 4, 7, idle=0.0), made(1, 2, 5, 6, idle=0.0), []),
        (made(0, 1, 2, 3, idle=0.0), made(4, 5, 6, 7, idle=0.0), [Doubt.BUSY]),
        # Five runs within one result follow each other: two such turns are not four.
        (made(0, 2, idle=0.0, runs=5), made(1, 3, idle=0.0, runs=5), [Doubt.BUSY]),
    ],
)
def test_sides_that_were_not_alternated_on_a_busy_machine_or_far_apart_are_doubted(
    before, after, doubts
):
    result = compare(before, after)
    assert list(result.doubts) == doubts
    assert len(list(caveats(result))) == len(doubts)
    text = " ".join(printed(lambda console: to_text(result, console), 100))
    assert ("on a busy machine (" in text) is (Doubt.BUSY in doubts)
    assert ("alternate the runs: `vmtool stress --runs 1" in text) is bool(doubts)
    page = to_html(before, after, result, ["vmtool", "compare"])
    assert ("rows may differ for that reason alone" in page) is bool(doubts)


def test_what_is_left_out_raises_no_warning_about_its_settings():
    other = replace(eventful(settings={"granule_bytes": 2 << 20}), runs=())
    sides = run_set(other, *(file.result for file in several(4).files)), several(4)
    result = compare(*sides)
    assert result.settings == ()
    assert result.before.unlike == ()
    assert all("crashed" in text for text in warnings_of(result))


def test_settings_that_differ_are_in_the_headline():
    result = compare(several(5), several(5, settings={"granule_bytes": 2 << 20}))
    assert headline(result).endswith("; settings differ (granule: 64 KiB and 2 MiB)")


def test_a_change_that_may_come_from_the_order_is_in_doubt_in_the_first_line():
    busy = {"conditions": replace(run(method()).conditions, idle_share=0.02)}
    sides = several(5, **busy), several(5, seed=2, factor=1.5, **busy)
    result = replace(compare(*sides), doubts=(Doubt.BUSY,))
    doubt = "; in doubt: measured one after the other on a busy machine (2 % idle)"
    assert headline(result).endswith(doubt)
    same = replace(compare(sides[0], sides[0]), doubts=(Doubt.BUSY,))
    assert "in doubt" not in headline(same)
