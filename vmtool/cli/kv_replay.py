"""``vmtool kv-replay``: what a request trace does to KV memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.output import Output, command_line
from vmtool.cli.params import output_options
from vmtool.cli.replay_options import replay_options
from vmtool.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vmtool.kv.estimate import Budget
    from vmtool.replay.results import ReplayResult


@click.command("kv-replay", short_help="What a request trace does to KV memory, simulated.")
@replay_options
@output_options
def command(*, as_json: bool, path: str | None, quiet: bool, **options: Any) -> int:
    """Replay a trace of requests as sequences that grow token by token, and account every byte.

    \b
    vmtool kv-replay synthetic:requests=500,rate=5 --model llama-3.1-8b --budget 8GiB
    vmtool kv-replay trace.csv --model qwen3-0.6b --budget 512MiB --policy paged --granule 64KiB

    TRACE is a file: Azure LLM inference CSV, Mooncake JSON lines, BurstGPT CSV, or JSON lines with
    prompt_len and output_len; or synthetic:NAME=VALUE,... with requests, rate, prompt, output,
    spread, longest, prefixes and prefix. A prompt is committed at admission, then each decode step
    adds a token. Time and memory are simulated.
    """  # noqa: D301 - click's own mark
    output = Output(as_json, path, quiet)
    names = options["trace"]
    if len(names) != 1:
        raise UsageError(
            "no TRACE" if not names else f"more than one TRACE: {', '.join(names)}",
            hint="give a file, or synthetic:requests=1000,rate=5",
        )
    return _replay(options, names[0], output)


def _replay(options: dict[str, Any], name: str, output: Output) -> int:
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.kv_question import load_model
    from vmtool.cli.replay_plan import read_rules, read_trace
    from vmtool.replay.run import run_replay
    from vmtool.report.replay import to_document, to_lines

    trace = read_trace(options, name)
    rules = read_rules(options, load_model({**options, "compare": ()}), _budget(options), None)
    with watch_signals() as interruption:
        result = run_replay(trace, rules.plan, rules.settings, stop=lambda: interruption.requested)
    output.emit_lines(
        lambda: to_document(result, command_line()), lambda width: to_lines(result, width)
    )
    return _verdict(result, output)


def _budget(options: dict[str, Any]) -> Budget:
    from vmtool.cli.kv_budget import read_budget

    return read_budget(
        options["budget"] or "auto",
        weights=options["weights"],
        reserve=options["reserve"],
        ranks=options["tp"] * options["pp"],
    )


def _verdict(result: ReplayResult, output: Output) -> int:
    if result.complete:
        return ExitCode.DONE
    output.notice("interrupted; everything is released, the result is partial")
    return ExitCode.INTERRUPTED
