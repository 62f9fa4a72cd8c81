"""Robust estimates and p-values against values worked out elsewhere, and by simulation."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.fleet.robust_statistics import biweight, discoveries, two_sided_p


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    # Two-sided critical values of Student's t: NIST/SEMATECH e-Handbook, table 1.3.6.7.2.
    [
        (12.706, 1, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (2.750, 30, 0.01),
        (1.984, 100, 0.05),
    ],
)
def test_tails_of_t_match_tables(t, freedom, p):
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=2e-3)


def test_tails_of_t_become_those_of_the_normal_distribution():
    normal = 2 * statistics.NormalDist().cdf(-4)
    assert two_sided_p(4, 1e7) == pytest.approx(normal, rel=1e-3)
    assert two_sided_p(0, 5) == 1


def test_the_biweight_of_a_sample_is_near_that_of_its_distribution():
    draw = random.Random(1)
    values = [draw.gauss(10, 2) for _ in range(20_000)]
    assert biweight(values) == pytest.approx((10, 2), rel=0.03)


@given(st.integers(0, 10**6), st.floats(1e2, 1e9))
def test_the_biweight_does_not_follow_a_fifth_of_wild_values(seed, wild):
    draw = random.Random(seed)
    values = [draw.gauss(0, 1) for _ in range(40)]
    spoiled = values + [wild] * 10
    location, scale = biweight(spoiled)
    assert abs(location) < 1.2
    assert 0.4 < scale < 2.5


def test_values_most_of_which_are_equal_have_no_scale():
    assert biweight([3.0] * 9 + [8.0]) == (3.0, 0.0)


def test_discoveries_match_benjamini_and_hochberg():
    # The example of their paper of 1995, section 4: four of fifteen at a rate of 5 %.
    found = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459),
        *(0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0),
    ]
    assert discoveries(found, 0.05) == {0, 1, 2, 3}
    assert discoveries([0.5, 0.9], 0.05) == set()
    assert discoveries([], 0.05) == set()
