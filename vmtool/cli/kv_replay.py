"""``vmtool kv-replay``: what a request trace does to KV memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.output import Output, command_line
from vmtool.cli.params import keep_inputs, output_options
from vmtool.cli.replay_options import replay_options
from vmtool.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.replay.results import ReplayResult


@click.command("kv-replay", short_help="What a request trace does to KV memory, real or simulated.")
@replay_options
@output_options
def command(*, as_json: bool, path: str, quiet: bool, **options: Any) -> int:
    """Replay a trace of requests as sequences that grow token by token, and account every byte.

    \b
    vmtool kv-replay synthetic:requests=500,rate=5 --model llama-3.1-8b --budget 8GiB
    vmtool kv-replay synthetic:requests=9,output=64 --model qwen3-0.6b --backing host

    TRACE is a file: Azure LLM inference CSV, Mooncake JSON lines, BurstGPT CSV, or JSON lines with
    prompt_len and output_len; or synthetic:NAME=VALUE,... with requests, rate, prompt, output,
    spread, longest, prefixes and prefix. A prompt is committed at admission, then each decode step
    adds a token. Time is simulated; with --backing the memory is real.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.kv_question import load_model
    from vmtool.cli.progress import progress_line
    from vmtool.cli.replay_compare import answer_compare, replay_axes, replay_rows
    from vmtool.cli.replay_memory import choose_budget, open_chosen, open_safely
    from vmtool.cli.replay_plan import read_rules, read_trace
    from vmtool.replay.run import run_replay

    output = Output(as_json, path, quiet)
    name, axes = _split(options["trace"], options["compare"])
    keep_inputs(name, options["model"])
    trace = read_trace(options, name)
    model = load_model({**options, "compare": ()})
    backing = open_chosen(options)
    budget = choose_budget(options, backing)
    granule = None if backing is None else backing.granularity
    with watch_signals() as interruption, progress_line(quiet=quiet) as show:

        def stop() -> bool:
            show(lambda: f"{trace.reading.requests:,} requests")
            return interruption.requested

        def once(changed: Mapping[str, Any]) -> ReplayResult:
            rules = read_rules(changed, model, budget, granule)
            replay = partial(
                run_replay,
                trace,
                rules.plan,
                rules.settings,
                find_budget=changed["find_budget"],
                stop=stop,
            )
            if backing is None:
                return replay()
            with open_safely(backing, rules.plan, touch=changed["touch"]) as memory:
                return replay(memory=memory)

        if not axes:
            result = once(options)
        else:
            rows, complete = replay_rows(options, replay_axes(axes), once)
    if axes:
        return answer_compare(rows, options, output, complete=complete)
    return _answer(result, options, output)


def _split(arguments: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the trace and the axes of the comparison, of which some may stand as arguments."""
    from vmtool.cli.replay_compare import is_axis

    more = tuple(text for text in arguments if axes and is_axis(text))
    names = [text for text in arguments if text not in more]
    if len(names) != 1:
        raise UsageError(
            "no TRACE" if not names else f"more than one TRACE: {', '.join(names)}",
            hint="give a file, or synthetic:requests=1000,rate=5",
        )
    return names[0], axes + more


def _answer(result: ReplayResult, options: dict[str, Any], output: Output) -> int:
    from vmtool.report.replay import to_document, to_lines

    output.emit_lines(
        lambda: to_document(result, command_line()), lambda width: to_lines(result, width)
    )

    def page() -> str:
        from vmtool.report.replay_page import replay_page

        return replay_page(result, command=command_line())

    def table() -> str:
        from vmtool.report.replay_csv import timeline_csv

        return timeline_csv(result)

    output.save(options["html"], page)
    output.save(options["csv"], table)
    if result.complete:
        return ExitCode.DONE
    output.notice("interrupted; everything is released, the result is partial")
    return ExitCode.INTERRUPTED
