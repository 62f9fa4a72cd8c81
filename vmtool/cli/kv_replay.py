"""``vmtool kv-replay``: the command, and one replay."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.kv_compare_axes import split_axes
from vmtool.cli.kv_model_and_budget import (
    GIVEN,
    read_memory,
)
from vmtool.cli.kv_replay_options import (
    AXES,
    ReplayOptions,
    choose_budget,
    load_options_model,
    open_chosen,
    replay_options,
)
from vmtool.cli.options import (
    Command,
    host_option,
    output_options,
)
from vmtool.cli.output import Output, command_line, keep_inputs
from vmtool.cli.streams import progress_line, tell
from vmtool.errors import ExitCode, UsageError, VmtoolError
from vmtool.units import count_of, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.kv.traces.trace import Trace
    from vmtool.memory.backing import VirtualBacking
    from vmtool.replay.rules import Rules
    from vmtool.results.kv_replay import ReplayComparison, ReplayResult


@click.command(
    "kv-replay",
    cls=Command,
    short_help="What a request trace does to KV memory, real or simulated.",
)
@replay_options
@host_option
@output_options
def command(*, name_host: bool, as_json: bool, path: str, quiet: bool, **options: Any) -> int:
    """Replay a trace of requests as sequences that grow token by token, and account for every byte.

    \b
    vmtool kv-replay synthetic:requests=500 --model llama-3.1-8b --budget 8GiB
    vmtool kv-replay synthetic:requests=9 --model qwen3-0.6b --backing host

    TRACE is a file (Azure LLM inference CSV, Mooncake JSON lines, BurstGPT CSV, or JSON lines with
    prompt_len and output_len; gzip is read too), - for stdin, or synthetic:NAME=VALUE,... with
    requests, rate, prompt, output, spread, longest, prefixes and prefix. A prompt is committed at
    admission, then each decode step adds a token. Time is simulated; with --backing the memory is
    real.
    """  # noqa: D301 - click's own mark
    names, axes = split_axes(options.pop("trace"), options.pop("compare"), AXES)
    if len(names) != 1:
        raise UsageError(
            "no TRACE" if not names else f"more than one TRACE: {', '.join(names)}",
            hint="give a file, or synthetic:requests=1000,rate=5",
        )
    files = options.pop("html"), options.pop("csv")
    where = options.pop("jobs"), options.pop("dask")
    chosen = ReplayOptions(names[0], **options)
    return _Run(chosen, axes, where, files, name_host, Output(as_json, path, quiet)).run()


class _Run:
    """One run of the command."""

    def __init__(
        self,
        options: ReplayOptions,
        axes: Sequence[str],
        where: tuple[int, str | None],
        files: tuple[str | None, str | None],
        name_host: bool,
        output: Output,
    ) -> None:
        self._options = options
        self._axes = axes
        self._where = where
        self._html, self._csv = files
        self._name_host = name_host
        self._output = output

    def run(self) -> int:
        from vmtool.cli.kv_replay_compare import compare_cells, compare_elsewhere, replay_cells

        options = self._options
        memory = None if options.budget is None else read_memory(options.budget)
        options = self._options = options.divided(memory)
        keep_inputs(options.trace, options.model)
        trace = options.open_trace()
        model = load_options_model(options)
        backing = open_chosen(options)
        elsewhere = self._where != (1, None)
        if elsewhere and (backing is not None or not self._axes):
            raise UsageError(
                "--jobs and --dask are for --compare without real memory",
                hint="add --compare" if backing is None else "leave --backing out",
            )
        budget = choose_budget(options, memory, backing)
        if options.budget is not None and options.weights is None and budget.origin != GIVEN:
            self._output.notice(
                f"no weights are subtracted from the budget ({budget.origin}); give them with "
                "--weights"
            )
        granule = None if backing is None else backing.granularity
        cells = replay_cells(options, self._axes)

        def rules_of(chosen: ReplayOptions) -> Rules:
            return chosen.rules(model, budget, granule)

        with (
            watch_signals() as interruption,
            progress_line(quiet=self._output.quiet) as show,
        ):
            shown = _progress(trace)

            def stop() -> bool:
                show(shown)
                return interruption.requested

            def once(chosen: ReplayOptions) -> ReplayResult:
                if backing is None:  # no date: the same trace and rules give the same document
                    return _replay(trace, chosen, rules_of(chosen), None, stop)
                from vmtool.machine.run_conditions import RunConditionsWatch

                watch = RunConditionsWatch(name_host=self._name_host)
                result = _replay(trace, chosen, rules_of(chosen), backing, stop)
                if result.real is None:
                    return result
                return replace(result, real=replace(result.real, conditions=watch.finish()))

            if not cells:
                result = once(options)
            elif not elsewhere:
                comparison = compare_cells(cells, once)
            else:
                comparison = compare_elsewhere(cells, rules_of, budget.kv_bytes, self._where, stop)
        late = trace.reading.late if cells or result.real is None else result.trace.late
        if late:
            what = "request is out of order"
            if late > 1:
                what = "requests are out of order"
            self._output.notice(f"{late:,} {what}; --sort sorts by time")
        if cells:
            return self._answer_comparison(comparison, backing)
        return self._answer(result, backing)

    def _answer(self, result: ReplayResult, backing: VirtualBacking | None) -> int:
        from vmtool.replay.safe_memory import refuse_if_none_fits
        from vmtool.report.csv_and_openmetrics import replay_csv
        from vmtool.report.kv_replay import how_it_ended, to_text
        from vmtool.report.kv_replay_page import to_html

        self._output.emit(result, lambda console: to_text(result, console))
        self._output.save(self._html, lambda: to_html(result, command_line()))
        self._output.save(self._csv, lambda: replay_csv(result))
        if result.complete:
            if backing is not None and self._options.budget is None:
                refuse_if_none_fits(result, backing)
            return ExitCode.DONE
        if result.accident is not None:
            accident = result.accident
            raise VmtoolError(how_it_ended(accident), cause=accident.cause, hint=accident.hint)
        self._output.notice("interrupted; everything is released, and the result is partial")
        return ExitCode.INTERRUPTED

    def _answer_comparison(self, result: ReplayComparison, backing: VirtualBacking | None) -> int:
        from vmtool.report.csv_and_openmetrics import replay_comparison_csv
        from vmtool.report.kv_replay import compare_text
        from vmtool.report.kv_replay_page import compare_html

        self._output.emit(result, lambda console: compare_text(result, console))
        self._output.save(self._html, lambda: compare_html(result, command_line()))
        self._output.save(self._csv, lambda: replay_comparison_csv(result))
        if result.complete:
            return ExitCode.DONE
        if result.problem:
            rows = count_of(len(result.rows), "row")
            tell(f"vmtool: error: {result.problem}; the result has {rows}")
            return ExitCode.CALL_FAILED if backing is not None else ExitCode.UNAVAILABLE
        self._output.notice(f"interrupted after {len(result.rows)} rows; everything is released")
        return ExitCode.INTERRUPTED


def _replay(
    trace: Trace,
    options: ReplayOptions,
    rules: Rules,
    backing: VirtualBacking | None,
    stop: Callable[[], bool],
) -> ReplayResult:
    from vmtool.input_files import is_stream
    from vmtool.replay.safe_memory import open_safely
    from vmtool.replay.trace_to_result import run_replay

    plan, settings = rules.plan, rules.settings
    if backing is None:
        return run_replay(trace, plan, settings, find_budget=options.find_budget, stop=stop)
    in_child = backing.name == "host" and not is_stream(options.trace)
    with open_safely(backing, plan, touch=options.touch, in_child=in_child) as memory:
        if not in_child:
            return run_replay(
                trace, plan, settings, memory=memory, find_budget=options.find_budget, stop=stop
            )
    # What the kernel may kill for its memory is another process.
    from vmtool.replay.replay_process import Job, replay_in_child

    job = Job(
        options.trace_arguments(),
        rules,
        backing.name,
        options.method,
        options.prefault,
        options.touch,
        options.find_budget,
    )

    def seen(requests: int) -> None:
        trace.reading.requests = requests  # for the progress

    return replay_in_child(job, stop, seen)


def _progress(trace: Trace) -> Callable[[], str]:
    """Return a function that says how far the reading of *trace* is, and how long it will take."""
    started_s = time.monotonic()

    def text() -> str:
        found = f"{trace.reading.requests:,} requests"
        fraction = trace.progress()
        if not fraction:
            return found
        left = (time.monotonic() - started_s) * (1 - fraction) / fraction
        return f"{100 * fraction:.0f} %, {found}, {format_duration(round(left) * 10**9)} left"

    return text
