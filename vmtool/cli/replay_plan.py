"""What the options of ``vmtool kv-replay`` ask: a trace, and the rules of one replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.estimate import Budget
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.traces import Trace
    from vmtool.replay.plan import Plan
    from vmtool.replay.results import ReplaySettings

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
    from vmtool.kv.dtypes import choose_formats
    from vmtool.kv.estimate import DEFAULT_CONTEXT
    from vmtool.kv.policies import make_policy
    from vmtool.replay.plan import OnRefusal, Plan, prefill_ns, step_ns
    from vmtool.replay.results import ReplaySettings

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
