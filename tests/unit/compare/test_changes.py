"""Verdicts on sets of runs, and what is not compared."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from printed import printed
from stored_runs import described, eventful, method, phase, run, run_set, several

from vmtool.compare.assertions import parse_change
from vmtool.compare.changes import compare
from vmtool.json_documents import encode
from vmtool.report.compare import caveats, to_text, warnings_of
from vmtool.report.compare_page import to_html
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.compare import Direction, Doubt
from vmtool.results.document_versions import document_of
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


def test_methods_pair_by_whether_they_ran_with_huge_pages():
    plain, fast = ([pace + i for i in range(50)] for pace in (1000, 200))
    every = run_set(
        *[run(method("fixed", commit=plain), method("fixed+huge", commit=fast)) for _ in range(4)]
    )
    huge = run_set(*[run(method("fixed", commit=fast), settings={"huge": True}) for _ in range(4)])
    gates = [parse_change(f"{name}commit.median>+20%") for name in ("fixed.", "fixed+huge.", "")]
    result = compare(every, huge, fail_on=gates)
    assert {(c.method, c.method_after, c.ratio) for c in result.changes} == {
        ("fixed+huge", "fixed+huge", 1.0)
    }
    assert result.unmatched == ("method fixed (before only)",)
    assert [(check.outcome, check.values.get("reason")) for check in result.checks] == [
        (CheckOutcome.FAILED, "not measured on both sides: fixed"),
        (CheckOutcome.PASSED, None),
        (CheckOutcome.FAILED, "not measured on both sides: fixed"),
    ]
    alike = run_set(*[run(method("fixed+huge", commit=fast)) for _ in range(4)])
    result = compare(huge, alike, fail_on=gates)
    assert (result.settings, result.unmatched, result.passed) == ((), (), True)
    assert all("fixed+huge.change" in check.values for check in result.checks)
    folder = run_set(*(file.result for side in (huge, alike) for file in side.files))
    assert compare(folder, huge).before.unlike == ()


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
    others = ("commit.median", "touch.median", "release.median")
    assert reasons == [
        "not measured; fixed: no verify was measured; use " + " or ".join(others),
        "method did not run",
    ]


def test_a_condition_on_the_cycle_of_a_side_without_touch_says_why_it_fails():
    sides = [
        run_set(*[run(method("fixed", commit=[100] * 50, release=[50] * 50))] * 4) for _ in "ab"
    ]
    (check,) = compare(*sides, fail_on=[parse_change("cycle.median>+20%")]).checks
    assert check.failed
    assert check.values["reason"] == (
        "not measured; fixed: no touch was measured (--touch none);"
        " use commit.median or release.median"
    )


def test_a_condition_on_every_method_needs_every_method_on_both_sides():
    def side(*names):
        return run_set(*[run(*(method(name, commit=[100] * 50) for name in names))] * 4)

    gates = [parse_change(text) for text in ("commit.p50>+20%", "fixed.commit.p50>+20%")]
    for names in (("fixed", "advise"), ("fixed",)), (("fixed",), ("fixed", "advise")):
        every, named = compare(*(side(*side_names) for side_names in names), fail_on=gates).checks
        assert every.failed
        assert every.values["reason"] == "not measured on both sides: advise"
        assert named.outcome is CheckOutcome.PASSED


def test_a_confidence_that_the_runs_cannot_reach_proves_nothing():
    result = compare(several(5), several(5, seed=2, factor=3), confidence=0.999)
    assert {change.direction for change in result.changes} == {Direction.NOT_PROVEN}
    assert change_of(result).runs_needed == 7
    result = compare(several(7), several(7, seed=2, factor=3), confidence=0.999)
    assert change_of(result).direction is Direction.SLOWER


def test_every_key_of_a_comparison_is_in_its_schema():
    for before, after in ((several(1), several(5)), (several(5), several(5, seed=2, factor=2))):
        result = compare(
            before, after, fail_on=[parse_change("commit.p50>+1%")] * (before is after)
        )
        text = encode(result, document_of(result).head(["vmtool", "compare"]))
        described(json.loads(text))


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
