"""Blocks in pools: how many a page holds, and those that are lost at its edges."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.packing.blocks import FloorPerPage, StraddleLoses
from vmtool.units import KIB, MIB


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
