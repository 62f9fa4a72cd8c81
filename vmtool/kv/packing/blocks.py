"""Packing policies of engines that hand out blocks or pages: paged, straddle-loses, floor-per-page."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, ClassVar

from vmtool.errors import UsageError
from vmtool.kv.packing.ranges import Loss
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.kv.cost import SequenceCost, TensorCost


class _PoolPolicy:
    """Sequences take blocks from pools, one pool for each tensor of each layer.

    States have pools too, in which those of all sequences lie end to end.

    Attributes:
        cost: What is laid out.
        granule: The granule in bytes.
        block: Tokens in a block.
    """

    def __init__(self, cost: SequenceCost, granule: int, block: int) -> None:
        self.cost = cost
        self.granule = granule
        self.block = block

    @property
    def max_tokens(self) -> int | None:
        return None

    def granules_for(self, block_bytes: int, blocks: int) -> int:
        """Return the granules that hold *blocks* blocks of a pool."""
        raise NotImplementedError

    def committed_bytes(self, tokens: int, sequences: int = 1) -> int:
        granules = 0
        for count, tensor in self.cost.tensors():
            blocks = sequences * -(-self.cost.tokens_held(tensor, tokens) // self.block)
            granules += count * self.granules_for(self.block * tensor.bytes_per_token, blocks)
        for layer in self.cost.layers:
            for state in layer.states:
                granules += layer.count * -(-sequences * state.nbytes // self.granule)
        return granules * self.granule

    def reserved_bytes(self, tokens: int, sequences: int = 1) -> int:
        return self.committed_bytes(tokens, sequences)


class Paged(_PoolPolicy):
    """Blocks lie end to end and may straddle granules; a pool is rounded up once."""

    name: ClassVar[str] = "paged"

    def granules_for(self, block_bytes: int, blocks: int) -> int:
        """Return the granules that hold *blocks* blocks of a pool."""
        return -(-blocks * block_bytes // self.granule)

    def loss(self) -> Loss:
        """Return the bound: a granule for each pool, and the last block of each sequence."""
        unfilled = sum(n * self.block * t.bytes_per_token for n, t in self.cost.tensors())
        return Loss(Fraction(0), _pools(self.cost) * self.granule + unfilled)


class StraddleLoses(_PoolPolicy):
    """Blocks lie end to end, and one that crosses a granule's edge is not used (kvcached).

    Source: kvcached's page allocator, which gives page *p* the blocks from ``ceil(p*P/b)`` up to
    ``floor((p+1)*P/b)``.
    """

    name: ClassVar[str] = "straddle-loses"

    def __init__(self, cost: SequenceCost, granule: int, block: int) -> None:
        super().__init__(cost, granule, block)
        for _, tensor in self.cost.tensors():
            block_bytes = self.block * tensor.bytes_per_token
            if block_bytes > self.granule:
                raise UsageError(
                    f"straddle-loses: a block of {self.block} tokens of {tensor.name} is"
                    f" {format_size(block_bytes)}, more than a granule of {format_size(self.granule)}",
                    hint="choose a smaller --block or a larger --granule",
                )

    def granules_for(self, block_bytes: int, blocks: int) -> int:
        """Return the granules that hold *blocks* blocks of a pool, none across an edge."""
        if not blocks:
            return 0
        low, high = 0, 1
        while self._usable(block_bytes, high) < blocks:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._usable(block_bytes, middle) < blocks:
                low = middle
            else:
                high = middle
        return high

    def _usable(self, block_bytes: int, granules: int) -> int:
        """Return the blocks that lie within one of the first *granules*."""
        inner_edges = granules - 1
        # A block is no larger than a granule, so each inner edge that is not also the edge of a
        # block cuts one block of its own.
        cut = inner_edges - inner_edges // _period(block_bytes, self.granule)
        return granules * self.granule // block_bytes - cut

    def loss(self) -> Loss:
        """Return the bound: the blocks that are cut, and a few granules for each pool."""
        return _proportional_loss(self.cost, self.granule, self._usable_per_granule, self.block)

    def _usable_per_granule(self, tensor: TensorCost) -> Fraction:
        block_bytes = self.block * tensor.bytes_per_token
        cut = 1 - Fraction(1, _period(block_bytes, self.granule))
        return Fraction(self.granule, block_bytes) - cut


class FloorPerPage:
    """Each tensor has pages with a whole number of tokens; the tail of each is lost (vAttention).

    Source: vAttention's ``tokens_per_page = page_size / (kv_heads * head_dim * element_size)``.

    Attributes:
        cost: What is laid out.
        granule: The page in bytes.
    """

    name: ClassVar[str] = "floor-per-page"

    def __init__(self, cost: SequenceCost, granule: int) -> None:
        self.cost = cost
        self.granule = granule
        for _, tensor in self.cost.tensors():
            if tensor.bytes_per_token > self.granule:
                raise UsageError(
                    f"floor-per-page: a token of {tensor.name} is"
                    f" {format_size(tensor.bytes_per_token)}, more than a granule of"
                    f" {format_size(self.granule)}",
                    hint="choose a larger --granule",
                )

    @property
    def max_tokens(self) -> int | None:
        """Any length fits."""
        return None

    def tokens_per_page(self, tensor: TensorCost) -> int:
        """Return the whole tokens of *tensor* in a page."""
        return self.granule // tensor.bytes_per_token

    def committed_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the bytes of the pages of every sequence."""
        pages = sum(
            count * -(-self.cost.tokens_held(tensor, tokens) // self.tokens_per_page(tensor))
            for count, tensor in self.cost.tensors()
        )
        for layer in self.cost.layers:
            pages += layer.count * sum(-(-s.nbytes // self.granule) for s in layer.states)
        return sequences * pages * self.granule

    def reserved_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the address space, which is what the pages of *tokens* take."""
        return self.committed_bytes(tokens, sequences)

    def loss(self) -> Loss:
        """Return the bound: the tails, and a page for each tensor and state."""
        return _proportional_loss(
            self.cost, self.granule, lambda tensor: Fraction(self.tokens_per_page(tensor)), 1
        )


def _period(block_bytes: int, granule: int) -> int:
    """Return how many granules lie between edges that granules and blocks share."""
    return block_bytes // gcd(block_bytes, granule)


def _pools(cost: SequenceCost) -> int:
    """Return the number of tensors and states of all layers."""
    return sum(layer.count * (len(layer.tensors) + len(layer.states)) for layer in cost.layers)


def _proportional_loss(
    cost: SequenceCost,
    granule: int,
    units_per_granule: Callable[[TensorCost], Fraction],
    unit: int,
) -> Loss:
    """Return the bound on waste where a part of every granule is lost.

    With *u* usable units of *unit* tokens in a granule on average, *n* held tokens need between
    ``(n/unit - 1)/u`` and ``(n/unit + 3)/u + 1`` granules (a unit not filled, and two that the
    average may be ahead or behind). What is capped counts as lost in full, since it does not grow.
    """
    per_token = Fraction(0)
    slack = Fraction(_pools(cost) * granule)
    for count, tensor in cost.tensors():
        usable = units_per_granule(tensor)
        # ceil() over ranks and over ratio: fewer than two tokens more than their quotient.
        slack += count * granule * (4 + Fraction(2, unit)) / usable
        if tensor.extent.grows:
            divided = tensor.extent.ratio * tensor.extent.ranks
            per_token += Fraction(count * granule, divided * unit) / usable
        else:
            held = cost.tokens_held(tensor, cost.saturation_tokens)
            slack += count * granule * Fraction(held, unit) / usable
    part = 1 - cost.slope / per_token if per_token else Fraction(0)
    return Loss(part, -(-slack.numerator // slack.denominator))
