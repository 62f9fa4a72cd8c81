"""The options of ``vmtool kv-estimate``."""

from __future__ import annotations

from typing import Final

import click

from vmtool.cli.params import COUNT, FILE_OR_STDOUT, SIZE, SIZE_OR_ZERO, option_group

#: Which model, in which format, on which rank: of every command about a model's KV cache.
MODEL_OPTIONS: Final = (
    click.option(
        "--hub", metavar="OWNER/NAME", help="Fetch config.json from the Hugging Face hub."
    ),
    click.option("--layers", type=COUNT, help="Layers; with a MODEL, instead of its own."),
    click.option("--kv-heads", type=COUNT, help="KV heads of a layer."),
    click.option("--head-dim", type=COUNT, help="Elements of a head of K (and of V)."),
    click.option("--head-dim-v", type=COUNT, help="Elements of a head of V."),
    click.option("--dtype", help="Element format of K and V: bf16, fp8, int8, q8_0, nvfp4, ..."),
    click.option("--dtype-k", help="Element format of K (and of MLA's latent)."),
    click.option("--dtype-v", help="Element format of V."),
    click.option("--tp", type=COUNT, default=1, help="Ranks that divide the heads."),
    click.option("--pp", type=COUNT, default=1, help="Stages that divide the layers."),
    click.option("--dcp", type=COUNT, default=1, help="Ranks that divide the tokens."),
)

#: How a budget becomes tokens: of every command that packs sequences.
RESERVE: Final = click.option("--reserve", type=SIZE_OR_ZERO, default=0, help="Subtract this too.")
_IN_FLIGHT_HELP: Final = (
    "Tokens that one step may add before a sliding window drops old ones; by default 0, as while"
    " decoding"
)
IN_FLIGHT: Final = click.option(
    "--in-flight", type=COUNT, metavar="TOKENS", help=f"{_IN_FLIGHT_HELP}."
)
POLICY: Final = click.option(
    "--policy",
    default="per-tensor",
    show_default=True,
    metavar="NAME",
    help="Packing: per-tensor, kv-merged, token-major, head-major, paged, floor-per-page or"
    " straddle-loses.",
)
BLOCK: Final = click.option(
    "--block", type=COUNT, default=16, show_default=True, help="Tokens in a block."
)

#: Every option of the command but those that other commands share.
estimate_options: Final = option_group(
    click.argument("model", required=False),
    click.option("--list", "list_models", is_flag=True, help="List the built-in models."),
    *MODEL_OPTIONS,
    click.option(
        "--budget",
        default="auto",
        show_default=True,
        metavar="SIZE",
        help="Memory of one rank: a size, auto (what this machine has available), 75% of that, or"
        " cuda:0 (what is free there).",
    ),
    click.option(
        "--weights",
        metavar="SIZE|FILE",
        help="Subtract the weights: a size, or their file, divided evenly among the ranks.",
    ),
    RESERVE,
    click.option("--context", type=COUNT, help="Tokens of a sequence; the model's own by default."),
    click.option(
        "--sequences", type=COUNT, default=1, help="Ask how long this many can be at once."
    ),
    click.option(
        "--in-flight",
        type=COUNT,
        metavar="TOKENS",
        help=f"{_IN_FLIGHT_HELP}, but 8192 with --as vllm and 512 with --as llama.cpp.",
    ),
    click.option(
        "--granule",
        "granules",
        type=SIZE,
        multiple=True,
        help="Granule of packing, 2MiB by default; more are added to the table.",
    ),
    POLICY,
    BLOCK,
    click.option(
        "--waste",
        default="10%",
        show_default=True,
        metavar="PERCENT",
        help="Find the length from which less than this is wasted.",
    ),
    click.option("--explain", is_flag=True, help="Say where each value of the model came from."),
    click.option(
        "--compare",
        multiple=True,
        metavar="AXIS=A,B",
        help="Compare model, dtype, granule or policy in one table; may be repeated.",
    ),
    click.option(
        "--sweep",
        metavar="context=A..B",
        help="Follow the cost from A to B tokens: doubling, or A..B:STEP.",
    ),
    click.option(
        "--csv",
        type=FILE_OR_STDOUT,
        metavar="FILE",
        help="Write the table of --compare or --sweep as CSV; - is stdout, and no table.",
    ),
    click.option(
        "--as",
        "engine",
        metavar="ENGINE",
        help="Print what vllm, llama.cpp or sglang would log for the same pool.",
    ),
    click.option(
        "--state-blocks",
        default="none",
        metavar="MODE",
        help="vLLM's mamba_cache_mode for --as vllm: none, or with prefix caching align or all.",
    ),
    click.option(
        "--unified",
        is_flag=True,
        help="For --as llama.cpp: all sequences share one buffer of --context tokens.",
    ),
)
