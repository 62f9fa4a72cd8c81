"""``vmtool kv-estimate``: what a model's KV cache costs, and how many tokens fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.kv_options import estimate_options
from vmtool.cli.output import Output, command_line
from vmtool.cli.params import keep_inputs, output_options
from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.cli.kv_question import Asked


@click.command("kv-estimate", short_help="What a model's KV cache costs, and how many tokens fit.")
@estimate_options
@output_options
def command(as_json: bool, path: str, quiet: bool, **options: Any) -> None:
    """Say how many tokens of a model fit into memory, exactly, and what granules change.

    \b
    vmtool kv-estimate llama-3.1-8b --budget 16GiB
    vmtool kv-estimate qwen3-8b --compare dtype=bf16,q8_0 --compare granule=64KiB,2MiB

    MODEL is a built-in name (--list), a config.json or a folder with one, a GGUF file, a
    genai_config.json, an ONNX model, or nothing with --layers, --kv-heads and --head-dim.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.kv_question import asked

    output = Output(as_json, path, quiet)
    if options["csv"] == "-" and (as_json or path != "-"):
        raise UsageError("--csv - is the whole result: it goes with neither --json nor --output")
    if options["list_models"]:
        _list(output)
        return
    keep_inputs(options["model"])
    output.announce((options["budget"] or "").strip().lower())
    question = asked(options)
    if options["engine"]:
        from vmtool.cli.kv_engine import answer_as

        answer_as(question, options["engine"], output)
    elif options["compare"]:
        from vmtool.cli.kv_compare import answer_compare

        answer_compare(question, options["compare"], options["csv"], output)
    elif options["sweep"]:
        from vmtool.cli.kv_compare import answer_sweep

        answer_sweep(question, options["sweep"], options["csv"], output)
    else:
        _answer(question, output, explain=options["explain"])


def _answer(question: Asked, output: Output, *, explain: bool) -> None:
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv import to_lines

    estimate = Estimate(question.question())
    estimate.policy(estimate.question.policy)  # what cannot be is refused before a file is opened

    def document() -> dict[str, Any]:
        from vmtool.cli.kv_budget import GIVEN
        from vmtool.machine import read_facts
        from vmtool.report.kv_json import to_body

        machine = None if question.budget.origin == GIVEN else read_facts()
        return _document({"machine": machine, **to_body(estimate, explain=explain)})

    output.emit_lines(
        document,
        lambda width: to_lines(estimate, width, explain=explain),
    )


def _list(output: Output) -> None:
    from vmtool.kv.sources import builtin_names

    names = builtin_names()
    output.emit_lines(lambda: _document({"models": names}), lambda _: names)


def _document(body: dict[str, Any]) -> dict[str, Any]:
    from vmtool.report.document import document

    return document("vmtool.kv-estimate", 1, command=command_line(), body=body)
