"""Conditions: what can be written, what is refused, and when a gate closes."""

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import gaussian, method, run

from vmtool.compare.assertions import (
    Metric,
    evaluate,
    parse_assertion,
    parse_change,
)
from vmtool.errors import UsageError
from vmtool.report.checks import describe, hint
from vmtool.results.check import CheckOutcome


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


@pytest.mark.parametrize("text", ["commit.p99>5ms", "commit.p99>20", "commit.p99>++2%", "x>1%"])
def test_a_change_needs_a_percentage_of_a_known_metric(text):
    with pytest.raises(UsageError):
        parse_change(text)


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_usage_error(text):
    for parse in (parse_assertion, parse_change):
        with suppress(UsageError):
            assert parse(text).text == text


def test_an_assertion_holds_for_every_method_of_the_run():
    result = run(method("fixed", commit=[100] * 10), method("protect", commit=[300] * 10))
    assert evaluate(parse_assertion("commit.max<=300ns"), result).outcome is CheckOutcome.PASSED
    check = evaluate(parse_assertion("commit.max<300ns"), result)
    assert check.outcome is CheckOutcome.FAILED
    assert check.name == "assert.commit.max<300ns"
    assert describe(check) == "fixed: 100 ns; protect: 300 ns"
    assert (
        evaluate(parse_assertion("fixed.commit.max<300ns"), result).outcome is CheckOutcome.PASSED
    )


@pytest.mark.parametrize(
    "text", ["touch.p50<1s", "protect.commit.p50<1s", "commit.p99.9<1s", "commit.p50<1ns"]
)
def test_what_cannot_be_measured_fails_the_assertion(text):
    check = evaluate(parse_assertion(text), run(method(commit=gaussian(1, 500, 100))))
    assert check.outcome is CheckOutcome.FAILED
    assert hint(check)


def test_a_run_without_methods_meets_nothing():
    assert (
        evaluate(parse_assertion("commit.p50<1s"), replace(run(), methods=())).outcome
        is CheckOutcome.FAILED
    )


def test_rates_are_asserted_with_their_unit():
    result = run(method(commit=[1], rate=2000.0))
    assert evaluate(parse_assertion("cycles_per_s>=2000"), result).outcome is CheckOutcome.PASSED
    check = evaluate(parse_assertion("bytes_per_s>1GiB"), result)
    assert check.outcome is CheckOutcome.FAILED
    assert "125 MiB/s" in describe(check)
