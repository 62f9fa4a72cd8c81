"""Packing policies: how the tensors of a sequence become ranges of granules.

Each policy is one answer to "who shares a range with whom". A policy says how many bytes it commits
for sequences of a length, how much address space it reserves for them, and how much it can lose, so
that the search for the length where waste ends is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

from vmtool.errors import UsageError
from vmtool.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.kv.cost import SequenceCost, TensorCost
    from vmtool.kv.geometry import Extent


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


# ---- ranges of one sequence -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """Equal ranges of one sequence: what each holds for a token, and what it holds anyway."""

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
