"""``vmtool fleet``: which of many machines differ, which setting explains it, and baseline files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.app import COMMAND_AFTER
from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import DURATION, FILE, Command, csv_option, html_option, output_options
from vmtool.cli.output import Output, command_line, keep_inputs
from vmtool.cli.streams import progress_line, tell
from vmtool.errors import ExitCode, InputError, UsageError
from vmtool.units import parse_percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.cli.interrupt import Interruption
    from vmtool.fleet.machines import Fleet
    from vmtool.results.fleet import FleetBaseline, FleetResult


#: Problems that are written to stderr where there is no result.
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the command line asked for; ``None`` is not given."""

    files: tuple[str, ...]
    arguments: tuple[str, ...]
    dask: str | None
    timeout: int | None
    retries: int
    resources: str | None
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
    "--timeout", type=DURATION, metavar="TIME",
    help="Stop waiting for a host after TIME (--dask).",
)  # fmt: skip
@click.option(
    "--retries", type=click.IntRange(0), default=1, show_default=True, metavar="N",
    help="If a worker dies, try its host again up to N times (--dask).",
)  # fmt: skip
@click.option(
    "--resources", metavar="NAME=N[,...]",
    help="Run COMMAND only on workers that have this much of a Dask resource free; `dask worker"
    " --resources vmtool=1` starts such a worker (--dask).",
)  # fmt: skip
@click.option(
    "--by", multiple=True, metavar="FACT",
    help="Compare machines with the same FACT, such as system.kernel; can be given several times."
    "  [default: processor model, number of processors, RAM and GPU]",
)  # fmt: skip
@click.option(
    "--threshold", default="10%", show_default=True, metavar="PERCENT",
    help="Ignore differences below PERCENT.",
)  # fmt: skip
@click.option(
    "--baseline", type=click.Path(), metavar="FILE",
    help="Compare machines with FILE, which --save wrote, instead of with each other.",
)  # fmt: skip
@click.option(
    "--save", type=FILE, metavar="FILE",
    help="Also write what is usual for these machines to FILE, for a later --baseline.",
)  # fmt: skip
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
    """Compare results from many machines: which one differs, and which setting explains it.

    \b
    vmtool fleet results/*.json
    vmtool fleet --dask local:4 -- stress --runs 5

    FILE is a --json result of stress, check, granularity, doctor, limits, grow, inspect, matrix,
    guards or reserve: one file per machine, JSON lines, gzip, a folder, or - for stdin. Machines that
    are alike are compared by the mean of their runs; at least 8 of them and 2 runs each are needed.
    The exit code is 3 if a machine differs or has failed checks.
    """  # noqa: D301 - click's own mark
    arguments = context.meta.get(COMMAND_AFTER, ())
    chosen = FleetOptions(arguments=arguments, threshold=_part(threshold), **options)
    return _run(chosen, Output(as_json, path, quiet))


def _part(text: str) -> float:
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
    for name, value in (("timeout", options.timeout), ("resources", options.resources)):
        if options.dask is None and value is not None:
            raise UsageError(f"--{name} needs --dask")
    if options.arguments:
        _check_command(options.arguments)


def _resources(text: str | None) -> dict[str, float]:
    """Return the amounts in a text such as ``GPU=1,vmtool=1``."""
    found: dict[str, float] = {}
    for part in text.split(",") if text is not None else ():
        name, _, amount = part.partition("=")
        if not name or not amount.isdecimal() or not int(amount):
            raise UsageError(f"--resources {part}: it must be NAME=N", hint="such as vmtool=1")
        found[name] = float(amount)
    return found


def _check_command(arguments: tuple[str, ...]) -> None:
    """Parse the command that hosts will run, so that they are not asked for what is wrong usage."""
    from vmtool.fleet.result_files import KINDS

    name, *rest = arguments
    if name not in KINDS:
        raise UsageError(
            f"the command after -- cannot be {name}", hint=f"use one of {', '.join(KINDS)}"
        )
    if "--" in rest:
        raise UsageError(
            "the command after -- cannot have a -- of its own",
            hint="inspect a process that runs: -- inspect PID",
        )
    if not {"-h", "--help"}.isdisjoint(rest):
        raise UsageError(
            "the command after -- must not ask for help", hint=f"run: vmtool {name} --help"
        )
    module = import_module(f"vmtool.cli.{name}")
    # click keeps a command's help option as it was first made.
    names = click.get_current_context().help_option_names
    parsed = module.command.make_context(
        f"vmtool {name}", [*rest, "--json"], help_option_names=names
    )
    if parsed.params.get("path", "-") != "-":
        raise UsageError(
            "-o after -- would write a file on the host that runs the command",
            hint="give -o before the --",
        )


