"""Properties of every policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.packing.blocks import Paged
from vmtool.kv.packing.policy import POLICIES, make_policy
from vmtool.units import KIB, MIB

GRANULES = st.sampled_from([1, 100, 4 * KIB, 64 * KIB, 2 * MIB])
STRIDE = 2000


def policies_of(cost, granule, block=16):
    """Return every policy that can lay *cost* out."""
    found = []
    for name in POLICIES:
        try:
            found.append(make_policy(name, cost, granule, block=block, stride_tokens=STRIDE))
        except UsageError:
            assert name in ("floor-per-page", "straddle-loses")
    return found


def test_an_unknown_policy_names_the_closest(dense, cost_of):
    with pytest.raises(UsageError, match="unknown policy 'per-tensors'") as caught:
        make_policy("per-tensors", cost_of(dense(1, 1, 64)), 4096, block=16, stride_tokens=1)
    assert "per-tensor" in caught.value.hint


@given(st.data(), GRANULES, st.integers(0, STRIDE))
def test_every_policy_commits_whole_granules_that_hold_the_sequence(costs, data, granule, n):
    cost = data.draw(costs)
    for policy in policies_of(cost, granule):
        committed = policy.committed_bytes(n)
        assert committed % granule == 0
        assert committed >= cost.bytes_for(n)
        assert policy.reserved_bytes(n) >= committed


@given(st.data(), GRANULES, st.integers(0, STRIDE - 1), st.integers(1, 5))
def test_more_tokens_or_sequences_never_commit_less(costs, data, granule, n, sequences):
    for policy in policies_of(data.draw(costs), granule):
        committed = policy.committed_bytes(n, sequences)
        assert policy.committed_bytes(n + 1, sequences) >= committed
        assert policy.committed_bytes(n, sequences + 1) >= committed
        if policy.name != "straddle-loses":  # in a shared pool other blocks are cut
            assert committed <= sequences * policy.committed_bytes(n)


@given(st.data(), GRANULES, st.integers(0, STRIDE), st.integers(1, 40), st.integers(1, 4))
def test_policies_are_ordered(costs, data, granule, n, block, sequences):
    cost = data.draw(costs)
    by_name = {policy.name: policy for policy in policies_of(cost, granule, block)}
    committed = {name: p.committed_bytes(n, sequences) for name, p in by_name.items()}
    assert committed["token-major"] <= committed["kv-merged"] <= committed["per-tensor"]
    if "floor-per-page" in committed:
        assert committed["per-tensor"] <= committed["floor-per-page"]
    if "straddle-loses" in committed:
        assert committed["paged"] <= committed["straddle-loses"]
    assert committed["per-tensor"] <= committed["head-major"]
    assert Paged(cost, granule, 1).committed_bytes(n) == committed["per-tensor"] // sequences


@given(st.data(), GRANULES, st.integers(1, STRIDE), st.integers(1, 20))
def test_waste_is_within_the_bound_of_the_policy(costs, data, granule, n, block):
    cost = data.draw(costs)
    for policy in policies_of(cost, granule, block):
        loss = policy.loss()
        committed = policy.committed_bytes(n)
        assert committed - cost.bytes_for(n) <= loss.part * committed + loss.slack_bytes
