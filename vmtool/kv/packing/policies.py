"""Packing policies: how the tensors of a sequence become ranges of granules, or blocks of pools.

Each policy is one answer to "who shares a range with whom". A policy says how many bytes it commits
for sequences of a length, how much address space it reserves for them, and how much it can lose, so
that the search for the length where waste ends is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from vmtool.errors import UsageError
from vmtool.units import align_up, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vmtool.kv.geometry import Extent
    from vmtool.kv.sequence_cost import SequenceCost, TensorCost


@dataclass(frozen=True, slots=True)
class Loss:
    """A bound on waste: ``waste(n) <= part * committed(n) + slack_bytes`` for every length.

    Attributes:
        part: The part of what is committed that is lost however long the sequence is.
        slack_bytes: What may be lost besides.
    """

    part: Fraction
    slack_bytes: int


class Policy(Protocol):
    """A way to lay sequences out on granules."""

    name: ClassVar[str]

    @property
    def granule(self) -> int:
        """The granule in bytes."""

    @property
    def cost(self) -> SequenceCost:
        """What is laid out."""

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the layout can hold, or ``None`` for any."""

    def committed_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the bytes committed for *sequences* of *tokens* each."""

    def reserved_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the address space for *sequences* that may grow to *tokens* each."""

    def loss(self) -> Loss:
        """Return the bound on the waste of one sequence."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Equal ranges of one sequence: the bytes that each holds per token, and whatever the length."""

    copies: int
    token_bytes: int
    extent: Extent | None
    fixed_bytes: int = 0

    def bytes_held(self, tokens: int, in_flight: int) -> int:
        grown = self.extent.tokens_held(tokens, in_flight) if self.extent else 0
        return self.fixed_bytes + self.token_bytes * grown


class _RangePolicy:
    """Each sequence has ranges of its own, and each range is rounded up to a granule."""

    def __init__(self, cost: SequenceCost, granule: int) -> None:
        self.cost = cost
        self.granule = granule

    def _ranges(self) -> tuple[_Range, ...]:
        raise NotImplementedError

    @cached_property
    def ranges(self) -> tuple[_Range, ...]:
        """The ranges of one sequence."""
        return self._ranges()

    @property
    def range_count(self) -> int:
        """How many ranges one sequence has."""
        return sum(item.copies for item in self.ranges)

    @property
    def max_tokens(self) -> int | None:
        return None

    def committed_bytes(self, tokens: int, sequences: int = 1) -> int:
        in_flight = self.cost.in_flight
        return sequences * sum(
            item.copies * align_up(item.bytes_held(tokens, in_flight), self.granule)
            for item in self.ranges
        )

    def reserved_bytes(self, tokens: int, sequences: int = 1) -> int:
        return self.committed_bytes(tokens, sequences)

    def loss(self) -> Loss:
        return Loss(Fraction(0), self.range_count * self.granule)


class PerTensor(_RangePolicy):
    """One range for each tensor and state of each layer."""

    name: ClassVar[str] = "per-tensor"

    def _ranges(self) -> tuple[_Range, ...]:
        tensors = [_Range(n, t.bytes_per_token, t.extent) for n, t in self.cost.tensors()]
        states = [
            _Range(layer.count, 0, None, state.nbytes)
            for layer in self.cost.layers
            for state in layer.states
        ]
        return (*tensors, *states)


class KvMerged(_RangePolicy):
    """One range for each layer: K and V side by side; tensors of another extent, and states, apart."""

    name: ClassVar[str] = "kv-merged"

    def _ranges(self) -> tuple[_Range, ...]:
        found: list[_Range] = []
        for layer in self.cost.layers:
            found += _by_extent((layer.count, 1, t) for t in layer.tensors)
            if layer.states:
                found.append(_Range(layer.count, 0, None, layer.state_bytes))
        return tuple(found)


