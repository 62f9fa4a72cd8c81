"""What the options of ``vmtool kv-replay`` mean: trace, rules, budget, real memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.kv_compare_axes import check_granule
from vmtool.errors import UsageError
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.cli.kv_model_and_budget import ChosenMemory
    from vmtool.kv.estimate_result import Budget
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.traces.trace import Trace
    from vmtool.memory.backing import VirtualBacking
    from vmtool.replay.rules import Rules

#: The granule of a simulation: that of CUDA.
_SIMULATED_GRANULE: Final = 2 << 20
_LARGEST_COUNT: Final = 1 << 40
_MOST_AHEAD: Final = 1 << 20
#: Options whose flag is true by default.
_ON_BY_DEFAULT: Final = frozenset({"share", "touch"})
#: Options that a replay in another process does not take: the budget is given in bytes.
_OF_THIS_MACHINE: Final = frozenset(
    {"trace", "budget", "weights", "reserve", "backing", "method", "prefault", "touch"}
)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line asked for, by the names of its options; ``None`` is not given."""

    trace: str
    limit: int | None
    rate: float | None
    sort: bool
    max_bad_lines: int
    seed: int
    model: str | None
    hub: str | None
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    head_dim_v: int | None
    dtype: str | None
    dtype_k: str | None
    dtype_v: str | None
    tp: int | None
    pp: int
    dcp: int
    budget: str | None
    find_budget: bool
    weights: str | None
    reserve: int
    context: int | None
    in_flight: int | None
    policy: str
    granule: int | None
    block: int
    commit_ahead: int
    retain: int
    share: bool
    prefix_cache: bool
    tokens_per_second: float
    prefill_rate: float
    max_sequences: int
    on_refusal: str
    backing: str | None
    method: str | None
    touch: bool
    prefault: bool

    def divided(self, memory: ChosenMemory | None) -> ReplayOptions:
        """Return the options with the ranks that divide the heads.

        Raises:
            UsageError: If there are not as many of them as *memory* names devices.
        """
        from vmtool.cli.kv_model_and_budget import check_ranks, ranks_of_heads

        devices = None if memory is None else memory.count
        tp = ranks_of_heads(self.tp, self.pp, devices)
        check_ranks(tp, self.pp, devices)
        return replace(self, tp=tp)

    @property
    def ranks(self) -> int:
        """The ranks that divide the model."""
        return (self.tp or 1) * self.pp

    def open_trace(self) -> Trace:
        """Return the trace.

        Raises:
            UsageError: If its settings are wrong.
            InputError: If the file is not a trace.
        """
        from vmtool.kv.traces.trace import Trace

        return Trace(**self.trace_arguments())

    def trace_arguments(self) -> dict[str, Any]:
        """Return the arguments of :class:`vmtool.kv.traces.trace.Trace`."""
        return {
            "name": self.trace,
            "seed": self.seed,
            "rate": self.rate,
            "limit": self.limit,
            "max_bad_lines": self.max_bad_lines,
            "sort": self.sort,
        }

    def rules(self, model: ModelGeometry, budget: Budget, granule: int | None) -> Rules:
        """Return the rules.

        Args:
            model: The model, not yet divided among ranks.
            budget: The memory of one rank.
            granule: The backing's, or ``None`` in a simulation.

        Raises:
            UsageError: If the options contradict each other or are out of range.
        """
        from vmtool.kv.element_formats import choose_formats
        from vmtool.kv.estimate import DEFAULT_CONTEXT, fullest_rank
        from vmtool.kv.packing.policies import make_policy
        from vmtool.kv.sequence_cost import SequenceCost
        from vmtool.replay.rules import Plan, Rules, prefill_ns, step_ns
        from vmtool.results.kv_replay import OnRefusal, ReplaySettings

        self._check()
        formats = choose_formats(
            model.dtype,
            key=self.dtype_k or self.dtype,
            value=self.dtype_v or self.dtype,
            cache_dtype=model.cache_dtype,
        )
        in_flight = self.in_flight or 0
        max_tokens = self.context or model.context_tokens or DEFAULT_CONTEXT
        shard = fullest_rank(
            model,
            formats,
            max_tokens,
            tp=self.tp or 1,
            pp=self.pp,
            dcp=self.dcp,
            in_flight=in_flight,
        )
        cost = SequenceCost.of(shard, formats, in_flight=in_flight)
        granule = self.granule or granule or _SIMULATED_GRANULE
        plan = Plan(
            make_policy(self.policy, cost, granule, block=self.block, stride_tokens=max_tokens),
            budget_bytes=budget.kv_bytes,
            max_tokens=max_tokens,
            max_sequences=self.max_sequences,
            prefill_ns=prefill_ns(self.prefill_rate),
            step_ns=step_ns(self.tokens_per_second),
            on_refusal=OnRefusal(self.on_refusal),
            commit_ahead=self.commit_ahead,
            # A pool that keeps nothing would be no pool: without --retain it keeps what there is.
            retain_bytes=self.retain or (budget.kv_bytes if self.method == "pooled" else 0),
            share=self.share,
            prefix_cache=self.prefix_cache,
        )
        settings = ReplaySettings(
            model=model.name,
            format_k=formats.key.name,
            format_v=formats.value.name,
            tp=self.tp or 1,
            pp=self.pp,
            dcp=self.dcp,
            policy=self.policy,
            granule_bytes=granule,
            block_tokens=self.block,
            budget_bytes=plan.budget_bytes,
            budget_origin=_origin(budget),
            max_tokens=max_tokens,
            max_sequences=plan.max_sequences,
            prefill_tokens_per_s=self.prefill_rate,
            step_ns=plan.step_ns,
            on_refusal=plan.on_refusal,
            commit_ahead_tokens=plan.commit_ahead,
            retain_bytes=plan.retain_bytes,
            share_prefixes=plan.share,
            prefix_cache=plan.prefix_cache,
            seed=self.seed,
        )
        return Rules(plan, settings)

    def arguments(self, budget: int) -> list[str]:
        """Return the arguments of a simulation of *budget* bytes in another process."""
        found = ["kv-replay", self.trace, "--budget", str(budget)]
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            option = f"--{name.replace('_', '-')}"
            if name in _OF_THIS_MACHINE or value is None:
                continue
            if isinstance(value, bool):
                if value != (name in _ON_BY_DEFAULT):
                    found.append(option if value else f"--no-{option[2:]}")
            else:
                found += [option, str(value)]
        return [*found, "--json"]

    def _check(self) -> None:
        for name in ("context", "in_flight", "block", "max_sequences"):
            if (getattr(self, name) or 0) > _LARGEST_COUNT:
                raise UsageError(f"--{name.replace('_', '-')} must be at most 2^40")
        if self.commit_ahead > _MOST_AHEAD:  # also of an axis of --compare, hence not in click
            raise UsageError(f"--commit-ahead must be at most {_MOST_AHEAD}")
        if self.prefix_cache and not self.share:
            raise UsageError("--prefix-cache needs shared prefixes", hint="leave out --no-share")
        if self.prefix_cache and self.find_budget:
            raise UsageError(
                "--find-budget does not work with --prefix-cache, which fills any budget",
                hint="leave one of them out",
            )
        if self.granule is not None:
            check_granule(self.granule)


