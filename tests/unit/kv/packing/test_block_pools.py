"""Which blocks a sequence needs at which length, compared with the policies of block pools."""

from hypothesis import given
from hypothesis import strategies as st

from vmtool.kv.packing.block_pools import block_classes

LONGEST = 400
NAMES = ["paged", "straddle-loses"]


@given(st.data())
def test_blocks_add_up_to_what_the_policy_commits(policies, data):
    policy = data.draw(policies(NAMES))
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
    policy = data.draw(policies(NAMES))
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
    for each in block_classes(data.draw(policies(NAMES))):
        if each.period is None:
            continue
        for before in range(each.longest(0), LONGEST - each.period, each.period):
            assert each.blocks(before + each.period) == each.blocks(before + 1)
            assert each.blocks(before + 1) == each.blocks(before) + 1
