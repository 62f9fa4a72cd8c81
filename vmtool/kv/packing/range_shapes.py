"""How the rows of a sequence are placed in its range: one after the other, or a stride apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Protocol

from vmtool.kv.packing.policies import (
    FloorPerPage,
    HeadMajor,
    KvMerged,
    PerTensor,
    TokenMajor,
)

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.packing.granule_runs import Run
    from vmtool.kv.packing.policies import Policy

from vmtool.kv.packing.entry_counts import NO_ENTRIES, EntryCount


class Shape(Protocol):
    """Equal ranges that each sequence has, and how they fill."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def entries(self) -> EntryCount:
        """How many entries one has."""

    def granules(self, tokens: int) -> int:
        """Return the granules of one range for a sequence of *tokens*."""

    def longest(self, tokens: int) -> int | None:
        """Return how far a sequence of *tokens* can grow on the same granules; ``None``: on and on."""

    def runs(self, tokens: int) -> tuple[Run, ...]:
        """Return which granules those are, ascending and disjoint."""

    def full_runs(self, tokens: int) -> tuple[Run, ...]:
        """Return those that the first *tokens* alone fill, which several sequences can share."""

    def full_bytes(self, tokens: int) -> int:
        """Return the bytes of tokens in the granules of :meth:`full_runs`."""

    @property
    def period(self) -> int | None:
        """After how many tokens the same is added again, below a cap; ``None`` if irregularly."""


