"""Intervals of quantiles: against exact sums, against published ranks, and by their coverage."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.compare.intervals import (
    EXACT_DEVIATION,
    Interval,
    median_interval,
    quantile_ranks,
)

HALF = Fraction(1, 2)


def exactly_below(count, quantile, rank):
    """P(fewer than *rank* of *count* samples are below the quantile), with exact fractions."""
    return sum(
        math.comb(count, k) * quantile**k * (1 - quantile) ** (count - k) for k in range(rank)
    )


@given(
    st.integers(1, 300),
    st.sampled_from([HALF, Fraction(9, 10), Fraction(99, 100)]),
    st.sampled_from([0.9, 0.95, 0.975, 0.999]),
)
def test_ranks_enclose_the_quantile_with_the_given_confidence_and_no_wider(
    count, quantile, confidence
):
    low, high = quantile_ranks(count, quantile, confidence)
    tail = (1 - Fraction(confidence)) / 2
    slack = Fraction(1, 10**9)  # the sums under test are floating-point
    assert exactly_below(count, quantile, low or 0) <= tail + slack
    assert exactly_below(count, quantile, (low or 0) + 1) >= tail - slack
    above = exactly_below(count, 1 - quantile, count + 1 - high if high else 0)
    assert above <= tail + slack
    if high is None:
        assert exactly_below(count, 1 - quantile, 1) >= tail - slack


# By hand: of 5, P(0 below) = 1/32 > 2.5 %; of 6, 1/64; of 10, P(<= 1) = 11/1024 and P(<= 2) =
# 56/1024; of 20, P(<= 5) = 21,700/1,048,576 and P(<= 6) = 60,460/1,048,576.
@pytest.mark.parametrize(
    ("count", "expected"), [(5, (None, None)), (6, (1, 6)), (10, (2, 9)), (20, (6, 15))]
)
def test_ranks_of_a_median_are_the_sign_tests(count, expected):
    assert quantile_ranks(count, HALF, 0.95) == expected


@pytest.mark.parametrize("quantile", [HALF, Fraction(99, 100), Fraction(999, 1000)])
def test_the_normal_approximation_continues_the_exact_ranks_without_a_step(quantile):
    count = int(EXACT_DEVIATION**2 / (quantile * (1 - quantile)))  # the last that is summed
    exact = quantile_ranks(count, quantile, 0.975)
    low, high = quantile_ranks(count + 1, quantile, 0.975)
    # A sample more moves a rank by one at most.
    assert exact[0] - 3 <= low <= exact[0] + 1
    assert exact[1] <= high <= exact[1] + 4


def test_ranks_of_an_absurd_count_come_at_once():
    low, high = quantile_ranks(1 << 62, HALF, 0.95)
    assert 0 < low < 1 << 61 < high


def test_the_median_of_few_values_has_no_interval():
    assert median_interval([1, 2, 3, 4, 5], 0.95) is None
    assert median_interval([6, 1, 5, 2, 4, 3], 0.95) == Interval(1, 6)


def test_intervals_hold_the_true_median_at_least_as_often_as_they_say():
    generator = random.Random(20260401)
    runs, held = 600, 0
    for _ in range(runs):
        interval = median_interval([round(generator.expovariate(1) * 1e6) for _ in range(40)], 0.95)
        held += interval.low <= math.log(2) * 1e6 <= interval.high
    # Three standard errors below 95 %; the discrete ranks only add to it.
    assert held / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
