"""The bytes of tokens by length."""

from hypothesis import given
from hypothesis import strategies as st

from vmtool.replay.live_bytes import UsedBytes


@given(st.data())
def test_used_bytes_and_their_sums_match_the_cost(replay_costs, data):
    cost = data.draw(replay_costs)
    used = UsedBytes(cost)
    tokens, more = data.draw(st.integers(0, 400)), data.draw(st.integers(0, 300))
    assert used.at(tokens) == cost.bytes_for(tokens)
    lengths = range(tokens + 1, tokens + more + 1)
    assert used.over(tokens, more) == sum(cost.bytes_for(length) for length in lengths)
