"""Every pattern is legal at every step, keeps inside its limit and ends with nothing committed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.stress.demand import worst_mappings
from vmtool.stress.workloads import PATTERNS, Kind, Quota, largest_commit, live_granules

_NAMES = st.sampled_from(sorted(PATTERNS))


def _play(name, granules, live, quota, seed):
    """Yield the set of committed granules after each operation, which must be legal."""
    committed = set()
    for kind, first, count in PATTERNS[name](granules, live, quota, Random(seed)):
        span = set(range(first, first + count))
        assert count > 0
        assert first >= 0
        assert first + count <= granules
        if kind is Kind.COMMIT:
            assert not span & committed
            committed |= span
        else:
            assert span <= committed
            committed -= span
        yield kind, committed


@given(_NAMES, st.integers(1, 60), st.integers(1, 80), st.integers(0, 200), st.integers(0, 9))
def test_a_pattern_is_legal_stays_in_its_limit_and_uses_its_quota(name, granules, budget, n, seed):
    live = live_granules(name, granules, budget)
    commits, committed = 0, set()
    for kind, now in _play(name, granules, live, Quota(n), seed):
        commits += kind is Kind.COMMIT
        committed = now
        assert len(committed) <= live <= min(granules, budget)
    assert commits == n
    assert not committed


@given(_NAMES, st.integers(0, 40))
def test_a_quota_that_ends_early_still_releases_everything(name, after):
    quota = Quota(10**9)
    left = None
    for step, (_, committed) in enumerate(_play(name, 16, live_granules(name, 16, 16), quota, 3)):
        if step == after:
            quota.left = 0
        left = len(committed)
    assert left == 0


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_the_same_seed_repeats_the_same_operations(name):
    def play(seed):
        return list(PATTERNS[name](32, 16, Quota(100), Random(seed)))

    assert play(1) == play(1)


def test_random_orders_differ_between_seeds():
    def play(seed):
        return list(PATTERNS["random"](32, 16, Quota(100), Random(seed)))

    assert play(1) != play(2)


def test_hole_punch_releases_inside_what_is_committed():
    punched = False
    for kind, committed in _play("hole-punch", 16, 16, Quota(100), 1):
        gap = committed and set(range(min(committed), max(committed))) - committed
        punched = punched or (kind is Kind.RELEASE and bool(gap))
    assert punched


def test_blocks_shrink_into_the_middle_of_one_commit():
    kinds = [
        (kind, count)
        for kind, _, count in PATTERNS["block-grow-partial-shrink"](64, 64, Quota(1), Random(1))
    ]
    assert kinds == [(Kind.COMMIT, 32), (Kind.RELEASE, 24), (Kind.RELEASE, 8)]


@given(_NAMES, st.sampled_from(["fixed", "protect"]), st.integers(1, 40), st.integers(0, 150))
def test_the_worst_number_of_areas_is_never_less_than_runs_and_gaps(name, method, granules, n):
    live = live_granules(name, granules, granules)
    most, ever = 0, set()
    for _, committed in _play(name, granules, live, Quota(n), 5):
        ever |= committed
        edges = sum((g in committed) != (g + 1 in committed) for g in range(granules - 1))
        most = max(most, edges + 1)
    assert most <= worst_mappings(name, method, live, max(len(ever), 1))


def test_only_blocks_commit_more_than_one_granule():
    assert largest_commit("block-grow-partial-shrink", 100) == 32
    assert largest_commit("block-grow-partial-shrink", 5) == 5
    assert largest_commit("tail", 100) == 1
