"""Blocks of one size for the layers that share a pool, as engines that page their cache keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmtool.kv.packing.policies import Paged, StraddleLoses

if TYPE_CHECKING:
    from vmtool.kv.packing.policies import Policy

from vmtool.kv.packing.entry_counts import EntryCount


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
