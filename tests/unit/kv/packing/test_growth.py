"""Which granules are needed at which length, compared with the costs of the policies."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.packing.block_pools import block_classes
from vmtool.kv.packing.growth import EntryCount, UsedBytes
from vmtool.kv.packing.policy import POLICIES, make_policy
from vmtool.kv.packing.range_shapes import StridedRange, shapes_of

LONGEST = 400


def any_policy(costs):
    """Return a strategy of policies on small granules."""

    @st.composite
    def make(draw):
        try:
            return make_policy(
                draw(st.sampled_from(sorted(POLICIES))),
                draw(costs),
                draw(st.sampled_from([64, 1000, 4096, 65536])),
                block=draw(st.integers(1, 20)),
                stride_tokens=LONGEST,
            )
        except UsageError:  # floor-per-page and straddle-loses refuse what is larger than a granule
            return make_policy("token-major", draw(costs), 4096, block=1, stride_tokens=LONGEST)

    return make()


@given(st.data())
def test_granules_and_runs_add_up_to_what_the_policy_commits(costs, data):
    policy = data.draw(any_policy(costs))
    tokens = data.draw(st.integers(0, LONGEST))
    shapes = shapes_of(policy)
    if shapes is None:
        classes = block_classes(policy)
        granules = sum(
            pool.count
            * (
                policy.granules_for(pool.block_bytes, each.blocks(tokens))
                if pool.drops_straddling
                else -(-each.blocks(tokens) * pool.block_bytes // policy.granule)
            )
            for each in classes
            for pool in each.pools
        )
    else:
        granules = sum(shape.count * shape.granules(tokens) for shape in shapes)
        for shape in shapes:
            runs = shape.runs(tokens)
            assert sum(end - first for first, end in runs) == shape.granules(tokens)
            assert all(a[1] < b[0] for a, b in pairwise(runs))
    assert granules * policy.granule == policy.committed_bytes(tokens)


@given(st.data())
def test_the_longest_length_is_the_last_on_the_same_memory(costs, data):
    policy = data.draw(any_policy(costs))
    tokens = data.draw(st.integers(0, LONGEST))
    shapes = shapes_of(policy)
    kinds = block_classes(policy) if shapes is None else shapes
    for kind in kinds:
        size = kind.blocks if shapes is None else kind.granules
        longest = kind.longest(tokens)
        if longest is None:
            assert size(tokens) == size(10**6)
        else:
            assert longest >= tokens
            assert size(longest) == size(tokens) < size(longest + 1)


@given(st.data())
def test_what_is_regular_grows_by_the_same_after_each_period(costs, data):
    policy = data.draw(any_policy(costs))
    shapes = shapes_of(policy)
    for kind in block_classes(policy) if shapes is None else shapes:
        if kind.period is None:
            continue
        size = kind.blocks if shapes is None else kind.granules
        grown = set()
        for before in range(kind.longest(0), LONGEST - kind.period, kind.period):
            more = size(before + 1) - size(before)
            assert size(before + kind.period) == size(before + 1)
            if shapes is None:
                grown.add(more)
                continue
            old = {g for first, end in kind.runs(before) for g in range(first, end)}
            new = {g for first, end in kind.runs(before + 1) for g in range(first, end)} - old
            grown.add((more, sum(g - 1 not in new for g in new)))
        assert len(grown) <= 1


@given(st.data())
def test_whole_granules_are_full_stay_and_lie_in_what_is_committed(costs, data):
    policy = data.draw(any_policy(costs))
    tokens = data.draw(st.integers(0, LONGEST))
    for shape in shapes_of(policy) or ():
        whole = {g for first, end in shape.full_runs(tokens) for g in range(first, end)}
        later = {g for first, end in shape.full_runs(tokens + 50) for g in range(first, end)}
        taken = {g for first, end in shape.runs(tokens) for g in range(first, end)}
        assert whole <= taken
        assert whole <= later
        entry = (
            shape.row_bytes * shape.heads if isinstance(shape, StridedRange) else shape.entry_bytes
        )
        assert shape.full_bytes(tokens) <= shape.entries.at(tokens) * entry
        if getattr(shape, "per_granule", 0):
            assert shape.full_bytes(tokens) == len(whole) * shape.per_granule * entry
        else:
            assert shape.full_bytes(tokens) == len(whole) * shape.granule


@given(st.data())
def test_live_bytes_and_their_sums_match_the_cost(costs, data):
    cost = data.draw(costs)
    live = UsedBytes(cost)
    tokens, more = data.draw(st.integers(0, LONGEST)), data.draw(st.integers(0, 300))
    assert live.at(tokens) == cost.bytes_for(tokens)
    assert live.over(tokens, more) == sum(
        cost.bytes_for(n) for n in range(tokens + 1, tokens + more + 1)
    )


@pytest.mark.parametrize(("cap", "every"), [(None, 1), (None, 3), (10, 1), (10, 4)])
def test_entries_and_their_inverse_agree(cap, every):
    entries = EntryCount(cap, every)
    for tokens in range(30):
        longest = entries.longest(entries.at(tokens))
        if longest is None:
            assert entries.at(tokens) == entries.at(99)
        else:
            assert entries.at(longest) == entries.at(tokens) < entries.at(longest + 1)
