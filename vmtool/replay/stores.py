"""What a simulation asks of the memory of sequences, however they are laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from vmtool.kv.packing.growth import block_classes, shapes_of
from vmtool.machine.preflight import Demand, SizeOption
from vmtool.replay.account import Account
from vmtool.replay.pools import PoolStore
from vmtool.replay.ranges import RangeStore

if TYPE_CHECKING:
    from vmtool.kv.packing.blocks import Paged, StraddleLoses
    from vmtool.replay.plan import Plan
    from vmtool.replay.sequence import RunningSequence


class Store(Protocol):
    """The memory of sequences: :class:`RangeStore` or :class:`PoolStore`."""

    def admit(self, seq: RunningSequence, tokens: int) -> bool:
        """Give a new sequence memory for *tokens*; ``False``, and nothing done, if refused."""

    def grow(self, seq: RunningSequence, tokens: int, slack_ns: int) -> bool:
        """Give it memory for *tokens* in all; ``False``, and nothing done, if refused."""

    def drop(self, seq: RunningSequence) -> None:
        """Take all its memory."""

    def close(self) -> None:
        """Give back what was there without sequences."""

    @property
    def empty(self) -> bool:
        """Whether no sequence has anything."""


#: The options name it before weights are taken off and ranks share it, so that it has no number.
_BUDGET: Final = SizeOption("--budget")


def make_store(plan: Plan, account: Account) -> RangeStore | PoolStore:
    """Return the store for the policy of *plan*, which changes *account*."""
    policy = plan.policy
    shapes = shapes_of(policy)
    if shapes is not None:
        return RangeStore(
            shapes,
            policy.granule,
            plan.max_tokens,
            account,
            prefix_tokens=plan.prefix_tokens,
            share=plan.share,
            keep=plan.prefix_cache,
        )
    classes = block_classes(policy) or ()
    granules = cast("Paged | StraddleLoses", policy).granules_for
    return PoolStore(
        classes,
        policy.granule,
        granules,
        account,
        prefix_tokens=plan.prefix_tokens,
        share=plan.share,
        keep=plan.prefix_cache,
    )


def host_demand(plan: Plan) -> Demand:
    """Return what *plan* needs of a host at its peak.

    A range has a committed and a reserved part, which are two memory areas; a block pool may in the
    worst case alternate between them from granule to granule.
    """
    store = make_store(plan, Account(plan.budget_bytes, 0, None))
    shapes = shapes_of(plan.policy)
    if shapes is None:
        return Demand(
            reserve_bytes=store.reserve_bytes,
            commit_bytes=plan.budget_bytes,
            mappings=2 * (plan.budget_bytes // plan.policy.granule),
            reserve_option=_BUDGET,
            commit_option=_BUDGET,
            writable_option=_BUDGET,
        )
    least = max(plan.policy.committed_bytes(1), 1)
    sequences = min(plan.max_sequences, plan.budget_bytes // least)
    parts = sum(shape.count * len(shape.runs(1)) for shape in shapes)
    # Prefixes that are kept have ranges of a granule or more each.
    kept = plan.budget_bytes if plan.prefix_cache else 0
    return Demand(
        reserve_bytes=sequences * store.reserve_bytes + kept,
        commit_bytes=plan.budget_bytes,
        mappings=2 * (parts * sequences + kept // plan.policy.granule),
        reserve_option=SizeOption("--max-sequences or --context"),
        commit_option=_BUDGET,
        writable_option=_BUDGET,
    )
