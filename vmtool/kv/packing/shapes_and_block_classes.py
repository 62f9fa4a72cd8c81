"""The blocks or ranges that a policy gives each sequence, and how they fill as it grows.

A packing policy says how many bytes a length commits. A replay also needs how far a sequence can grow
before the next granule, so that it can go from one to the next and not from token to token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from vmtool.kv.geometry import Span
from vmtool.kv.packing.policies import (
    FloorPerPage,
    HeadMajor,
    KvMerged,
    Paged,
    PerTensor,
    StraddleLoses,
    TokenMajor,
)

if TYPE_CHECKING:
    from vmtool.kv.geometry import Extent
    from vmtool.kv.packing.policies import Policy
    from vmtool.kv.sequence_cost import SequenceCost


@dataclass(frozen=True, slots=True)
class EntryCount:
    """How many entries a tensor holds for a length: ``ceil(min(tokens, cap) / every)``.

    Attributes:
        cap: Tokens beyond which nothing is added; ``None`` where each token counts.
        every: Tokens for each entry.
        fixed: Entries whatever the length; the other two do not matter then.
    """

    cap: int | None = None
    every: int = 1
    fixed: int | None = None

    @classmethod
    def of(cls, extent: Extent, in_flight: int) -> EntryCount:
        """Return the closed form of ``extent.tokens_held(n, in_flight)``."""
        if extent.span is Span.FIXED:
            return cls(fixed=extent.size)
        every = extent.ratio * extent.ranks
        if extent.span is Span.WINDOW:
            return cls(extent.size - 1 + max(in_flight, 1), every)
        if extent.span is Span.CHUNK:
            return cls(extent.size + in_flight, every)
        return cls(None, every)

    def at(self, tokens: int) -> int:
        """Return the entries for *tokens*."""
        if self.fixed is not None:
            return self.fixed
        if self.cap is not None and tokens > self.cap:
            tokens = self.cap
        return -(-tokens // self.every)

    def over(self, tokens: int, more: int) -> int:
        """Return the sum of the entries for the *more* lengths after *tokens*."""
        return self._until(tokens + more) - self._until(tokens)

    def _until(self, tokens: int) -> int:
        """Return the sum of the entries for every length from 1 to *tokens*."""
        if self.fixed is not None:
            return self.fixed * tokens
        beyond = 0
        if self.cap is not None and tokens > self.cap:
            beyond = (tokens - self.cap) * -(-self.cap // self.every)
            tokens = self.cap
        whole, rest = divmod(tokens, self.every)
        return self.every * whole * (whole + 1) // 2 + rest * (whole + 1) + beyond

    def longest(self, entries: int) -> int | None:
        """Return the largest length that needs no more than *entries*; ``None`` for any length."""
        if self.fixed is not None or (
            self.cap is not None and entries >= -(-self.cap // self.every)
        ):
            return None
        return entries * self.every

    def period(self, entries: int) -> int | None:
        """Return the tokens after which there are always *entries* more; ``None`` if that varies."""
        return entries * self.every if self.shared else None

    @property
    def shared(self) -> bool:
        """Whether what early tokens filled stays as it is, so that others can read it too."""
        return self.fixed is None and self.cap is None


#: The entries of a range that has none.
_NO_ENTRIES: Final = EntryCount(fixed=0)
#: A half-open range of granules in one range of a sequence, ``(first, end)``.
Run: TypeAlias = tuple[int, int]


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
                EntryCount.of(item.extent, policy.cost.in_flight) if item.extent else _NO_ENTRIES,
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
        PackedRange(layer.count, granule, 0, _NO_ENTRIES, state.nbytes)
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


def runs_without(runs: tuple[Run, ...], taken: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the granules of *runs* that are not in *taken*, both ascending."""
    if not taken:
        return runs
    if len(runs) == len(taken) == 1 and runs[0][0] == taken[0][0]:  # filled from the front
        low, high = taken[0][1], runs[0][1]
        return ((low, high),) if low < high else ()
    found: list[Run] = []
    taken_at = iter((*taken, (1 << 64, 1 << 64)))
    start, end = next(taken_at)
    for first, last in runs:
        at = first
        while end <= at:
            start, end = next(taken_at)
        while start < last:
            if at < start:
                found.append((at, start))
            at = end
            if end >= last:
                break
            start, end = next(taken_at)
        if at < last:
            found.append((at, last))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BlockPool:
    """Equal pools of blocks.

    Attributes:
        count: How many there are.
        block_bytes: Bytes of a block.
        drops_straddling: Whether a block that would cross a granule's edge is left out.
    """

    count: int
    block_bytes: int
    drops_straddling: bool


@dataclass(frozen=True, slots=True)
class BlockClass:
    """Pools from which a sequence takes the same blocks: the block table has one number for all.

    Attributes:
        pools: The pools, those of one size together.
        entries: How many entries a sequence has.
        block: Entries of a block.
    """

    pools: tuple[BlockPool, ...]
    entries: EntryCount
    block: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in every pool together."""
        return sum(pool.count * pool.block_bytes for pool in self.pools)

    @property
    def period(self) -> int | None:
        """After how many tokens a block is added, at multiples of them; ``None`` if irregularly."""
        return self.entries.period(self.block)

    def blocks(self, tokens: int) -> int:
        """Return the blocks of a sequence of *tokens*."""
        return -(-self.entries.at(tokens) // self.block)

    def longest(self, tokens: int) -> int | None:
        """Return how far a sequence of *tokens* can grow on the same blocks; ``None``: on and on."""
        return self.entries.longest(self.blocks(tokens) * self.block)

    def full_blocks(self, tokens: int) -> int:
        """Return the blocks that the first *tokens* alone fill, which sequences can share."""
        return tokens // self.entries.every // self.block if self.entries.shared else 0


def block_classes(policy: Policy) -> tuple[BlockClass, ...] | None:
    """Return the pools of *policy*, or ``None`` if it gives each sequence ranges of its own."""
    if not isinstance(policy, (Paged, StraddleLoses)):
        return None
    drops_straddling = isinstance(policy, StraddleLoses)
    sizes: dict[EntryCount, dict[int, int]] = {}
    for count, tensor in policy.cost.tensors():
        pools = sizes.setdefault(EntryCount.of(tensor.extent, policy.cost.in_flight), {})
        nbytes = policy.block * tensor.bytes_per_token
        pools[nbytes] = pools.get(nbytes, 0) + count
    classes = [
        BlockClass(
            tuple(BlockPool(count, nbytes, drops_straddling) for nbytes, count in pools.items()),
            entries,
            policy.block,
        )
        for entries, pools in sizes.items()
    ]
    states: dict[int, int] = {}
    for layer in policy.cost.layers:
        for state in layer.states:
            states[state.nbytes] = states.get(state.nbytes, 0) + layer.count
    if states:
        # The states of all sequences lie end to end: each has one block, which may cross edges.
        slots = tuple(
            BlockPool(count, nbytes, drops_straddling=False) for nbytes, count in states.items()
        )
        classes.append(BlockClass(slots, EntryCount(fixed=1), 1))
    return tuple(classes)
