"""``vmtool kv-estimate``: the command, and the answer to one question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.kv_estimate_options import estimate_options
from vmtool.cli.kv_model_and_budget import (
    refuse_large_weights,
)
from vmtool.cli.options import (
    Command,
    html_option,
    output_options,
)
from vmtool.cli.output import Output, command_line, keep_inputs
from vmtool.errors import ExitCode, RefusedError, UsageError

if TYPE_CHECKING:
    from vmtool.cli.kv_estimate_options import EstimateOptions
    from vmtool.cli.kv_estimate_request import EstimateRequest
    from vmtool.kv.estimate import Question
    from vmtool.kv.estimate_result import EstimateResult
    from vmtool.report.kv_estimate_engines import EngineResult
    from vmtool.report.kv_estimate_page import PageResult


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
    from vmtool.cli.kv_estimate_options import EstimateOptions
    from vmtool.cli.kv_estimate_request import read_request

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