def _run(options: FleetOptions, output: Output) -> int:
    from vmtool.fleet.judge import baseline_of, judge
    from vmtool.fleet.machines import Fleet
    from vmtool.fleet.result_files import list_files
    from vmtool.report.fleet import not_saved

    _check(options)
    resources = _resources(options.resources)
    files = list_files(options.files)
    keep_inputs(options.baseline, *files)
    baseline = None if options.baseline is None else _read_baseline(options.baseline)
    fleet = Fleet()
    with watch_signals() as interruption, progress_line(quiet=output.quiet) as show:

        def stop() -> bool:
            show(lambda: f"{fleet.results:,} results")
            return interruption.requested

        with suppress(KeyboardInterrupt):
            _gather(options, files, resources, fleet, interruption, stop)
        complete = not interruption.requested
    if complete and not fleet.results and options.dask is None:
        return _no_results(fleet)
    _check_facts(options, fleet)
    result = judge(
        fleet, by=options.by, threshold=options.threshold, baseline=baseline, complete=complete
    )
    _write(result, options, output)
    if options.save is not None:
        saved = baseline_of(fleet, by=options.by, threshold=options.threshold)
        output.save(options.save, lambda: _write_baseline(saved))
        for group in result.groups:
            if (left := not_saved(group, saved)) is not None:
                output.notice(f"{options.save}: {left}")
    if not complete:
        until = "; the result covers what was gathered until then" if fleet.results else ""
        output.notice(f"interrupted{until}")
        return ExitCode.INTERRUPTED
    if not fleet.results:
        tell("vmtool: error: no host gave a result")
        return ExitCode.UNAVAILABLE
    return ExitCode.CHECK_FAILED if result.outliers or result.failed else ExitCode.DONE


def _no_results(fleet: Fleet) -> ExitCode:
    """Say what is wrong with each file, as nothing is right."""
    for problem in fleet.problems[:_SHOWN]:
        tell(f"vmtool: error: {problem.source}: {problem.problem}")
    if len(fleet.problems) > _SHOWN:
        tell(f"vmtool: error: and {len(fleet.problems) - _SHOWN:,} more without a result")
    return ExitCode.USAGE


def _check_facts(options: FleetOptions, fleet: Fleet) -> None:
    known = {fact for machine in fleet.machines.values() for fact in machine.facts}
    for name in options.by:
        if name not in known and known:
            from difflib import get_close_matches

            near = get_close_matches(name, known) or ["system.kernel"]
            raise UsageError(
                f"--by {name}: no result has this fact", hint=f"such as {', '.join(near)}"
            )


def _gather(
    options: FleetOptions,
    files: list[str],
    resources: dict[str, float],
    fleet: Fleet,
    interruption: Interruption,
    stop: Callable[[], bool],
) -> None:
    if options.dask is not None:
        from vmtool.fleet.dask_hosts import connected

        timeout = None if options.timeout is None else options.timeout / 1e9
        with connected(options.dask) as cluster:
            for found in cluster.gather(
                options.arguments,
                timeout_s=timeout,
                retries=options.retries,
                resources=resources,
                stop=stop,
            ):
                fleet.add(found)
        fleet.problems.sort(key=attrgetter("source"))  # hosts answer in any order
        return
    from vmtool.fleet.result_files import read_files

    results = read_files(files)
    while not stop():
        with interruption.waiting():  # for whatever writes to a pipe
            read = next(results, None)
        if read is None:
            return
        fleet.add(read)


def _write(result: FleetResult, options: FleetOptions, output: Output) -> None:
    from vmtool.report.csv_and_openmetrics import fleet_csv
    from vmtool.report.fleet import to_html, to_markdown, to_text

    output.emit(
        result,
        lambda console: to_text(result, console, everything=options.everything),
        lambda: to_markdown(result),
    )
    output.save(options.csv, lambda: fleet_csv(result))
    output.save(options.html, lambda: to_html(result, command_line()))


def _read_baseline(path: str) -> FleetBaseline:
    """Return the baseline in *path*.

    Raises:
        InputError: If it is not one.
    """
    from vmtool.input_files import read_bytes
    from vmtool.json_documents import MAX_BYTES, DocumentError, decode, parse
    from vmtool.results.document_versions import document_named
    from vmtool.results.fleet import FleetBaseline

    document = parse(path, read_bytes(path, MAX_BYTES, text=True))
    kind = document_named("fleet.baseline")
    if document.get("schema") != kind.name:
        raise InputError(path, "is not a baseline", hint="write one with vmtool fleet --save")
    if (version := document.get("version")) != kind.version:
        raise InputError(
            path,
            f"is {str(version)[:20]}; this vmtool reads {kind.version}",
            field="version",
            hint="write it again with vmtool fleet --save",
        )
    try:
        baseline = decode(FleetBaseline, document)
    except DocumentError as error:
        raise InputError(path, error.problem, field=error.field) from None
    for i, group in enumerate(baseline.groups):
        for j, measure in enumerate(group.measures):
            if (problem := measure.problem()) is not None:
                raise InputError(path, problem, field=f"groups[{i}].measures[{j}]")
    return baseline


def _write_baseline(baseline: FleetBaseline) -> str:
    """Return the document of *baseline*."""
    from vmtool.json_documents import encode
    from vmtool.results.document_versions import document_of

    return encode(baseline, document_of(baseline).head(command_line()))
