"""``vmtool kv-estimate``: its options, and the answer to one question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.kv_model_and_budget import (
    IN_FLIGHT_HELP,
    MODEL,
    POLICY,
    RESERVE,
    TP,
    refuse_large_weights,
)
from vmtool.cli.options import (
    COUNT,
    FILE_OR_STDOUT,
    SIZE,
    Command,
    completing,
    html_option,
    option_group,
    output_options,
)
from vmtool.cli.output import Output, command_line, keep_inputs
from vmtool.errors import ExitCode, RefusedError, UsageError

if TYPE_CHECKING:
    from vmtool.cli.kv_estimate_request import EstimateOptions, EstimateRequest
    from vmtool.kv.estimate import Question
    from vmtool.kv.estimate_result import EstimateResult
    from vmtool.report.kv_estimate_engines import EngineResult
    from vmtool.report.kv_estimate_page import PageResult


def _axes() -> list[str]:
    from vmtool.cli.kv_estimate_compare import AXES

    return [f"{axis}=" for axis in AXES]


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
        click.option(
            "--compare",
            multiple=True,
            metavar="AXIS=A,B",
            shell_complete=completing(_axes),
            help="Compare model, dtype, granule, policy, tp, pp, budget, context or sequences in one"
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


@click.command(
    "kv-estimate", cls=Command, short_help="What a model's KV cache costs, and how many tokens fit."
)
@estimate_options
@html_option
@output_options
def command(as_json: bool, path: str, quiet: bool, **options: Any) -> int:
    """Show exactly what a model's KV cache costs, and how many tokens fit into memory.

    \b
    vmtool kv-estimate llama-3.1-8b --budget 16GiB
    vmtool kv-estimate qwen3-8b --compare dtype=bf16,q8_0 --compare tp=1,2,4

    MODEL is a built-in name (--list), a config.json or a folder with one, a GGUF file, a
    genai_config.json, an ONNX model, OWNER/NAME on the hub or its address, - for stdin, or nothing
    with --layers, --kv-heads and --head-dim.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.kv_estimate_request import EstimateOptions, read_request

    output = Output(as_json, path, quiet)
    given = EstimateOptions(**options)
    if given.csv == "-" and (as_json or path != "-"):
        raise UsageError("--csv - takes all of stdout: it cannot be used with --json or --output")
    if given.list_models:
        _list(output)
        return ExitCode.DONE
    keep_inputs(given.model)
    if given.engine is not None:
        from vmtool.kv.engines.known_engines import find_engine

        find_engine(given.engine)  # what cannot be is refused before a model is read
    _say_what_takes_time(given, output)
    request = read_request(given)
    _refuse_assumed(request, output)
    _say_without_draft(request, output)
    if given.compare:
        from vmtool.cli.kv_estimate_compare import print_comparison

        result: PageResult = print_comparison(request, output)
    elif given.sweep:
        from vmtool.cli.kv_estimate_compare import print_sweep

        result = print_sweep(request, output)
    elif given.engine is not None:
        result = _print_engine(request, output)
    else:
        result = _print_answer(request, output)

    def page() -> str:
        from vmtool.report.kv_estimate_page import to_html

        return to_html(result, command_line())

    output.save(given.html, page)
    return ExitCode.DONE


def _say_what_takes_time(given: EstimateOptions, output: Output) -> None:
    if given.budget is not None:
        output.announce(given.budget.strip().lower())
    if given.model is not None:
        from vmtool.kv.sources.model_lookup import remote_name

        repository = remote_name(given.model)
        if repository is not None:
            output.notice(f"{given.model!r} is not a file here; asking the hub for {repository}")


def _refuse_assumed(request: EstimateRequest, output: Output) -> None:
    """Say that an unknown architecture is taken for a standard one, or refuse it."""
    model = request.model
    if not model.assumed:
        return
    what = (
        f"{model.architecture[:60]!r} is not an architecture that vmtool knows; all of its fields "
        "are standard, so standard attention is assumed"
    )
    if request.options.strict:
        raise RefusedError(what, hint="leave out --strict to assume standard attention")
    output.notice(what)


def _say_without_draft(request: EstimateRequest, output: Output) -> None:
    """Say that draft tokens have no cache of their own if it is unknown what predicts them."""
    model = request.model
    if request.options.draft_tokens and not model.draft:
        output.notice(
            f"{model.name} states no MTP layers, so --draft-tokens adds no draft cache; name a "
            "draft model with --draft-model"
        )


def _say_beyond_context(question: Question, output: Output) -> None:
    context = question.geometry.context_tokens
    if context is not None and question.length > context:
        output.notice(
            f"--context {question.length:,} is beyond the model's own {context:,}; it may not be "
            "trained for longer positions"
        )


def _print_answer(request: EstimateRequest, output: Output) -> EstimateResult:
    from vmtool.kv.estimate import answer_question
    from vmtool.kv.packing.policies import POLICIES
    from vmtool.report.kv_estimate import to_text

    question = request.question()
    refuse_large_weights(question)
    _say_beyond_context(question, output)
    options = request.options
    everything = output.as_json or options.packing or options.html is not None
    result = answer_question(
        question, policies=POLICIES if everything else (), explain=options.explain
    )
    if request.lacks_weights:
        output.notice(request.lacking)
    output.emit(result, lambda console: to_text(result, console, packing=options.packing))
    return result


def _print_engine(request: EstimateRequest, output: Output) -> EngineResult:
    from vmtool.cli.kv_estimate_request import engine_result
    from vmtool.report.kv_estimate_engines import to_text

    question = request.question()
    refuse_large_weights(question)
    _say_beyond_context(question, output)
    result = engine_result(request, question)
    if request.options.blocks is None and request.lacks_weights:
        output.notice(request.lacking)
    output.emit(result, lambda console: to_text(result, console))
    return result


def _list(output: Output) -> None:
    from vmtool.kv.estimate_compare_result import ModelList
    from vmtool.kv.sources import builtin
    from vmtool.report.console import show

    result = ModelList(builtin.names(), {name: builtin.on_hub(name) for name in builtin.names()})
    output.emit(result, lambda console: show(console, result.models))
