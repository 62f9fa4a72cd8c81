"""Slopes find a leak and nothing else."""

import random

from vmtool.slopes import median_slope, pooled_slope


def test_a_line_has_its_slope():
    found = pooled_slope([[(x, 3 * x + 7) for x in range(50)]])
    assert found.per_step == found.low == found.high == 3
    assert found.rises


def test_a_small_leak_shows_through_noise():
    noise = random.Random(2)
    found = pooled_slope([[(x, 4096 * x + noise.gauss(0, 50_000)) for x in range(100)]])
    assert found.rises
    assert found.low < 4096 < found.high


def test_a_warm_up_step_is_not_a_leak():
    points = [(x, 0) for x in range(10)] + [(x, 5_000_000) for x in range(10, 100)]
    assert not pooled_slope([points]).rises


def test_noise_without_growth_rises_no_more_often_than_the_confidence_allows():
    rises = 0
    for seed in range(200):
        noise = random.Random(seed)
        rises += pooled_slope([[(x, noise.gauss(0, 1)) for x in range(40)]]).rises
    assert rises <= 6  # 1 in 200 expected: half of 1 %


def test_too_few_points_have_no_slope():
    assert pooled_slope([[(x, x) for x in range(5)]]) is None
    assert pooled_slope([[(1, y) for y in range(20)]]) is None


def test_six_points_that_all_rise_are_enough_and_five_of_six_are_not():
    assert pooled_slope([[(x, x) for x in range(6)]]).rises
    assert not pooled_slope([[(0, 0), (1, 1), (2, 2), (3, 1), (4, 3), (5, 2)]]).rises


def test_many_points_are_thinned_and_keep_the_slope():
    found = pooled_slope([[(x, 2 * x) for x in range(10_000)]])
    assert found.points <= 400
    assert found.per_step == 2


def test_a_long_series_is_thinned_before_its_pairs_are_compared():
    # A watch of hours has thousands of points, and millions of pairs of them.
    points = [(float(i), float(i if i % 5 == 0 else -7 * i)) for i in range(2000)]

    assert median_slope([points]) == 1
