"""The factor between two sets of runs, its interval, and how often they are right."""

import math
import random
from itertools import combinations
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.compare.permutation import (
    RUNS_NEEDED,
    fewest_runs,
    location,
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