class TokenMajor(_RangePolicy):
    """One range for all layers that keep the same tokens, and one for all states."""

    name: ClassVar[str] = "token-major"

    def _ranges(self) -> tuple[_Range, ...]:
        found = _by_extent((1, n, t) for n, t in self.cost.tensors())
        total = sum(layer.count * layer.state_bytes for layer in self.cost.layers)
        if total:
            found.append(_Range(1, 0, None, total))
        return tuple(found)


def _by_extent(tensors: Iterable[tuple[int, int, TensorCost]]) -> list[_Range]:
    """Return ranges that merge tensors of equal extent.

    Args:
        tensors: The number of equal ranges, how often the tensor is in each, and the tensor.
    """
    merged: dict[Extent, tuple[int, int]] = {}
    for ranges, times, tensor in tensors:
        _, so_far = merged.get(tensor.extent, (0, 0))
        merged[tensor.extent] = (ranges, so_far + times * tensor.bytes_per_token)
    return [_Range(count, token_bytes, extent) for extent, (count, token_bytes) in merged.items()]


class HeadMajor:
    """One range for each tensor, in which each head has its place at a fixed stride.

    The stride is what the longest sequence needs, so a short sequence touches a granule for each
    head and not one for each tensor.

    Attributes:
        cost: What is laid out.
        granule: The granule in bytes.
        stride_tokens: The tokens that each head has room for.
    """

    name: ClassVar[str] = "head-major"

    def __init__(self, cost: SequenceCost, granule: int, stride_tokens: int) -> None:
        self.cost = cost
        self.granule = granule
        self.stride_tokens = stride_tokens

    @property
    def max_tokens(self) -> int | None:
        """Return the stride."""
        return self.stride_tokens

    def committed_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the granules that the heads' parts touch, in bytes.

        Raises:
            UsageError: If *tokens* is more than the stride.
        """
        if tokens > self.stride_tokens:
            raise UsageError(
                f"{tokens} tokens do not fit into a stride of {self.stride_tokens} tokens"
            )
        touched = 0
        for count, tensor in self.cost.tensors():
            stride = tensor.row_bytes * self.cost.tokens_held(tensor, self.stride_tokens)
            used = tensor.row_bytes * self.cost.tokens_held(tensor, tokens)
            touched += count * _granules_touched(tensor.heads, stride, used, self.granule)
        return sequences * (touched * self.granule + self._state_bytes)

    def reserved_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Return the address space of whole strides, whatever *tokens* is."""
        del tokens
        return self.committed_bytes(self.stride_tokens, sequences)

    def loss(self) -> Loss:
        """Return the bound: a head's part can begin and end inside a granule."""
        heads = sum(count * tensor.heads for count, tensor in self.cost.tensors())
        states = sum(layer.count * len(layer.states) for layer in self.cost.layers)
        return Loss(Fraction(0), (2 * heads + states) * self.granule)

    @cached_property
    def _state_bytes(self) -> int:
        return sum(
            layer.count * align_up(state.nbytes, self.granule)
            for layer in self.cost.layers
            for state in layer.states
        )


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


def _granules_touched(parts: int, stride: int, used: int, granule: int) -> int:
    """Return how many granules *parts* spans of *used* bytes, *stride* bytes apart, touch."""
    if not used:
        return 0
    if stride - used < granule:
        # No whole granule fits between two spans, so together they touch all from end to end.
        return -(-((parts - 1) * stride + used) // granule)
    begins = _sum_of_quotients(parts, granule, stride, 0)
    ends = _sum_of_quotients(parts, granule, stride, used + granule - 1)
    return ends - begins


def _sum_of_quotients(terms: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of ``(start + i * step) // divisor`` for *i* from 0 to *terms* - 1.

    In logarithmic time: whole quotients are taken out, and what remains is the number of lattice
    points under a line, which are counted along the other axis with the roles exchanged.
    """
    total = 0
    while True:
        total += terms * (terms - 1) // 2 * (step // divisor) + terms * (start // divisor)
        step, start = step % divisor, start % divisor
        highest = step * terms + start
        if highest < divisor:
            return total
        terms, start = divmod(highest, divisor)
        step, divisor = divisor, step


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
