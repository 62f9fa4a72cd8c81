"""The lengths of a growth reach the peak exactly and end at 0, in a bounded number of steps."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.probes.grow_lengths import MAX_STEPS, PATTERNS, lengths


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("linear", [4, 8, 10, 8, 4, 0]),
        ("doubling", [4, 8, 10, 8, 4, 0]),
    ],
)
def test_small_examples(pattern, expected):
    assert lengths(pattern, 10, 4) == expected


def test_doubling_doubles():
    assert lengths("doubling", 100, 7) == [7, 14, 28, 56, 100, 56, 28, 14, 7, 0]


def test_sawtooth_goes_up_four_and_down_two():
    assert lengths("sawtooth", 8, 1) == [1, 2, 3, 4, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 4, 0]


def test_one_step_to_the_peak():
    assert lengths("linear", 5, 5) == [5, 0]
    assert lengths("sawtooth", 5, 5) == [5, 0]


@given(st.sampled_from(PATTERNS), st.integers(1, 1 << 40), st.integers(1, 3000))
def test_every_pattern_reaches_the_peak_and_ends_at_zero(pattern, to, parts):
    step = max(to // parts, 1)
    found = lengths(pattern, to, step)
    assert max(found) == to
    assert found[-1] == 0
    assert all(length > 0 for length in found[:-1])
    assert all(a != b for a, b in pairwise(found))
    assert len(found) <= MAX_STEPS


@pytest.mark.parametrize("pattern", ["linear", "sawtooth"])
def test_too_many_steps_are_refused_with_a_step_that_works(pattern):
    with pytest.raises(UsageError) as caught:
        lengths(pattern, 1 << 40, 4096)
    step = int(caught.value.hint.split()[4])
    assert len(lengths(pattern, 1 << 40, step)) <= MAX_STEPS


def test_an_unknown_pattern_names_the_valid_ones():
    with pytest.raises(UsageError) as caught:
        lengths("spiral", 1, 1)
    assert "sawtooth" in caught.value.hint
