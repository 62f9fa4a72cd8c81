"""How the tokens of one tensor fall onto granules: how many fit, what is left, what tiles exactly."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, lcm
from typing import NamedTuple

from vmtool.errors import UsageError


class Fit(NamedTuple):
    """One tensor's tokens against one granule.

    Attributes:
        token_bytes: Bytes of one token in the tensor.
        granule_bytes: The granule.
        tokens: Whole tokens in a granule; 0 if a token is larger.
        tail_bytes: What is left of a granule behind them.
        granules_per_token: Granules that one token spans at least; 1 if it fits in one.
        tile_tokens: The fewest tokens whose bytes are a whole number of granules.
        tile_granules: That number.
    """

    token_bytes: int
    granule_bytes: int
    tokens: int
    tail_bytes: int
    granules_per_token: int
    tile_tokens: int
    tile_granules: int

    @property
    def tail(self) -> Fraction:
        """The tail as a part of the granule."""
        return Fraction(self.tail_bytes, self.granule_bytes)


def fit(token_bytes: int, granule_bytes: int) -> Fit:
    """Return how tokens of *token_bytes* fall onto granules of *granule_bytes*.

    Raises:
        UsageError: If either is not positive.
    """
    if token_bytes < 1 or granule_bytes < 1:
        raise UsageError(
            f"{token_bytes} B per token on granules of {granule_bytes} B: not positive"
        )
    tile = lcm(token_bytes, granule_bytes)
    return Fit(
        token_bytes,
        granule_bytes,
        *divmod(granule_bytes, token_bytes),
        granules_per_token=-(-token_bytes // granule_bytes),
        tile_tokens=tile // token_bytes,
        tile_granules=tile // granule_bytes,
    )


def tiles(block_tokens: int, token_bytes: int, granule_bytes: int) -> bool:
    """Return whether blocks laid end to end meet every granule's edge, or the reverse.

    True if a block is a whole number of granules or a granule a whole number of blocks: then no
    block shares a granule's edge with another.
    """
    block_bytes = block_tokens * token_bytes
    return granule_bytes % block_bytes == 0 or block_bytes % granule_bytes == 0


def suggest_block(block_tokens: int, token_bytes: int, granule_bytes: int) -> int:
    """Return the smallest block of at least *block_tokens* that tiles the granule.

    A block of 784 tokens of 4096 bytes becomes 1024 on 2 MiB granules: 4 MiB a block.
    """
    tile = fit(token_bytes, granule_bytes).tile_tokens
    whole_granules = -(-block_tokens // tile) * tile
    if granule_bytes % token_bytes:
        return whole_granules
    # The token divides the granule, so a smaller block may: any divisor of the tokens per granule.
    divisors = (d for k in range(1, isqrt(tile) + 1) if tile % k == 0 for d in (k, tile // k))
    return min((d for d in divisors if d >= block_tokens), default=whole_granules)
