"""Which granules of its ranges, or which blocks, a sequence needs at which length, compared with the policies."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.kv.packing.shapes_and_block_classes import (
    EntryCount,
    PackedRange,
    StridedRange,
    block_classes,
    shapes_of,
)

LONGEST = 400
RANGES = ["per-tensor", "kv-merged", "token-major", "head-major", "floor-per-page"]
POOLS = ["paged", "straddle-loses"]


@given(st.data())
def test_granules_and_runs_add_up_to_what_the_policy_commits(policies, data):
    policy = data.draw(policies(RANGES))
    tokens = data.draw(st.integers(0, LONGEST))
    shapes = shapes_of(policy)
    for shape in shapes:
        runs = shape.runs(tokens)
        assert sum(end - first for first, end in runs) == shape.granules(tokens)
        assert all(a[1] < b[0] for a, b in pairwise(runs))
    granules = sum(shape.count * shape.granules(tokens) for shape in shapes)
    assert granules * policy.granule == policy.committed_bytes(tokens)


@given(st.data())
def test_the_longest_length_is_the_last_on_the_same_memory(policies, data):
    policy = data.draw(policies(RANGES))
    tokens = data.draw(st.integers(0, LONGEST))
    for shape in shapes_of(policy):
        longest = shape.longest(tokens)
        if longest is None:
            assert shape.granules(tokens) == shape.granules(10**6)
        else:
            assert longest >= tokens
            assert shape.granules(longest) == shape.granules(tokens) < shape.granules(longest + 1)


GRANULES = st.integers(1, 64)
ENTRIES = st.builds(EntryCount, st.none() | st.integers(1, LONGEST), st.integers(1, 3))


@given(
    st.builds(
        PackedRange,
        st.just(1),
        GRANULES,
        GRANULES,
        ENTRIES,
        st.integers(0, 99),
        st.just(0) | st.integers(1, 5),
    )
    | st.builds(
        lambda granule, row, heads, entries: StridedRange(
            1, granule, heads, row, entries, granule * row * LONGEST
        ),
        GRANULES,
        GRANULES,
        st.integers(1, 3),
        ENTRIES,
    )
)
def test_what_is_regular_grows_by_the_same_in_each_period(shape):
    period, entries = shape.period, shape.entries
    if period is None:
        assert isinstance(shape, StridedRange)
        return
    grown = {
        shape.granules(tokens + period) - shape.granules(tokens)
        for tokens in range(LONGEST)
        if entries.cap is None or tokens + period <= entries.cap
    }
    assert period > 0
    assert len(grown) <= 1


@given(st.data())
def test_whole_granules_are_full_stay_and_lie_in_what_is_committed(policies, data):
    policy = data.draw(policies(RANGES))
    tokens = data.draw(st.integers(0, LONGEST))
    for shape in shapes_of(policy):
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


@pytest.mark.parametrize(("cap", "every"), [(None, 1), (None, 3), (10, 1), (10, 4)])
def test_entries_and_their_inverse_agree(cap, every):
    entries = EntryCount(cap, every)
    for tokens in range(30):
        longest = entries.longest(entries.at(tokens))
        if longest is None:
            assert entries.at(tokens) == entries.at(99)
        else:
            assert entries.at(longest) == entries.at(tokens) < entries.at(longest + 1)


@pytest.mark.parametrize(("cap", "every"), [(None, 1), (None, 3), (10, 1), (10, 4)])
def test_sums_over_lengths_are_those_of_each_length(cap, every):
    entries = EntryCount(cap, every)
    for tokens in range(15):
        for more in range(15):
            lengths = range(tokens + 1, tokens + more + 1)
            assert entries.over(tokens, more) == sum(entries.at(length) for length in lengths)


@given(st.data())
def test_blocks_add_up_to_what_the_policy_commits(policies, data):
    policy = data.draw(policies(POOLS))
    tokens = data.draw(st.integers(0, LONGEST))
    granules = sum(
        pool.count
        * (
            policy.granules_for(pool.block_bytes, each.blocks(tokens))
            if pool.drops_straddling
            else -(-each.blocks(tokens) * pool.block_bytes // policy.granule)
        )
        for each in block_classes(policy)
        for pool in each.pools
    )
    assert granules * policy.granule == policy.committed_bytes(tokens)


@given(st.data())
def test_the_longest_length_is_the_last_on_the_same_blocks(policies, data):
    policy = data.draw(policies(POOLS))
    tokens = data.draw(st.integers(0, LONGEST))
    for each in block_classes(policy):
        longest = each.longest(tokens)
        if longest is None:
            assert each.blocks(tokens) == each.blocks(10**6)
        else:
            assert longest >= tokens
            assert each.blocks(longest) == each.blocks(tokens) < each.blocks(longest + 1)


@given(st.data())
def test_what_is_regular_takes_the_same_blocks_after_each_period(policies, data):
    for each in block_classes(data.draw(policies(POOLS))):
        if each.period is None:
            continue
        for before in range(each.longest(0), LONGEST - each.period, each.period):
            assert each.blocks(before + each.period) == each.blocks(before + 1)
            assert each.blocks(before + 1) == each.blocks(before) + 1
