"""The memory of ``vmtool kv-replay``: the budget, and real memory that is safe to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.estimate import Budget
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.traces import Trace
    from vmtool.memory.backing import VirtualBacking
    from vmtool.replay.plan import Plan
    from vmtool.replay.real import RealMemory
    from vmtool.results.replay import ReplaySettings


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
    from vmtool.cli.kv_question import read_budget
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

    from vmtool.cli.options import device_free
    from vmtool.machine import read_facts
    from vmtool.machine.preflight import Demand, SizeOption, check, refuse_unsafe
    from vmtool.replay.real import open_memory
    from vmtool.replay.run import host_demand

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
    refuse_unsafe(check(demand, read_facts()))
    return open_memory(
        backing, plan.policy.granule, plan.budget_bytes, plan.retain_bytes, touch=touch
    )


def _safe(backing: VirtualBacking) -> int:
    from vmtool.cli.options import device_free
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


#: The granule of a simulation: that of CUDA.
_SIMULATED_GRANULE: Final = 2 << 20
_LARGEST_COUNT: Final = 1 << 40
_MOST_AHEAD: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rules:
    """What one replay is to do.

    Attributes:
        plan: For the simulation.
        settings: For the result.
    """

    plan: Plan
    settings: ReplaySettings


def read_trace(options: Mapping[str, Any], name: str) -> Trace:
    """Return the trace that *options* name.

    Raises:
        UsageError: If its settings are wrong.
        InputError: If the file is no trace.
    """
    from vmtool.kv.traces import Trace

    return Trace(
        name,
        seed=options["seed"],
        rate=options["rate"],
        limit=options["limit"],
        max_bad_lines=options["max_bad_lines"],
    )


def read_rules(
    options: Mapping[str, Any], model: ModelGeometry, budget: Budget, granule: int | None
) -> Rules:
    """Return the rules that *options* ask for.

    Args:
        options: As click has them.
        model: The model, not yet divided among ranks.
        budget: The memory of one rank.
        granule: The backing's, or ``None`` in a simulation.

    Raises:
        UsageError: If they contradict each other or are out of range.
    """
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.estimate import DEFAULT_CONTEXT
    from vmtool.kv.formats import choose_formats
    from vmtool.kv.packing import make_policy
    from vmtool.replay.plan import Plan, prefill_ns, step_ns
    from vmtool.results.replay import OnRefusal, ReplaySettings

    _check(options)
    shard = model.shard(tp=options["tp"], pp=options["pp"], dcp=options["dcp"])
    formats = choose_formats(
        model.dtype,
        key=options["dtype_k"] or options["dtype"],
        value=options["dtype_v"] or options["dtype"],
        cache_dtype=model.cache_dtype,
    )
    cost = SequenceCost.of(shard, formats, in_flight=options["in_flight"] or 0)
    max_tokens = options["context"] or model.context_tokens or DEFAULT_CONTEXT
    granule = options["granule"] or granule or _SIMULATED_GRANULE
    plan = Plan(
        make_policy(
            options["policy"], cost, granule, block=options["block"], stride_tokens=max_tokens
        ),
        budget_bytes=budget.kv_bytes,
        max_tokens=max_tokens,
        max_sequences=options["max_sequences"],
        prefill_ns=prefill_ns(options["prefill_rate"]),
        step_ns=step_ns(options["tokens_per_second"]),
        on_refusal=OnRefusal(options["on_refusal"]),
        commit_ahead=options["commit_ahead"],
        retain_bytes=options["retain"],
        share=options["share"],
        prefix_cache=options["prefix_cache"],
    )
    return Rules(
        plan,
        ReplaySettings(
            model=model.name,
            format_k=formats.key.name,
            format_v=formats.value.name,
            tp=options["tp"],
            pp=options["pp"],
            dcp=options["dcp"],
            policy=options["policy"],
            granule_bytes=granule,
            block_tokens=options["block"],
            budget_bytes=plan.budget_bytes,
            budget_origin=budget.origin,
            max_tokens=max_tokens,
            max_sequences=plan.max_sequences,
            prefill_tokens_per_s=options["prefill_rate"],
            step_ns=plan.step_ns,
            on_refusal=plan.on_refusal,
            commit_ahead_tokens=plan.commit_ahead,
            retain_bytes=plan.retain_bytes,
            share_prefixes=plan.share,
            prefix_cache=plan.prefix_cache,
            seed=options["seed"],
        ),
    )


def _check(options: Mapping[str, Any]) -> None:
    for name in ("context", "in_flight", "block", "max_sequences"):
        if (options[name] or 0) > _LARGEST_COUNT:
            raise UsageError(f"--{name.replace('_', '-')} {options[name]}: absurdly large")
    if options["commit_ahead"] > _MOST_AHEAD:  # also of an axis of --compare, hence not in click
        raise UsageError(f"--commit-ahead {options['commit_ahead']}: {_MOST_AHEAD} at most")
    if options["prefix_cache"] and not options["share"]:
        raise UsageError("--prefix-cache keeps what is shared", hint="leave --no-share out")
    if options["prefix_cache"] and options["find_budget"]:
        raise UsageError(
            "no budget is enough for --prefix-cache, which fills any", hint="leave one of them out"
        )
    if (options["granule"] or 1) > 1 << 40:
        raise UsageError(f"a granule of {options['granule']} B: it must be from 1 B to 1 TiB")
