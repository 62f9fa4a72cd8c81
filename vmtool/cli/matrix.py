"""``vmtool matrix``: every pattern with every method and granule, and which granule to use."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.kv_model_and_budget import load_cost
from vmtool.cli.options import (
    COUNT,
    SIZE,
    Command,
    backing_options,
    host_option,
    html_option,
    output_options,
)
from vmtool.cli.output import Output, command_line
from vmtool.cli.streams import progress_line
from vmtool.cli.stress_options import into_settings, matrix_settings
from vmtool.errors import CheckFailedError, ExitCode, RefusedError, UsageError, VmtoolError
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from vmtool.results.stress import StressSettings
    from vmtool.stress.matrix import SequenceLength


def _sizes(_ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(SIZE.convert(text, param, _ctx) for text in value.split(","))


@click.command("matrix", cls=Command)
@backing_options
@click.option(
    "--granule",
    "granules",
    callback=_sizes,
    metavar="SIZE,...",
    help=(
        "Which granules to measure.  [default: 4KiB,64KiB,2MiB; on a device, multiples of its "
        "granularity]"
    ),
)
@click.option(
    "--model", metavar="MODEL", help="Also show how much of this model's cache each granule wastes."
)
@click.option(
    "--context",
    type=COUNT,
    metavar="TOKENS",
    help="The length of the model's sequence; 128k is 131,072.  [default: 8k]",
)
@matrix_settings
@html_option
@host_option
@output_options
@into_settings
def command(
    settings: StressSettings,
    *,
    granules: tuple[int, ...],
    model: str | None,
    context: int | None,
    hang_ns: int,
    html: str | None,
    name_host: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Run every pattern with every method and granule, briefly, and recommend a granule.

    \b
    vmtool matrix
    vmtool matrix --granule 64KiB,2MiB --model llama-3.1-8b --context 8k

    It takes at most 128 MiB, or one granule if that is larger, and about 25 seconds: 15 for the
    runs (--duration), the rest to start their processes, which takes longer on a busy machine.
    Where huge pages are available on request, granules of whole huge pages are measured with and
    without them. On a device the granules are handles of 1, 3 and 8 times its granularity, unless
    --chunk is given; `vmtool allocators` measures more sizes.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.report.matrix import to_html, to_text
    from vmtool.stress.matrix import run_matrix
    from vmtool.stress.plan import method_names, open_backings
    from vmtool.stress.safe_memory import measure_room

    output = Output(as_json, path, quiet)
    sequence = _sequence(model, context)
    output.announce(settings.backing)
    facts = read_facts()
    # One method has reserved huge pages; "all" is what it has.
    every = "all" if settings.huge_page_bytes is None else None
    wanted = next(iter(settings.methods), every)
    settings = replace(settings, methods=method_names(settings.backing, wanted))
    room = measure_room(
        open_backings(settings)[0],
        facts,
        workers=settings.workers,
        huge_page_bytes=settings.huge_page_bytes,
    )
    began = perf_counter_ns()

    def line(done: int, total: int) -> str:
        text = f"run {done + 1} of {total}"
        if done:
            left_ns = (perf_counter_ns() - began) * (total - done) // done
            text += f", {format_duration(left_ns)} left"
        return text

    refusals: list[RefusedError] = []
    with watch_signals() as interruption, progress_line(quiet=output.quiet, every_ns=0) as show:
        result = run_matrix(
            settings,
            room,
            facts,
            granules=granules,
            sequence=sequence,
            hang_ns=hang_ns,
            name_host=name_host,
            stopping=lambda: interruption.requested,
            progress=lambda done, total: show(lambda: line(done, total)),
            refused=refusals.append,
        )
    output.emit(result, lambda console: to_text(result, console))
    output.save(html, lambda: to_html(result, command=command_line()))
    if not result.complete:
        output.notice("interrupted; everything is released, and the matrix is partial")
        return ExitCode.INTERRUPTED
    if result.cells and all(cell.refused for cell in result.cells):
        first = refusals[0]
        raise RefusedError(
            f"nothing could be measured: {first}", cause=first.cause, hint=first.hint
        )
    hint = "run its pattern, method and granule with vmtool stress for the details"
    if any(cell.failed for cell in result.cells):
        raise CheckFailedError("a cell of the matrix failed", hint=hint)
    ended = next((cell for cell in result.cells if cell.error is not None), None)
    if ended is not None:
        raise VmtoolError(
            f"a cell of the matrix ended early ({ended.pattern}, {ended.method}, "
            f"{format_size(ended.granule_bytes)}): {ended.error}",
            hint=hint,
        )
    return ExitCode.DONE


def _sequence(model: str | None, context: int | None) -> SequenceLength | None:
    if model is None:
        if context is not None:
            raise UsageError("--context needs --model", hint="give --model NAME")
        return None
    from vmtool.stress.matrix import SequenceLength

    return SequenceLength(model, load_cost(model), context or 8192)
