"""Packing policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.packing.blocks import FloorPerPage, Paged, StraddleLoses
from vmtool.kv.packing.ranges import (
    HeadMajor,
    KvMerged,
    PerTensor,
    TokenMajor,
)

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.packing.ranges import Policy


#: Every policy, with what it does in a few words.
POLICIES: Final = {
    PerTensor.name: "a range for each tensor of each layer and sequence",
    KvMerged.name: "a range for each layer and sequence, K and V side by side",
    TokenMajor.name: "one range for each sequence: all layers of a token together",
    HeadMajor.name: "a range for each tensor, each head at a fixed stride of --context tokens",
    Paged.name: "blocks of --block tokens from a pool that all sequences share",
    FloorPerPage.name: "whole tokens in each granule, the tail is lost (vAttention)",
    StraddleLoses.name: "blocks from a pool; one that crosses a granule is lost (kvcached)",
}


def make_policy(
    name: str, cost: SequenceCost, granule: int, *, block: int, stride_tokens: int
) -> Policy:
    """Return the policy that *name* means.

    Args:
        name: One of :data:`POLICIES`.
        cost: What is laid out.
        granule: The granule in bytes.
        block: Tokens in a block, for ``paged`` and ``straddle-loses``.
        stride_tokens: The longest sequence, for ``head-major``.

    Raises:
        UsageError: If there is no such policy (with the closest names), or the policy cannot lay
            this model out on this granule.
    """
    for simple in (PerTensor, KvMerged, TokenMajor, FloorPerPage):
        if name == simple.name:
            return simple(cost, granule)
    for pool in (Paged, StraddleLoses):
        if name == pool.name:
            return pool(cost, granule, block)
    if name == HeadMajor.name:
        return HeadMajor(cost, granule, stride_tokens)
    raise unknown_policy(name)


def unknown_policy(name: str) -> UsageError:
    """Return the error for a *name* that no policy has, with the closest that do."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    close = get_close_matches(name[:40], POLICIES, n=2)
    return UsageError(
        f"unknown policy {name[:40]!r}",
        hint=f"did you mean {' or '.join(close)}?" if close else f"use {', '.join(POLICIES)}",
    )
