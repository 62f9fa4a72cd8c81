"""The options of ``vmtool kv-estimate``: their declarations, their type and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from vmtool.cli.kv_compare_axes import check_granule
from vmtool.cli.kv_model_and_budget import (
    IN_FLIGHT_HELP,
    MODEL,
    POLICY,
    RESERVE,
    TP,
    ModelOptions,
)
from vmtool.cli.options import (
    COUNT,
    FILE_OR_STDOUT,
    SIZE,
    compare_option,
    option_group,
)
from vmtool.errors import UsageError
from vmtool.units import parse_count

_LARGEST_COUNT: Final = 1 << 48
#: What ``--compare`` can compare.
AXES: Final = (
    "model",
    "dtype",
    "granule",
    "policy",
    "tp",
    "pp",
    "budget",
    "context",
    "sequences",
)
#: Every option of the command but those that other commands share.
estimate_options: Final = option_group(
    click.argument("model", required=False),
    option_group(
        click.option("--list", "list_models", is_flag=True, help="List the built-in models."),
        *MODEL,
        TP,
        click.option(
            "--pp", type=COUNT, help="Divide the layers into this many stages.  [default: 1]"
        ),
        click.option(
            "--pp-layers",
            metavar="N,N",
            help="Layers in each stage, if they are not divided evenly.",
        ),
        click.option("--state-dtype", help="Element format of recurrent states, such as bf16."),
        click.option(
            "--strict", is_flag=True, help="Refuse an unknown architecture (exit code 5)."
        ),
        heading="Which model",
    ),
    option_group(
        click.option(
            "--context",
            type=COUNT,
            help="Tokens in a sequence, such as 128k (131,072); by default the model's own context.",
        ),
        click.option(
            "--sequences", type=COUNT, default=1, help="How many sequences are in memory at once."
        ),
        click.option(
            "--budget",
            metavar="SIZE",
            help="Memory of one rank: a size, auto (what this machine has available), 75% of "
            "that, cuda:0 (what is free there), a device such as h100, '90% of h100' or "
            "8xh100. Without it only the cost is shown.",
        ),
        click.option(
            "--weights",
            metavar="SIZE|FILE",
            help=(
                "Subtract the weights, divided evenly among the ranks: a size, their file, none, "
                "or auto (the default), which takes those of the model if their size is known."
            ),
        ),
        RESERVE,
        click.option(
            "--overhead",
            metavar="SIZE|PERCENT",
            help="Subtract the engine's other memory.  [default: for a named device, 8% with --as"
            " vllm and a tenth of what the weights leave with --as trtllm; otherwise nothing]",
        ),
        click.option(
            "--in-flight",
            type=COUNT,
            metavar="TOKENS",
            help=f"{IN_FLIGHT_HELP}, but 8192 with --as vllm or trtllm, and 512 with --as llama.cpp.",
        ),
        click.option(
            "--draft-tokens",
            type=click.IntRange(0, 1024),
            default=0,
            help="Draft tokens in each step: also count the model's MTP layers and, with --as vllm or"
            " llama.cpp, the extra state that each of them needs.",
        ),
        click.option(
            "--draft-model", metavar="MODEL", help="Also count the cache of this draft model."
        ),
        heading="Question",
    ),
    option_group(
        click.option(
            "--granule",
            "granules",
            type=SIZE,
            multiple=True,
            help="Granule of packing, 2MiB by default; further granules get columns of their own.",
        ),
        POLICY,
        click.option(
            "--block",
            type=COUNT,
            help="Tokens in a block.  [default: 16; 1 with --as sglang, 32 with --as trtllm, 64 or 128 with --as vllm or sglang for index keys]",
        ),
        click.option(
            "--waste",
            default="10%",
            show_default=True,
            metavar="PERCENT",
            help="Find the length from which less than PERCENT is wasted.",
        ),
        click.option(
            "--packing", is_flag=True, help="Also show every packing policy and every granule."
        ),
        heading="Packing",
    ),
    option_group(
        click.option(
            "--as",
            "engine",
            metavar="ENGINE",
            help="Print what vllm, llama.cpp, sglang or trtllm would log for the same pool; for an older version, write vllm@0.20.",
        ),
        click.option(
            "--state-blocks",
            default="none",
            metavar="MODE",
            help="vLLM's mamba_cache_mode: none, or with prefix caching align (before 0.21: all).",
        ),
        click.option(
            "--batch-tokens",
            type=COUNT,
            help="vLLM's max_num_batched_tokens, for which cross attention makes room.  [default: the"
            " tokens in flight]",
        ),
        click.option("--kernel-block", type=COUNT, help="vLLM: the attention kernel's block."),
        click.option(
            "--blocks",
            type=COUNT,
            help="vLLM: the number of blocks in the pool, whatever the budget is.",
        ),
        click.option(
            "--unified",
            is_flag=True,
            help="llama.cpp: all sequences share one buffer of --context tokens.",
        ),
        click.option(
            "--swa-full", is_flag=True, help="llama.cpp: layers with a window keep all tokens."
        ),
        click.option(
            "--flash-attention/--no-flash-attention",
            default=True,
            help="llama.cpp: no flash attention; V of each layer is then as wide as the widest V.",
        ),
        click.option(
            "--attention-windows",
            is_flag=True,
            help="TensorRT-LLM: assume that max_attention_window lists the windows of the model's layers.",
        ),
        heading="As an engine",
    ),
    option_group(
        compare_option(
            AXES,
            "Compare model, dtype, granule, policy, tp, pp, budget, context or sequences in one"
            " table; can be given several times, and together with --as.",
        ),
        click.option(
            "--sweep",
            metavar="context=A..B",
            help="Show the cost from A to B tokens, doubling each time, or in steps with A..B:STEP.",
        ),
        click.option(
            "--explain", is_flag=True, help="Show where each value of the model comes from."
        ),
        click.option(
            "--csv",
            type=FILE_OR_STDOUT,
            metavar="FILE",
            help="Write the table of --compare or --sweep as CSV; - writes CSV to stdout instead of the table.",
        ),
        heading="Tables",
    ),
)


@dataclass(frozen=True, slots=True)
class EstimateOptions(ModelOptions):
    """Every option of ``vmtool kv-estimate`` but those of its output, as click has them."""

    list_models: bool = False
    strict: bool = False
    dtype: str | None = None
    dtype_k: str | None = None
    dtype_v: str | None = None
    state_dtype: str | None = None
    tp: int | None = None
    pp: int | None = None
    pp_layers: str | None = None
    dcp: int = 1
    budget: str | None = None
    weights: str | None = None
    reserve: int = 0
    overhead: str | None = None
    context: int | None = None
    sequences: int = 1
    in_flight: int | None = None
    granules: tuple[int, ...] = ()
    policy: str = "per-tensor"
    block: int | None = None
    waste: str = "10%"
    explain: bool = False
    packing: bool = False
    compare: tuple[str, ...] = ()
    sweep: str | None = None
    csv: str | None = None
    html: str | None = None
    engine: str | None = None
    state_blocks: str = "none"
    batch_tokens: int | None = None
    draft_tokens: int = 0
    draft_model: str | None = None
    attention_windows: bool = False
    kernel_block: int | None = None
    blocks: int | None = None
    unified: bool = False
    swa_full: bool = False
    flash_attention: bool = True

    @property
    def engine_name(self) -> str:
        """The engine of ``--as`` without its version; empty if there is none."""
        return (self.engine or "").lower().partition("@")[0]

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        return 16 if self.block is None else self.block


def check_options(options: EstimateOptions) -> None:
    """Refuse values that are bad or contradict each other.

    Raises:
        UsageError: For the first.
    """
    from vmtool.kv.packing.policies import POLICIES, unknown_policy

    if options.compare and options.sweep:
        raise UsageError("give --compare or --sweep, not both")
    if options.sweep and options.engine:
        raise UsageError(
            "--sweep and --as cannot be used together", hint="use --compare context=8k,32k"
        )
    for flag, is_set in (("--explain", options.explain), ("--packing", options.packing)):
        for other, value in (
            ("--compare", options.compare),
            ("--sweep", options.sweep),
            ("--as", options.engine),
        ):
            if is_set and value:
                raise UsageError(
                    f"{flag} and {other} cannot be used together",
                    hint=f"leave {other} out; {flag} extends the ordinary report",
                )
    if options.csv and not (options.compare or options.sweep):
        raise UsageError("--csv needs --compare or --sweep")
    stages = read_stages(options.pp_layers)
    if stages is not None and options.pp not in (None, len(stages)):
        raise UsageError(f"--pp {options.pp} and --pp-layers {options.pp_layers} disagree")
    if options.policy not in POLICIES:
        raise unknown_policy(options.policy)
    for granule in options.granules:
        check_granule(granule)
    for name in ("context", "sequences", "in_flight", "block", "batch_tokens", "blocks"):
        if (getattr(options, name) or 0) > _LARGEST_COUNT:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} must be at most 2^48")
    _check_budget(options)
    _check_engine(options)


def _check_budget(options: EstimateOptions) -> None:
    """Refuse what is subtracted from a budget where there is none."""
    if options.budget is not None or any(axis.startswith("budget=") for axis in options.compare):
        return
    for flag, is_set in (
        ("--weights", options.weights not in (None, "auto", "none")),
        ("--reserve", options.reserve),
        ("--overhead", options.overhead is not None),
    ):
        if is_set:
            raise UsageError(f"{flag} needs --budget, from which it is subtracted")


def _check_engine(options: EstimateOptions) -> None:
    """Refuse what only an engine reads where it would be read by none."""
    engine = options.engine_name
    for flag, is_set, engines in (
        ("--state-blocks", options.state_blocks != "none", ("vllm",)),
        ("--batch-tokens", options.batch_tokens is not None, ("vllm",)),
        ("--kernel-block", options.kernel_block is not None, ("vllm",)),
        ("--blocks", options.blocks is not None, ("vllm",)),
        ("--unified", options.unified, ("llama.cpp",)),
        ("--swa-full", options.swa_full, ("llama.cpp",)),
        ("--no-flash-attention", not options.flash_attention, ("llama.cpp",)),
        ("--attention-windows", options.attention_windows, ("trtllm",)),
    ):
        if is_set and engine not in engines:
            raise UsageError(f"{flag} needs --as {' or '.join(engines)}")


def read_stages(text: str | None) -> tuple[int, ...] | None:
    """Return the layers of each stage in *text*, such as ``16,32``.

    Raises:
        UsageError: If one is no count.
    """
    if text is None:
        return None
    return tuple(read_count("--pp-layers", part.strip()) for part in text.split(","))


def read_count(name: str, text: str) -> int:
    """Return the count *text*, such as ``32k``.

    Raises:
        UsageError: If it is none, or 0, or too large.
    """
    try:
        count = parse_count(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if not 0 < count <= _LARGEST_COUNT:
        raise UsageError(f"{name} {text}: it must be from 1 to 2^48")
    return count
