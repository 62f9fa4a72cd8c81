"""``vmtool fleet``: which machines of many are different, and which setting explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.options import DURATION, FILE, Command, csv_option, html_option, output_options
from vmtool.cli.output import Output, command_line
from vmtool.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.fleet.judge import Fleet
    from vmtool.results.fleet import FleetBaseline, FleetResult


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the command line asked for; ``None`` is not given."""

    files: tuple[str, ...]
    arguments: tuple[str, ...]
    dask: str | None
    timeout: int | None
    retries: int
    by: tuple[str, ...]
    threshold: float
    baseline: str | None
    save: str | None
    everything: bool
    html: str | None
    csv: str | None


@click.command("fleet", cls=Command)
@click.argument("files", nargs=-1, metavar="[FILE]... [-- COMMAND]")
@click.option(
    "--dask", metavar="ADDRESS",
    help="Run COMMAND once on each host of a Dask cluster: tcp://HOST:PORT, or local:N for N workers"
    " on this machine, one after the other.",
)  # fmt: skip
@click.option(
    "--timeout", type=DURATION, metavar="TIME", help="Give up on a host after TIME (--dask)."
)
@click.option(
    "--retries", type=click.IntRange(0), default=1, show_default=True, metavar="N",
    help="If a worker dies, try N other workers of its host (--dask).",
)  # fmt: skip
@click.option(
    "--by", multiple=True, metavar="FACT",
    help="Compare machines with the same FACT, such as system.kernel; can be given several times."
    "  [default: processor, its number, RAM and GPU]",
)  # fmt: skip
@click.option(
    "--threshold", default="10%", show_default=True, metavar="PERCENT",
    help="The smallest difference that counts.",
)  # fmt: skip
@click.option(
    "--baseline", type=click.Path(), metavar="FILE",
    help="Judge machines by what FILE, written by --save, has as usual.",
)  # fmt: skip
@click.option(
    "--save", type=FILE, metavar="FILE", help="Also write what is usual here, for --baseline."
)
@click.option("--all", "everything", is_flag=True, help="Show every machine and every problem.")
@csv_option("every machine and measure")
@html_option
@output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    threshold: str,
    as_json: bool,
    path: str,
    quiet: bool,
    **options: Any,
) -> int:
    """Compare results of many machines: which is different, and which setting explains it.

    \b
    vmtool fleet results/*.json
    vmtool fleet --dask local:4 -- stress --runs 5

    FILE is a result with --json of stress, check, granularity, doctor, limits, grow or inspect: one
    file a machine, JSON lines, gzip, a folder, or - for stdin. Machines that are alike are compared by
    the mean of their runs; at least 8 of them and 2 runs each are needed. The exit code is 3 if a
    machine differs or has failed checks.
    """  # noqa: D301 - click's own mark
    from vmtool.cli import COMMAND_AFTER

    arguments = context.meta.get(COMMAND_AFTER, ())
    chosen = FleetOptions(arguments=arguments, threshold=_part(threshold), **options)
    return _run(chosen, Output(as_json, path, quiet))


def _part(text: str) -> float:
    from vmtool.units import parse_percent

    try:
        part = parse_percent(text)
    except ValueError as error:
        raise UsageError(f"--threshold: {error}") from None
    if not 0 < part <= 10:
        raise UsageError(f"--threshold {text}: it must be above 0% and at most 1000%")
    return float(part)


def _check(options: FleetOptions) -> None:
    if options.dask is None and options.arguments:
        raise UsageError("a command after -- needs --dask", hint="add --dask local:4")
    if options.dask is not None and not options.arguments:
        raise UsageError("--dask needs a command", hint="add: -- stress --runs 5")
    if options.dask is not None and options.files:
        raise UsageError("give files, or --dask and a command, not both")
    if options.dask is None and not options.files:
        raise UsageError("no results", hint="give files, or --dask ADDRESS -- COMMAND")
    if options.arguments and options.arguments[0] == "fleet":
        raise UsageError("the command after -- cannot be fleet")


def _run(options: FleetOptions, output: Output) -> int:
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.options import keep_inputs
    from vmtool.cli.progress import progress_line
    from vmtool.fleet.judge import Fleet, baseline_of, judge

    _check(options)
    keep_inputs(options.baseline, *options.files)
    baseline = None if options.baseline is None else read_baseline(options.baseline)
    fleet = Fleet()
    with watch_signals() as interruption, progress_line(quiet=output.quiet) as show:

        def stop() -> bool:
            show(lambda: f"{fleet.results:,} results")
            return interruption.requested

        _gather(options, fleet, stop)
        complete = not interruption.requested
    result = judge(
        fleet, by=options.by, threshold=options.threshold, baseline=baseline, complete=complete
    )
    _write(result, options, output)
    if options.save is not None:
        saved = baseline_of(fleet, by=options.by)
        output.save(options.save, lambda: write_baseline(saved))
    if not complete:
        output.notice("interrupted; the result is of what was gathered until then")
        return ExitCode.INTERRUPTED
    if not fleet.results:
        return ExitCode.UNAVAILABLE
    return ExitCode.CHECK_FAILED if result.outliers or result.failed else ExitCode.DONE


def _gather(options: FleetOptions, fleet: Fleet, stop: Callable[[], bool]) -> None:
    if options.dask is not None:
        from vmtool.fleet.hosts import connected

        timeout = None if options.timeout is None else options.timeout / 1e9
        with connected(options.dask) as cluster:
            for found in cluster.gather(
                options.arguments, timeout_s=timeout, retries=options.retries, stop=stop
            ):
                fleet.add(found)
        return
    from vmtool.fleet.gather import list_files, read_files

    for read in read_files(list_files(options.files)):
        fleet.add(read)
        if stop():
            return


def _write(result: FleetResult, options: FleetOptions, output: Output) -> None:
    from vmtool.report.fleet import to_csv, to_html, to_markdown, to_text

    output.emit(
        result,
        lambda console: to_text(result, console, everything=options.everything),
        lambda: to_markdown(result),
    )
    output.save(options.csv, lambda: to_csv(result))
    output.save(options.html, lambda: to_html(result, command_line()))


def read_baseline(path: str) -> FleetBaseline:
    """Return the baseline in *path*.

    Raises:
        InputError: If it is not one.
    """
    from vmtool.documents import DocumentError, decode, parse
    from vmtool.errors import InputError
    from vmtool.inputs import read_bytes
    from vmtool.results.fleet import FleetBaseline

    document = parse(path, read_bytes(path, 64 << 20, text=True))
    if document.get("schema") != "vmtool.fleet.baseline":
        raise InputError(path, "is not a baseline", hint="write one with vmtool fleet --save")
    try:
        return decode(FleetBaseline, document)
    except DocumentError as error:
        raise InputError(path, error.problem, field=error.field) from None


def write_baseline(baseline: FleetBaseline) -> str:
    """Return the document of *baseline*."""
    from vmtool.documents import encode
    from vmtool.results import document_of

    return encode(baseline, document_of(baseline).head(command_line()))
