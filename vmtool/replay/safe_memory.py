"""How much memory of this machine a replay may take, and whether its plan is safe there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool import machine
from vmtool.errors import RefusedError
from vmtool.kv.packing.shapes_and_block_classes import shapes_of
from vmtool.machine.device_memory import device_free
from vmtool.machine.memory_limit_sentences import describe_safe
from vmtool.machine.preflight import (
    WORKER_BYTES,
    Demand,
    SizeOption,
    check,
    page_table_bytes,
    refuse_unsafe,
    refuse_without_memory,
    safe_device_part,
    safe_for_workers,
)
from vmtool.memory.threads import stack_bytes
from vmtool.replay.account import Account
from vmtool.replay.real_memory import open_memory
from vmtool.replay.trace_to_result import make_store
from vmtool.units import MIB, format_size

if TYPE_CHECKING:
    from vmtool.memory.backing import VirtualBacking
    from vmtool.replay.real_memory import RealMemory
    from vmtool.replay.rules import Plan
    from vmtool.results.kv_replay import ReplayResult

#: Of a replay in another process: that, what listens to it, and what it waits for its parent with.
_TASKS: Final = 4
_PIPES: Final = 3
#: The options name it before weights are taken off and ranks share it, so that it has no number.
_BUDGET: Final = SizeOption("--budget")


def safe_bytes(backing: VirtualBacking) -> int:
    """Return how many bytes are safe to commit beside the process that replays.

    Raises:
        RefusedError: If there are none.
    """
    free = device_free(backing)
    if free is not None:
        return safe_device_part(free)
    facts = machine.read_facts()
    refuse_without_memory(facts)
    # The preflight counts the page tables too, and memory may become less until it looks, at least
    # by what the replay itself loads (1 to 3 MiB).
    safe = safe_for_workers(facts, 1)
    safe -= page_table_bytes(safe, facts.page_bytes)
    safe = min(safe * 9 // 10, safe - 4 * MIB) // MIB * MIB
    if safe <= 0:
        words, remedy = describe_safe(facts)
        raise RefusedError(
            "no memory is safe to commit beside the process that replays the trace",
            cause=words,
            hint=remedy,
        )
    return safe


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


def open_safely(backing: VirtualBacking, plan: Plan, *, touch: bool, in_child: bool) -> RealMemory:
    """Return real memory for *plan*, if that is safe on this machine.

    Args:
        backing: Where from.
        plan: The rules.
        touch: Whether each page is written to after its commit.
        in_child: Whether another process replays.

    Raises:
        RefusedError: If the plan is not safe here.
        UsageError: If the granule is not legal there.
        UnavailableError: If released memory cannot be kept there.
    """
    free = device_free(backing)
    if free is None:
        demand = host_demand(plan)
        if not backing.guards:  # its reservations are writable
            demand = replace(
                demand, writable_bytes=demand.reserve_bytes, writable_option=demand.reserve_option
            )
    else:
        demand = Demand(
            device_bytes=plan.budget_bytes,
            device_free_bytes=free,
            commit_option=SizeOption("--budget"),
        )
    if in_child:
        demand = replace(
            demand,
            worker_bytes=WORKER_BYTES,
            stack_bytes=stack_bytes(),
            own_stack_bytes=2 * stack_bytes(),
            tasks=_TASKS,
            descriptors=_PIPES,
        )
    refuse_unsafe(check(demand, machine.read_facts()))
    return open_memory(
        backing, plan.policy.granule, plan.budget_bytes, plan.retain_bytes, touch=touch
    )


def refuse_if_none_fits(result: ReplayResult, backing: VirtualBacking) -> None:
    """Raise if none of the requests fits into what is safe here, so nothing was replayed.

    Raises:
        RefusedError: If so; the error names the limit.
    """
    if result.requests.finished or not result.requests.too_large:
        return
    words, remedy = describe_safe(machine.read_facts(), device_free(backing))
    budget = format_size(result.settings.budget_bytes)
    raise RefusedError(
        f"no request fits into the {budget} that is safe to commit", cause=words, hint=remedy
    )