def _origin(budget: Budget) -> str:
    """Return where the memory for the KV cache came from, and what was subtracted."""
    weights = budget.weights_bytes
    text = f"{format_size(weights)} of" if weights else "no"
    return f"{budget.origin}, {text} weights subtracted"


def load_options_model(options: ReplayOptions) -> ModelGeometry:
    """Return the model of *options*.

    Raises:
        UsageError: If they name none, or more than one.
    """
    from vmtool.cli.kv_model_and_budget import ModelOptions, load_model

    return load_model(ModelOptions.of(asdict(options)))


def open_chosen(options: ReplayOptions) -> VirtualBacking | None:
    """Return the backing that ``--backing`` names, or ``None`` in a simulation.

    Raises:
        UsageError: If there is no such backing or method.
        UnavailableError: If this machine has no such memory.
    """
    from vmtool.memory.backing_by_name import open_backing

    if options.backing is None:
        if options.method or options.prefault or not options.touch:
            raise UsageError(
                "--method, --prefault and --no-touch need --backing", hint="add --backing host"
            )
        return None
    return open_backing(
        options.backing,
        method=options.method,
        prefault=options.prefault,
        label="vmtool kv-replay",
    )


def choose_budget(
    options: ReplayOptions, memory: ChosenMemory | None, backing: VirtualBacking | None
) -> Budget:
    """Return the budget of one rank: *memory*, or what there is, or what is safe to take.

    Raises:
        UsageError: If ``--weights`` is not understood.
        UnavailableError: If this machine's memory is unknown.
        RefusedError: If nothing is safe to take, or the weights are more than the budget.
    """
    from vmtool.cli.kv_model_and_budget import read_budget, read_memory, refuse_weights
    from vmtool.kv.estimate_result import Budget

    if memory is None and backing is not None:
        from vmtool.replay.safe_memory import safe_bytes

        return Budget(safe_bytes(backing), f"what is safe on {backing.name}")
    budget = read_budget(
        memory or read_memory("auto"),
        weights=options.weights,
        reserve=options.reserve,
        ranks=options.ranks,
    )
    refuse_weights(budget, options.ranks)
    return budget
