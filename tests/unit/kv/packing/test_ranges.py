"""Ranges of tensors, layers or heads: worked floors, and what a sequence reserves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.geometry import Extent, Span
from vmtool.kv.packing.ranges import (
    HeadMajor,
    KvMerged,
    PerTensor,
    TokenMajor,
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
