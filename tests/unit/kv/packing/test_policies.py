"""Packing policies: worked floors, ranges and what they reserve, blocks lost at edges, and what holds for all."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.geometry import Extent, Span
from vmtool.kv.packing.policies import (
    POLICIES,
    FloorPerPage,
    HeadMajor,
    KvMerged,
    Paged,
    PerTensor,
    StraddleLoses,
    TokenMajor,
    make_policy,
)
from vmtool.units import KIB, MIB


def test_the_floor_of_llama_3_8b_is_one_granule_for_each_of_64_tensors(dense, cost_of):
    cost = cost_of(dense(32, 8, 128))
    assert PerTensor(cost, 2 * MIB).committed_bytes(1) == 128 * MIB
    assert PerTensor(cost, 2 * MIB).committed_bytes(1024) == 128 * MIB
    assert PerTensor(cost, 64 * KIB).committed_bytes(1) == 4 * MIB
    assert PerTensor(cost, 64 * KIB).committed_bytes(32) == 4 * MIB
    assert PerTensor(cost, 64 * KIB).committed_bytes(33) == 8 * MIB


def test_the_floors_of_a_14b_model_in_three_layouts(dense, cost_of):
    # Source: the memory architecture notes of onnx-genai, for Qwen2.5-14B on 2 MiB granules: 768
    # granules head-major with a full-context stride, 96 sequence-major, 1 token-major.
    cost = cost_of(dense(48, 8, 128))
    assert HeadMajor(cost, 2 * MIB, 32_768).committed_bytes(1) == 768 * 2 * MIB
    assert PerTensor(cost, 2 * MIB).committed_bytes(1) == 96 * 2 * MIB
    assert KvMerged(cost, 2 * MIB).committed_bytes(1) == 48 * 2 * MIB
    assert TokenMajor(cost, 2 * MIB).committed_bytes(1) == 2 * MIB


def test_a_head_fills_its_first_granule_after_8192_tokens_or_256(dense, cost_of):
    # Same source: granule / (head_dim * element) tokens; 8192 at 2 MiB, 256 at 64 KiB.
    cost = cost_of(dense(1, 1, 128))
    for granule, tokens in ((2 * MIB, 8192), (64 * KIB, 256)):
        policy = HeadMajor(cost, granule, 32_768)
        assert policy.committed_bytes(tokens) == 2 * granule
        assert policy.committed_bytes(tokens + 1) == 4 * granule


def test_windows_have_ranges_of_their_own_in_token_major(dense, cost_of):
    window = dense(3, 2, 64, extent=Extent(Span.WINDOW, 100))
    whole = dense(2, 2, 64)
    cost = cost_of(type(whole)("mixed", "test", (*whole.layers, *window.layers), None, "bf16"))
    assert TokenMajor(cost, MIB).range_count == 2
    assert KvMerged(cost, MIB).range_count == 5
    assert PerTensor(cost, MIB).range_count == 10


def test_reserved_is_what_the_longest_sequence_needs(dense, cost_of):
    cost = cost_of(dense(1, 8, 128))
    assert PerTensor(cost, 2 * MIB).reserved_bytes(131_072) == 512 * MIB
    head_major = HeadMajor(cost, 2 * MIB, 131_072)
    assert head_major.reserved_bytes(1) == head_major.committed_bytes(131_072) == 512 * MIB


def test_more_tokens_than_the_stride_are_refused(dense, cost_of):
    with pytest.raises(UsageError, match="1025 tokens do not fit into a stride of 1024"):
        HeadMajor(cost_of(dense(1, 8, 128)), 4096, 1024).committed_bytes(1025)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 60), st.integers(1, 300))
def test_head_major_touches_what_a_walk_over_every_byte_range_touches(
    dense, cost_of, heads, row, used, granule
):
    cost = cost_of(dense(1, heads, row), "fp8")
    stride = max(used, 37)
    touched = set()
    for head in range(heads):
        start = head * stride * row
        touched.update(range(start // granule, -(-(start + used * row) // granule)))
    expected = 2 * len(touched) if used else 0
    assert HeadMajor(cost, granule, stride).committed_bytes(used) == expected * granule


@pytest.mark.parametrize(
    ("model", "heads", "tokens"),
    [
        ("yi-6b tp1", 4, (64, 128, 256, 2048)),
        ("llama-3-8b tp1", 8, (32, 64, 128, 1024)),
        ("llama-3-8b tp2, yi-34b tp2", 4, (64, 128, 256, 2048)),
    ],
)
def test_tokens_per_page_of_vattention(dense, cost_of, model, heads, tokens):
    # Source: vAttention's formula, on its four page sizes.
    cost = cost_of(dense(32, heads, 128))
    _, tensor = next(cost.tensors())
    pages = (64 * KIB, 128 * KIB, 256 * KIB, 2 * MIB)
    assert tuple(FloorPerPage(cost, page).tokens_per_page(tensor) for page in pages) == tokens


def test_a_block_of_784_tokens_leaves_a_tail_in_kvcached(dense, cost_of):
    # 784 tokens of 4096 B are 3,211,264 B: on granules of 4 MiB one block fits, and 23.4 % is lost.
    cost = cost_of(dense(1, 8, 256))
    policy = StraddleLoses(cost, 4 * MIB, 784)
    assert policy.committed_bytes(784) == 2 * 4 * MIB
    lost = 1 - Fraction(784 * 4096, 4 * MIB)
    assert round(float(lost), 3) == 0.234


def test_straddling_blocks_are_lost_one_for_each_edge_they_cross(dense, cost_of):
    # Blocks of 3 on granules of 8: [0-2][3-5] 6-8 is cut [9-11][12-14] 15-17 is cut [18-20][21-23].
    cost = cost_of(dense(1, 1, 1, 1), "fp8")
    policy = StraddleLoses(cost, 8, 3)
    per_tensor = [policy.committed_bytes(3 * blocks) // 16 for blocks in range(8)]
    assert per_tensor == [0, 1, 1, 2, 2, 3, 3, 4]


def test_a_token_larger_than_the_page_is_refused_by_name(dense, cost_of):
    with pytest.raises(UsageError, match="a token of k is 5 KiB, more than a granule of 4 KiB"):
        FloorPerPage(cost_of(dense(32, 32, 80)), 4096)


def test_a_block_larger_than_the_granule_is_refused_by_name(dense, cost_of):
    with pytest.raises(UsageError, match="a block of 16 tokens of k is 32 KiB"):
        StraddleLoses(cost_of(dense(32, 8, 128)), 4096, 16)


@given(st.integers(1, 64), st.integers(0, 300), st.integers(1, 64))
def test_straddle_loses_counts_the_blocks_that_kvcached_would_hand_out(
    dense, cost_of, granule, blocks, block
):
    if block > granule:
        return
    usable = pages = 0
    while usable < blocks:
        # kvcached: the blocks of page p are ceil(p*P/b) .. floor((p+1)*P/b).
        usable += max((pages + 1) * granule // block - -(-pages * granule // block), 0)
        pages += 1
    cost = cost_of(dense(1, 1, 1, 1), "fp8")
    assert (
        StraddleLoses(cost, granule, block).committed_bytes(blocks * block) == 2 * pages * granule
    )


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
