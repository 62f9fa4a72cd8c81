"""Conditions: what can be written, what is refused, and when a gate closes."""

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import gaussian, method, run

from vmtool.compare.assertions import evaluate, parse_assertion, parse_change
from vmtool.compare.metrics import Metric
from vmtool.errors import UsageError
from vmtool.memory.backing_by_name import methods_of
from vmtool.report.check_sentences import describe, hint, summarize
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.stress import METHODS, Outcome, RunResult


@pytest.mark.parametrize(
    ("text", "metric", "operator", "limit"),
    [
        ("commit.p99<5ms", Metric(None, "commit", "p99"), "<", 5_000_000),
        ("release.p99.9 <= 1.5 us", Metric(None, "release", "p99.9"), "<=", 1500),
        ("touch.p999<1s", Metric(None, "touch", "p99.9"), "<", 10**9),
        ("protect.commit.p50>=10ns", Metric("protect", "commit", "median"), ">=", 10),
        ("cycles_per_s>10000", Metric(None, None, "cycles_per_s"), ">", 10_000),
        ("advise.bytes_per_s>1GiB/s", Metric("advise", None, "bytes_per_s"), ">", 1 << 30),
    ],
)
def test_an_assertion_says_what_it_means(text, metric, operator, limit):
    condition = parse_assertion(text)
    assert (condition.metric, condition.operator, condition.limit) == (metric, operator, limit)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("commit.p99>+20%", Fraction(1, 5)),
        ("cycles_per_s<-2.5%", Fraction(-1, 40)),
        ("commit.max>9 %", Fraction(9, 100)),
    ],
)
def test_a_change_is_a_part_of_the_old_value(text, limit):
    assert parse_change(text).limit == limit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("commit.p99<5", "no unit"),
        ("commit.p99<5MiB", "unknown unit"),
        ("commit.p99=5ms", "not a condition"),
        ("commit.p99<", "not a condition"),
        ("<5ms", "not a condition"),
        ("commit.p99<5ms>3", "not a condition"),
        ("commit.p98<5ms", "not a figure of a run"),
        ("comit.p99<5ms", "not a figure of a run"),
        ("cycles_per_s>fast", "not a number"),
        ("commit.p99<-5ms", "not a duration"),
        ("a" * 5000, "not a condition"),
    ],
)
def test_a_wrong_assertion_is_refused_in_words(text, words):
    with pytest.raises(UsageError, match=words):
        parse_assertion(text)


def test_a_misspelt_metric_gets_a_suggestion():
    with pytest.raises(UsageError) as caught:
        parse_assertion("comit.p99<5ms")
    assert "commit.p99" in caught.value.hint


def test_a_name_that_is_no_method_is_refused_and_one_of_another_system_is_not():
    for text in ("fixd.commit.p99<30us", "p.touch.median<2ms", "fixd+huge.cycle.median<1ms"):
        with pytest.raises(UsageError, match="is not a method") as caught:
            parse_assertion(text)
        assert "fixed" in caught.value.hint
    with pytest.raises(UsageError, match="'p' is not a method"):
        parse_change("p.touch.median>+2%")
    for name in ("view", "pooled", "fixed+huge"):
        assert parse_assertion(f"{name}.commit.p99<30us").metric.method == name
    assert set(METHODS) >= {*methods_of("host"), *methods_of("cuda")}


@pytest.mark.parametrize("text", ["commit.p99>5ms", "commit.p99>20", "commit.p99>++2%", "x>1%"])
def test_a_change_needs_a_percentage_of_a_known_metric(text):
    with pytest.raises(UsageError):
        parse_change(text)


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_usage_error(text):
    for parse in (parse_assertion, parse_change):
        with suppress(UsageError):
            assert parse(text).text == text


def runs_of(*runs):
    """A result of several runs, each a list of its methods."""
    results = [
        RunResult(i, Outcome.COMPLETE, 10**9, tuple(m.method for m in methods), tuple(methods))
        for i, methods in enumerate(runs)
    ]
    return run(*runs[0], settings={"runs": len(runs)}, runs=tuple(results))


def commits(*figures, **fields):
    """A result of one run for each of *figures*, at which all its commits took so long."""
    return runs_of(*([method(commit=[ns] * 10, **fields)] for ns in figures))


