"""The options of ``vmtool kv-replay``, and the trace, rules, budget and memory that they name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.kv_compare_axes import check_granule
from vmtool.cli.kv_model_and_budget import (
    BLOCK,
    IN_FLIGHT,
    MODEL_OPTIONS,
    POLICY,
    RESERVE,
    read_memory,
)
from vmtool.cli.options import (
    COUNT,
    SIZE,
    SIZE_OR_ZERO,
    compare_option,
    csv_option,
    html_option,
    option_group,
)
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

#: What ``--compare`` can compare.
AXES: Final = ("granule", "policy", "dtype", "block", "on-refusal", "commit-ahead")
_TRACE: Final = (
    click.argument("trace", nargs=-1),
    click.option(
        "--limit", type=COUNT, metavar="N", help="Replay only the first N requests of the trace."
    ),
    click.option(
        "--rate",
        type=float,
        metavar="N",
        help="Requests per second (Poisson) if the trace has no times.  [default: all at once]",
    ),
    click.option(
        "--sort",
        is_flag=True,
        help="Sort requests by time, in memory. Without it, a trace with more than 1 % of its "
        "requests out of order is refused.",
    ),
    click.option(
        "--max-bad-lines",
        type=click.IntRange(0),
        default=100,
        show_default=True,
        metavar="N",
        help="Fail if more than N lines are not requests.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of a synthetic trace and of arrivals at --rate.",
    ),
)


_MODEL: Final = (
    click.option(
        "--model",
        metavar="MODEL",
        help="The model whose KV cache is replayed; see vmtool kv-estimate -h.",
    ),
    *MODEL_OPTIONS,
)


_PACKING: Final = (
    click.option(
        "--budget",
        metavar="SIZE",
        help="Memory for the KV cache of one rank: a size, auto, 75%, cuda:0, a device such as h100,"
        " '90% of h100' or 8xh100. Only --weights and --reserve are subtracted.  [default: auto, what"
        " this machine has available; with --backing, what is safe]",
    ),
    click.option(
        "--find-budget",
        is_flag=True,
        help="If memory is refused, simulate the trace again without a limit to find the smallest budget without refusals.",
    ),
    click.option("--weights", metavar="SIZE|FILE", help="Subtract the weights from --budget."),
    RESERVE,
    click.option(
        "--context",
        type=COUNT,
        metavar="TOKENS",
        help="The longest sequence; longer requests are rejected.  [default: the model's context]",
    ),
    IN_FLIGHT,
    POLICY,
    click.option(
        "--granule",
        type=SIZE,
        metavar="SIZE",
        help="The unit of commits.  [default: the backing's; 2MiB in a simulation]",
    ),
    BLOCK,
    click.option(
        "--commit-ahead",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="TOKENS",
        help="Commit memory for this many tokens before they are needed.",
    ),
    click.option(
        "--retain",
        type=SIZE_OR_ZERO,
        default=0,
        metavar="SIZE",
        help="Keep up to SIZE of released memory in a pool for the next commit.",
    ),
    click.option(
        "--share/--no-share",
        default=True,
        show_default=True,
        help="Share full granules or blocks of equal prefixes, where the trace names them.",
    ),
    click.option(
        "--prefix-cache",
        is_flag=True,
        help="Keep prefixes that no sequence uses until the memory is needed, and do not prefill "
        "them again.",
    ),
)


_CLOCK: Final = (
    click.option(
        "--tokens-per-second",
        type=float,
        default=30.0,
        show_default=True,
        metavar="N",
        help="Decode rate of each sequence.",
    ),
    click.option(
        "--prefill-rate",
        type=float,
        default=8000.0,
        show_default=True,
        metavar="N",
        help="Prompt tokens that each sequence prefills per second.",
    ),
    click.option(
        "--max-sequences",
        type=COUNT,
        default=256,
        show_default=True,
        metavar="N",
        help="The most sequences at once.",
    ),
    click.option(
        "--on-refusal",
        type=click.Choice(("wait", "reject", "preempt")),
        default="preempt",
        show_default=True,
        help="What to do when a step is refused memory: wait, reject the request, or preempt the youngest sequence, which starts again. An admission that is refused waits or, with reject, ends.",
    ),
)


_REAL: Final = (
    click.option(
        "--backing",
        metavar="NAME",
        help="Also use real memory: host, cuda or cuda:N.  [default: simulate only]",
    ),
    click.option("--method", metavar="NAME", help="How the host commits; see vmtool stress -h."),
    click.option(
        "--touch/--no-touch",
        default=True,
        show_default=True,
        help="Write to each page after its commit, as an engine would. With --no-touch, the "
        "times do not include page faults.",
    ),
    click.option("--prefault", is_flag=True, help="Fault every page in at commit (host, Linux)."),
)

_FILES: Final = (
    compare_option(
        AXES,
        "Compare granule, policy, dtype, block, on-refusal or commit-ahead in one table; "
        "further arguments AXIS=A,B may follow.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="Replay N combinations of --compare at once.",
    ),
    click.option(
        "--dask",
        metavar="ADDRESS",
        help="Replay combinations of --compare on the workers of a Dask cluster: tcp://HOST:PORT, "
        "or local:N. TRACE and MODEL must have the same paths there.",
    ),
    html_option,
    csv_option("the timeline, or the table of --compare, as CSV"),
)


#: Every option of the command but those that other commands share.
replay_options: Final = option_group(
    option_group(*_TRACE, heading="Trace"),
    option_group(*_MODEL, heading="Model"),
    option_group(*_PACKING, heading="Memory"),
    option_group(*_CLOCK, heading="Simulated engine"),
    option_group(*_REAL, heading="Real memory"),
    option_group(*_FILES, heading="Comparison and files"),
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
    from vmtool.cli.kv_model_and_budget import read_budget, refuse_weights
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
