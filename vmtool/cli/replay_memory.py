"""The memory of ``vmtool kv-replay``: the budget, and real memory that is safe to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.estimate import Budget
    from vmtool.memory.backing import VirtualBacking
    from vmtool.replay.plan import Plan
    from vmtool.replay.real import RealMemory


def open_chosen(options: Mapping[str, Any]) -> VirtualBacking | None:
    """Return the backing that ``--backing`` names, or ``None`` in a simulation.

    Raises:
        UsageError: If there is no such backing or method.
        UnavailableError: If this machine has no such memory.
    """
    from vmtool.errors import UsageError
    from vmtool.memory import open_backing

    if options["backing"] is None:
        if options["method"] or options["prefault"] or not options["touch"]:
            raise UsageError(
                "--method, --prefault and --no-touch need --backing", hint="add --backing host"
            )
        return None
    return open_backing(
        options["backing"],
        method=options["method"],
        prefault=options["prefault"],
        label="vmtool kv-replay",
    )


def choose_budget(options: Mapping[str, Any], backing: VirtualBacking | None) -> Budget:
    """Return the budget of one rank: as given, or what there is, or what is safe to take.

    Raises:
        UsageError: If ``--budget`` or ``--weights`` is not understood.
        UnavailableError: If this machine does not tell what it has.
    """
    from vmtool.cli.kv_budget import read_budget
    from vmtool.kv.estimate import Budget

    if options["budget"] is None and backing is not None:
        return Budget(_safe(backing), f"what is safe on {backing.name}")
    return read_budget(
        options["budget"] or "auto",
        weights=options["weights"],
        reserve=options["reserve"],
        ranks=options["tp"] * options["pp"],
    )


def open_safely(backing: VirtualBacking, plan: Plan, *, touch: bool) -> RealMemory:
    """Return real memory for *plan*, if this machine can give it.

    Args:
        backing: Where from.
        plan: The rules.
        touch: Whether each page is written to after its commit.

    Raises:
        RefusedError: If the plan is not safe here.
        UsageError: If the granule is not legal there.
        UnavailableError: If released memory cannot be kept there.
    """
    from dataclasses import replace

    from vmtool.cli.device import device_free
    from vmtool.machine import read_facts
    from vmtool.machine.preflight import Demand, Lever, check, refuse_unsafe
    from vmtool.replay.build import host_demand
    from vmtool.replay.real import open_memory

    free = device_free(backing)
    if free is None:
        demand = host_demand(plan)
        if not backing.guards:  # its reservations are writable
            demand = replace(
                demand, writable_bytes=demand.reserve_bytes, writable_lever=demand.reserve_lever
            )
    else:
        demand = Demand(
            device_bytes=plan.budget_bytes, device_free_bytes=free, commit_lever=Lever("--budget")
        )
    refuse_unsafe(check(demand, read_facts()))
    return open_memory(
        backing, plan.policy.granule, plan.budget_bytes, plan.retain_bytes, touch=touch
    )


def _safe(backing: VirtualBacking) -> int:
    from vmtool.cli.device import device_free
    from vmtool.machine import read_facts
    from vmtool.machine.preflight import page_table_bytes, safe_device_part
    from vmtool.units import MIB

    free = device_free(backing)
    if free is not None:
        return safe_device_part(free)
    facts = read_facts()
    # The preflight counts the page tables too, and memory may become less until it looks.
    safe = facts.safe_bytes - page_table_bytes(facts.safe_bytes, facts.page_bytes)
    return safe * 9 // 10 // MIB * MIB
