"""The factor between two sets of runs, the intervals of it and of percentiles, and how often they are right."""

import math
import random
from fractions import Fraction
from itertools import combinations
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.compare.confidence_intervals import (
    EXACT_DEVIATION,
    RUNS_NEEDED,
    Interval,
    fewest_runs,
    location,
    median_interval,
    quantile_ranks,
    runs_needed,
    shift,
    variation,
)

VALUES = st.lists(st.integers(1, 10**9), min_size=4, max_size=6)


def permutation_p(before, after, factor):
    """The one-sided p-values of the exact test that *factor* is the true one, by counting."""
    old = [math.log(value) for value in before]
    new = [math.log(value / factor) for value in after]
    pooled = old + new
    observed = mean(new) - mean(old)
    found = []
    for chosen in combinations(range(len(pooled)), len(new)):
        part = [pooled[i] for i in chosen]
        rest = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        found.append(mean(part) - mean(rest))
    above = sum(value >= observed - 1e-12 for value in found) / len(found)
    below = sum(value <= observed + 1e-12 for value in found) / len(found)
    return above, below


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_is_what_the_test_does_not_reject(seed):
    generator = random.Random(seed)
    before = [generator.lognormvariate(0, 0.1) for _ in range(5)]
    after = [generator.lognormvariate(0.2, 0.1) for _ in range(4)]
    found = shift(before, after, 0.95)
    for factor, kept in (
        (found.low * 1.0001, True),
        (found.low * 0.9999, False),
        (found.high * 0.9999, True),
        (found.high * 1.0001, False),
    ):
        assert (min(permutation_p(before, after, factor)) > 0.025) == kept


def test_the_estimate_is_the_median_of_all_quotients():
    before, after = [10, 11, 12, 14], [20, 21, 25, 26]
    logs = median(math.log(b / a) for a in before for b in after)
    assert shift(before, after, 0.95).ratio == pytest.approx(math.exp(logs))


def test_three_runs_a_side_have_no_interval_at_95_percent():
    assert shift([1, 2, 3], [10, 20, 30], 0.95).low is None
    assert shift([1, 2, 3, 4], [10, 20, 30, 40], 0.95).low > 1
    assert RUNS_NEEDED == 4


@given(VALUES, VALUES)
def test_swapping_the_sides_turns_the_interval_around(before, after):
    there, back = shift(before, after, 0.95), shift(after, before, 0.95)
    assert there.low <= there.high
    assert there.ratio == pytest.approx(1 / back.ratio, rel=1e-9)
    assert there.low == pytest.approx(1 / back.high, rel=1e-9)


@given(VALUES, VALUES, st.integers(2, 1000))
def test_the_unit_of_the_figures_does_not_matter(before, after, unit):
    plain = shift(before, after, 0.95)
    scaled = shift([unit * v for v in before], [unit * v for v in after], 0.95)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high))


def test_many_runs_are_sampled_and_repeat():
    generator = random.Random(3)
    before = [generator.lognormvariate(0, 0.05) for _ in range(20)]
    after = [generator.lognormvariate(0.1, 0.05) for _ in range(20)]
    found = shift(before, after, 0.95)
    assert found == shift(before, after, 0.95)
    assert 1.05 < found.low < found.ratio < found.high < 1.17


@pytest.mark.parametrize("heavy", [False, True])
def test_equal_sides_are_seldom_called_changed(heavy):
    generator = random.Random(11)

    def draw():
        far = 3 * generator.expovariate(8) if heavy and generator.random() < 0.15 else 0
        return math.exp(generator.gauss(0, 0.08) + far)

    sets = 400
    wrong = sum(
        not found.low <= 1 <= found.high
        for found in (
            shift([draw() for _ in "12345"], [draw() for _ in "12345"], 0.95) for _ in range(sets)
        )
    )
    assert wrong / sets <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / sets)


def test_a_change_of_a_fifth_is_found_where_runs_vary_by_6_percent():
    generator = random.Random(12)
    found = sum(
        shift(
            [generator.lognormvariate(0, 0.06) for _ in "12345"],
            [generator.lognormvariate(math.log(1.2), 0.06) for _ in "12345"],
            0.95,
        ).low
        > 1
        for _ in range(200)
    )
    assert found >= 180


@pytest.mark.parametrize(
    ("confidence", "runs"), [(0.5, 4), (0.95, 4), (0.98, 5), (0.99, 5), (0.999, 7), (0.9999, 9)]
)
def test_with_the_fewest_runs_there_is_an_interval_and_with_fewer_there_is_none(confidence, runs):
    assert fewest_runs(confidence) == runs
    assert shift([1.0] * runs, [2.0] * runs, confidence).low is not None
    if runs > RUNS_NEEDED:
        assert shift([1.0] * (runs - 1), [2.0] * (runs - 1), confidence).low is None


def test_runs_needed_grow_with_the_variation():
    assert runs_needed(0.001, 0.2, confidence=0.95) == RUNS_NEEDED
    # 2 * ((1.960 + 1.282) * 0.1 / ln 1.2) ** 2 + 1 = 7.32
    assert runs_needed(0.1, 0.2, confidence=0.95) == 8
    assert runs_needed(0.3, 0.2, confidence=0.95) == 58


def test_variation_is_the_standard_deviation_by_the_mean():
    assert variation([1]) is None
    assert variation([90, 110]) == pytest.approx(0.1414, abs=1e-4)


def test_the_interval_of_five_values_is_all_of_them_and_of_more_is_narrower():
    assert location([5, 1, 4, 2, 3], 0.95) == (1, 5)
    low, high = location([10, 11, 12, 13, 14, 15, 16, 17], 0.95)
    assert 10 < low < 13 < high < 17
    low, high = location(list(range(100, 130)), 0.95)
    assert 105 < low < 114 < high < 124


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