@dataclass(frozen=True)
class PackedRange:
    """Entries one after the other from the front, after *fixed_bytes*.

    Attributes:
        count: Equal ranges of one sequence.
        granule: In bytes.
        entry_bytes: Bytes of an entry.
        entries: How many entries there are.
        fixed_bytes: Bytes besides.
        per_granule: Entries in a granule where none may cross an edge; 0 where they may.
    """

    count: int
    granule: int
    entry_bytes: int
    entries: EntryCount
    fixed_bytes: int = 0
    per_granule: int = 0

    def granules(self, tokens: int) -> int:
        """See :class:`Shape`."""
        entries = self.entries.at(tokens)
        if self.per_granule:
            return -(-entries // self.per_granule)
        return -(-(self.fixed_bytes + self.entry_bytes * entries) // self.granule)

    def longest(self, tokens: int) -> int | None:
        """See :class:`Shape`."""
        granules = self.granules(tokens)
        if self.per_granule:
            return self.entries.longest(granules * self.per_granule)
        if not self.entry_bytes:
            return None
        return self.entries.longest(
            (granules * self.granule - self.fixed_bytes) // self.entry_bytes
        )

    def runs(self, tokens: int) -> tuple[Run, ...]:
        """See :class:`Shape`."""
        granules = self.granules(tokens)
        return ((0, granules),) if granules else ()

    def full_runs(self, tokens: int) -> tuple[Run, ...]:
        """See :class:`Shape`."""
        granules = self._full_granules(tokens)
        return ((0, granules),) if granules else ()

    def full_bytes(self, tokens: int) -> int:
        """See :class:`Shape`."""
        size = self.per_granule * self.entry_bytes if self.per_granule else self.granule
        return self._full_granules(tokens) * size

    @property
    def period(self) -> int | None:
        """See :class:`Shape`."""
        entries = self.per_granule or self.granule // gcd(self.entry_bytes, self.granule)
        return entries * self.entries.every

    def _full_granules(self, tokens: int) -> int:
        if not self.entries.shared or self.fixed_bytes:
            return 0
        entries = self.entries.at(tokens // self.entries.every * self.entries.every)
        if self.per_granule:
            return entries // self.per_granule
        return entries * self.entry_bytes // self.granule


@dataclass(frozen=True)
class StridedRange:
    """A part for each head at a fixed stride, each filled from its own front.

    Attributes:
        count: Equal ranges of one sequence.
        granule: In bytes.
        heads: Parts of a range.
        row_bytes: Bytes of an entry of one head.
        entries: How many entries there are.
        stride: Bytes from one head's part to the next.
    """

    count: int
    granule: int
    heads: int
    row_bytes: int
    entries: EntryCount
    stride: int

    def granules(self, tokens: int) -> int:
        """See :class:`Shape`."""
        return sum(end - first for first, end in self.runs(tokens))

    def longest(self, tokens: int) -> int | None:
        """See :class:`Shape`."""
        granules = self.granules(tokens)
        while True:
            used = self.row_bytes * self.entries.at(tokens)
            # Until one of the heads enters a granule, which another one may have already.
            room = min(-(at + used) % self.granule for at in self._places) if used else 0
            found = self.entries.longest((used + room) // self.row_bytes)
            if found is None or self.granules(found + 1) != granules:
                return found
            tokens = found + 1

    def runs(self, tokens: int) -> tuple[Run, ...]:
        """See :class:`Shape`."""
        used = self.row_bytes * self.entries.at(tokens)
        if not used:
            return ()
        joined: list[Run] = []
        for head in range(self.heads):
            at = head * self.stride
            first, end = at // self.granule, -(-(at + used) // self.granule)
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((first, end))
        return tuple(joined)

    def full_runs(self, tokens: int) -> tuple[Run, ...]:
        """See :class:`Shape`."""
        if not self.entries.shared:
            return ()
        used = self.row_bytes * self.entries.at(tokens // self.entries.every * self.entries.every)
        found = []
        for head in range(self.heads):
            at = head * self.stride
            first, end = -(-at // self.granule), (at + used) // self.granule
            if first < end:
                found.append((first, end))
        return tuple(found)

    def full_bytes(self, tokens: int) -> int:
        """See :class:`Shape`."""
        return sum(end - first for first, end in self.full_runs(tokens)) * self.granule

    @property
    def period(self) -> int | None:
        """See :class:`Shape`."""
        if self.stride % self.granule or self.stride <= max(self.granule, self.row_bytes):
            return None
        return self.granule // gcd(self.row_bytes, self.granule) * self.entries.every

    @cached_property
    def _places(self) -> frozenset[int]:
        """Where in a granule the heads' parts begin."""
        period = self.granule // gcd(self.stride, self.granule)
        return frozenset(
            head * self.stride % self.granule for head in range(min(self.heads, period))
        )


def shapes_of(policy: Policy) -> tuple[Shape, ...] | None:
    """Return the ranges that *policy* gives each sequence; ``None`` if it shares pools instead."""
    if isinstance(policy, (PerTensor, KvMerged, TokenMajor)):
        found: list[PackedRange | StridedRange] = [
            PackedRange(
                item.copies,
                policy.granule,
                item.token_bytes,
                EntryCount.of(item.extent, policy.cost.in_flight) if item.extent else NO_ENTRIES,
                item.fixed_bytes,
            )
            for item in policy.ranges
        ]
    elif isinstance(policy, FloorPerPage):
        found = [
            PackedRange(
                count,
                policy.granule,
                tensor.bytes_per_token,
                EntryCount.of(tensor.extent, policy.cost.in_flight),
                per_granule=policy.tokens_per_page(tensor),
            )
            for count, tensor in policy.cost.tensors()
        ]
        found += _states(policy.cost, policy.granule)
    elif isinstance(policy, HeadMajor):
        found = [
            StridedRange(
                count,
                policy.granule,
                tensor.heads,
                tensor.row_bytes,
                EntryCount.of(tensor.extent, policy.cost.in_flight),
                tensor.row_bytes * policy.cost.tokens_held(tensor, policy.stride_tokens),
            )
            for count, tensor in policy.cost.tensors()
        ]
        found += _states(policy.cost, policy.granule)
    else:
        return None
    return _merged(found)


def _states(cost: SequenceCost, granule: int) -> list[PackedRange | StridedRange]:
    return [
        PackedRange(layer.count, granule, 0, NO_ENTRIES, state.nbytes)
        for layer in cost.layers
        for state in layer.states
    ]


def _merged(shapes: list[PackedRange | StridedRange]) -> tuple[Shape, ...]:
    """Return *shapes* with those that differ only in their count as one."""
    counts: dict[PackedRange | StridedRange, int] = {}
    for shape in shapes:
        alike = replace(shape, count=1)
        counts[alike] = counts.get(alike, 0) + shape.count
    return tuple(replace(shape, count=count) for shape, count in counts.items())