def judged(text, result, **options):
    return evaluate(parse_assertion(text), result, confidence=0.95, **options)


def test_an_assertion_holds_for_every_method_of_the_run():
    result = runs_of(
        *[[method("fixed", commit=[100] * 9), method("protect", commit=[300] * 9)]] * 4
    )
    assert judged("commit.max<=300ns", result).outcome is CheckOutcome.PASSED
    check = judged("commit.max<300ns", result)
    assert check.outcome is CheckOutcome.FAILED
    assert check.name == "assert.commit.max<300ns"
    assert describe(check) == (
        "fixed: 100 ns (100 ns to 100 ns in 4 runs); protect: 300 ns (300 ns to 300 ns in 4 runs)"
    )
    assert judged("fixed.commit.max<300ns", result).outcome is CheckOutcome.PASSED


def test_a_method_with_huge_pages_is_asserted_by_either_name():
    result = commits(100, 100, 100, 100)
    huge = replace(result, settings=replace(result.settings, huge=True))
    typed = commits(100, 100, 100, 100, name="fixed+huge")
    for each in (huge, typed):
        assert judged("fixed.commit.max<300ns", each).outcome is CheckOutcome.PASSED
        assert judged("fixed+huge.commit.max<300ns", each).outcome is CheckOutcome.PASSED
    assert judged("fixed+huge.commit.max<300ns", result).values["reason"] == "method did not run"
    both = runs_of(
        *[[method("fixed", commit=[400] * 9), method("fixed+huge", commit=[100] * 9)]] * 4
    )
    assert judged("fixed.commit.max<300ns", both).outcome is CheckOutcome.FAILED
    assert judged("fixed+huge.commit.max<300ns", both).outcome is CheckOutcome.PASSED


@pytest.mark.parametrize(
    ("text", "word", "strict"),
    [
        ("commit.p50<600ns", "passed", "passed"),
        ("commit.p50<500ns", "not proven", "failed"),
        ("commit.p50<350ns", "not proven", "failed"),
        ("commit.p50<=300ns", "not proven", "failed"),
        ("commit.p50<300ns", "failed", "failed"),
        ("commit.p50>300ns", "not proven", "failed"),
        ("commit.p50>200ns", "passed", "passed"),
    ],
)
def test_an_assertion_is_judged_by_the_interval_of_the_runs(text, word, strict):
    result = commits(300, 320, 400, 450, 500)
    assert judged(text, result).word == word
    assert judged(text, result, strict=True).word == strict


def test_what_is_not_proven_says_so():
    check = judged("commit.p50<350ns", commits(300, 320, 400, 450, 500))
    assert summarize([check]) == "1 not proven: assert.commit.p50<350ns"
    assert "400 ns (300 ns to 500 ns in 5 runs); the interval includes the limit" in describe(check)
    check = judged("commit.p50<350ns", commits(300, 320, 400, 450, 500), strict=True)
    assert "more runs" in hint(check)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("touch.p50<1s", "run for longer"),
        ("commit.p99.9<1s", "run for longer"),
        ("protect.commit.p50<1s", "--method all"),
        ("commit.p50<1ns", None),  # no other run mends it
    ],
)
def test_an_assertion_that_fails_has_a_hint_only_where_one_helps(text, remedy):
    check = judged(text, runs_of(*[[method(commit=gaussian(1, 500, 100))]] * 5))
    assert check.outcome is CheckOutcome.FAILED
    assert hint(check) is None if remedy is None else remedy in hint(check)


def test_fewer_than_four_runs_meet_nothing():
    check = judged("commit.p50<1s", commits(300, 300, 300))
    assert check.outcome is CheckOutcome.FAILED
    assert describe(check) == "fixed: not measured (only 3 runs had enough samples)"


def test_a_run_without_methods_meets_nothing():
    result = replace(run(), methods=())
    assert judged("commit.p50<1s", result).outcome is CheckOutcome.FAILED


def test_rates_are_asserted_with_their_unit():
    result = commits(*[1] * 4, rate=2000.0)
    assert judged("cycles_per_s>=2000", result).outcome is CheckOutcome.PASSED
    check = judged("bytes_per_s>1GiB", result)
    assert check.outcome is CheckOutcome.FAILED
    assert "125 MiB/s" in describe(check)
