"""Capacity is the exact inverse of cost; from which length waste is small."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.geometry import Extent, LayerKind, Span
from vmtool.kv.packing.capacity import (
    Capacity,
    Limit,
    largest,
    longest_sequence,
    most_sequences,
    waste_at,
    waste_ends,
)
from vmtool.kv.packing.policies import (
    POLICIES,
    FloorPerPage,
    HeadMajor,
    PerTensor,
    TokenMajor,
    make_policy,
)
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.units import GIB, KIB, MIB

GRANULES = st.sampled_from([1, 100, 4 * KIB, 64 * KIB])
STRIDE = 3000


def draw_policy(costs, data):
    """Return any policy that can lay a random model out."""
    cost = data.draw(costs)
    granule = data.draw(GRANULES)
    block = data.draw(st.integers(1, 40))
    try:
        name = data.draw(st.sampled_from(list(POLICIES)))
        return make_policy(name, cost, granule, block=block, stride_tokens=STRIDE)
    except UsageError:
        return PerTensor(cost, granule)


# ---- the inverse ----------------------------------------------------------------------------


@given(st.data(), st.integers(0, 1 << 31), st.integers(1, 5))
def test_the_longest_sequence_fits_and_one_more_token_does_not(costs, data, budget, sequences):
    policy = draw_policy(costs, data)
    found = longest_sequence(policy, budget, sequences=sequences)
    if found.fits is None:
        assert policy.committed_bytes(1 << 60, sequences) <= budget
        return
    if found.fits:
        assert policy.committed_bytes(found.fits, sequences) == found.committed_bytes <= budget
    if found.limit is Limit.STRIDE:
        assert found.fits == STRIDE
    else:
        assert policy.committed_bytes(found.fits + 1, sequences) > budget
    assert (found.fits == 0) == (found.limit is Limit.FLOOR)


@given(st.data(), st.integers(0, 1 << 31), st.integers(1, STRIDE))
def test_the_most_sequences_fit_and_one_more_does_not(costs, data, budget, tokens):
    policy = draw_policy(costs, data)
    count = most_sequences(policy, budget, tokens).fits
    assert count is not None
    assert count == 0 or policy.committed_bytes(tokens, count) <= budget
    assert policy.committed_bytes(tokens, count + 1) > budget


@given(st.data(), st.integers(0, 1 << 30), st.integers(0, 1 << 28), st.integers(1, 4))
def test_answers_are_monotone(costs, data, budget, more, sequences):
    policy = draw_policy(costs, data)

    def tokens(budget, sequences):
        count = longest_sequence(policy, budget, sequences=sequences).fits
        return 1 << 70 if count is None else count

    assert tokens(budget, sequences) <= tokens(budget + more, sequences)
    assert tokens(budget, sequences + 1) <= tokens(budget, sequences)
    assert most_sequences(policy, budget, 100).fits >= most_sequences(policy, budget, 200).fits


@given(st.data(), st.integers(1, 3000), st.integers(1, 64), st.integers(2, 9))
def test_larger_granules_and_more_tokens_in_flight_never_commit_less(
    costs, data, tokens, in_flight, times
):
    cost = data.draw(costs)
    for policy in (PerTensor, TokenMajor):
        committed = policy(cost, 1000).committed_bytes(tokens)
        assert policy(cost, 1000 * times).committed_bytes(tokens) >= committed
        wider = replace(cost, in_flight=cost.in_flight + in_flight)
        assert policy(wider, 1000).committed_bytes(tokens) >= committed


def test_wider_formats_never_hold_more_tokens_and_more_ranks_never_fewer(dense, cost_of):
    def tokens(geometry, dtype):
        return longest_sequence(PerTensor(cost_of(geometry, dtype), 64 * KIB), 8 * GIB).fits

    model = dense(32, 8, 128)
    formats = ("fp32", "bf16", "q8_0", "int8", "fp8", "q5_1", "q5_0", "q4_1", "q4_0", "int4")
    held = [tokens(model, name) for name in formats]
    assert held == sorted(held)
    by_ranks = [tokens(model.shard(tp=tp, pp=pp), "bf16") for tp in (1, 2, 8, 16) for pp in (1, 4)]
    assert by_ranks[0] < by_ranks[2] < by_ranks[4] == by_ranks[6]
    assert all(one < four for one, four in zip(by_ranks[::2], by_ranks[1::2], strict=True))


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 50), st.integers(1, 1 << 20))
def test_largest_inverts_a_division(step, budget, most):
    assert largest(lambda n: n * step, budget) == budget // step
    assert largest(lambda n: n * step, budget, most=most) == min(budget // step, most)


# ---- worked numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib", "dtype", "tokens"), [("2.90", "bf16", 27_142), ("2.90", "fp8", 54_284)]
)
def test_tokens_that_an_engine_reported_for_qwen3_1_7b(dense, cost_of, gib, dtype, tokens):
    # Source: FreeToken issue 126; the budget is known to two decimals of a GiB only.
    policy = TokenMajor(cost_of(dense(28, 8, 128), dtype), 1)
    low, high = (int((Fraction(gib) + d * Fraction(5, 1000)) * GIB) for d in (-1, 1))
    assert longest_sequence(policy, low).fits <= tokens <= longest_sequence(policy, high).fits


def test_the_model_limits_before_the_budget_does(dense, cost_of):
    policy = PerTensor(cost_of(dense(32, 8, 128)), 2 * MIB)
    assert longest_sequence(policy, 16 * GIB).fits == 131_072
    found = longest_sequence(policy, 16 * GIB, context=8192)
    assert (found.fits, found.limit) == (8192, Limit.CONTEXT)


def test_a_stride_below_the_models_context_is_what_limits(dense, cost_of):
    policy = HeadMajor(cost_of(dense(32, 8, 128)), 2 * MIB, 4096)
    assert longest_sequence(policy, 16 * GIB).limit is Limit.STRIDE
    for context, limit in ((8192, Limit.STRIDE), (4096, Limit.CONTEXT)):
        found = longest_sequence(policy, 16 * GIB, context=context)
        assert (found.fits, found.limit) == (4096, limit)


def test_a_budget_below_the_floor_holds_nothing_and_says_what_the_first_token_takes(dense, cost_of):
    policy = PerTensor(cost_of(dense(32, 8, 128)), 2 * MIB)
    found = longest_sequence(policy, 128 * MIB - 1)
    assert (found.fits, found.limit, found.committed_bytes) == (0, Limit.FLOOR, 128 * MIB)
    assert longest_sequence(policy, 128 * MIB).fits == 1024
    assert most_sequences(policy, 127 * MIB, 5).limit is Limit.FLOOR
    assert most_sequences(policy, 0, 5).fits == 0


def test_a_model_of_windows_alone_holds_any_length(dense, cost_of):
    # StarCoder2: 40 layers, 4 heads of 128, a window of 4096 in every layer.
    window = Extent(Span.WINDOW, 4096)
    policy = PerTensor(cost_of(dense(40, 4, 128, extent=window, kind=LayerKind.WINDOW)), 2 * MIB)
    found = longest_sequence(policy, GIB)
    assert (found.fits, found.limit) == (None, Limit.NONE)
    assert found.committed_bytes == 40 * 2 * 4 * MIB
    assert longest_sequence(policy, GIB, context=16_384).fits == 16_384
    assert longest_sequence(policy, 40 * 2 * 4 * MIB - 1).fits == 2048


def test_a_model_that_keeps_nothing_fits_any_number_of_times():
    policy = PerTensor(SequenceCost(()), 2 * MIB)
    assert most_sequences(policy, 0, 5) == Capacity(None, Limit.NONE, 0)
    assert longest_sequence(policy, 0).fits is None
    assert waste_ends(policy, Fraction(1, 10)) is None


def test_a_window_larger_than_the_sequence_costs_as_full_attention_does(dense, cost_of):
    window = Extent(Span.WINDOW, 1 << 20)
    assert cost_of(dense(2, 8, 128, extent=window)).bytes_for(5000) == cost_of(
        dense(2, 8, 128)
    ).bytes_for(5000)


@pytest.mark.parametrize("arguments", [{"sequences": 0}, {"sequences": -1}, {"context": 0}])
def test_counts_must_be_positive(dense, cost_of, arguments):
    with pytest.raises(UsageError, match="it must be 1 or more"):
        longest_sequence(PerTensor(cost_of(dense(1, 1, 64)), 4096), GIB, **arguments)


# ---- waste ----------------------------------------------------------------------------------


def test_waste_of_one_token_in_128_granules(dense, cost_of):
    found = waste_at(PerTensor(cost_of(dense(32, 8, 128)), 2 * MIB), 1)
    assert (found.used_bytes, found.committed_bytes) == (131_072, 128 * MIB)
    assert found.wasted_bytes == 128 * MIB - 131_072


def test_waste_ends_where_the_last_bad_length_is(dense, cost_of):
    # 1024 tokens fill a granule; after k full ones, n = 1024 k + 1 commits k + 1. With 8 full the
    # waste is 1023 / 9216 = 11.1 %; 8 granules and 103 tokens are the first that never go back.
    policy = PerTensor(cost_of(dense(32, 8, 128)), 2 * MIB)
    found = waste_ends(policy, Fraction(1, 10))
    assert found == 8 * 1024 + 103
    assert waste_at(policy, 8192).wasted_bytes == 0  # low, but not for good


@given(st.data(), st.integers(2, 60))
def test_waste_ends_agrees_with_a_walk_over_every_length(costs, data, percent):
    policy = draw_policy(costs, data)
    threshold = Fraction(percent, 100)
    found = waste_ends(policy, threshold)

    def low(n):
        waste = waste_at(policy, n)
        return waste.wasted_bytes < threshold * waste.committed_bytes

    last = policy.max_tokens
    if found is None:
        assert last is None or not low(last)
        return
    longest = found + 500 if last is None else last
    assert all(low(n) for n in range(found, longest + 1, 7))
    assert found == 1 or not low(found - 1)


def test_waste_never_ends_where_each_page_loses_more(dense, cost_of):
    # Phi-2 on 64 KiB pages: 12 tokens of 5120 B, and 6.25 % of every page is lost.
    policy = FloorPerPage(cost_of(dense(32, 32, 80)), 64 * KIB)
    assert waste_ends(policy, Fraction(625, 10_000)) is None
    assert waste_ends(policy, Fraction(7, 100)) is not None


def test_a_short_stride_may_never_be_filled(dense, cost_of):
    policy = HeadMajor(cost_of(dense(1, 8, 128)), 2 * MIB, 8192)
    assert waste_ends(policy, Fraction(1, 10)) == 8192 - 819
    assert waste_ends(HeadMajor(cost_of(dense(1, 1, 128)), 2 * MIB, 4096), Fraction(1, 10)) is None


@pytest.mark.parametrize("threshold", [Fraction(0), Fraction(1), Fraction(-1), Fraction(2)])
def test_a_threshold_is_a_part(dense, cost_of, threshold):
    with pytest.raises(UsageError, match="above 0 % and below 100 %"):
        waste_ends(PerTensor(cost_of(dense(1, 1, 64)), 4096), threshold)
