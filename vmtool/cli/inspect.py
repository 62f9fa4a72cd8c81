"""``vmtool inspect``: what a running or new process does with its memory, and what will stop it."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vmtool.cli.app import COMMAND_AFTER
from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import (
    COUNT,
    DURATION,
    FILE,
    Command,
    csv_option,
    host_option,
    html_option,
    output_options,
)
from vmtool.cli.output import Output, command_line, replace_whole
from vmtool.cli.streams import progress_line, tell
from vmtool.errors import CallError, ExitCode, UsageError, VmtoolError
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from vmtool.cli.interrupt import Interruption
    from vmtool.inspect.processes import ProcessView
    from vmtool.inspect.watch import InspectOptions, Watch
    from vmtool.machine.facts import MachineFacts
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.results.inspect import InspectResult, Sample


class _Pid(click.ParamType[int]):
    """The number of a process."""

    name = "pid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        # Ten digits hold any PID; more would be a slow way to say no.
        if isinstance(value, str) and value.isdecimal() and len(value) > 10:
            self.fail(f"no process has the PID {value[:60]}", param, ctx)
        if isinstance(value, str) and (not value.isdecimal() or not int(value)):
            self.fail(f"{value[:60]!r} is not a PID; select by name with --name", param, ctx)
        return int(value)


@dataclass(frozen=True, slots=True)
class InspectCommand:
    """What the command line says about which process to look at, and where files go."""

    pid: int | None
    name: str | None
    program: tuple[str, ...]
    csv: str | None
    html: str | None
    metrics: str | None
    strict: bool
    name_host: bool


@click.command("inspect", cls=Command)
@click.argument("pid", required=False, type=_Pid())
@click.option("--name", metavar="NAME", help="Select the process by its name instead of its PID.")
@click.option("--watch", is_flag=True, help="Sample it until Ctrl-C, or for --duration.")
@click.option(
    "--interval", type=DURATION, default="1s", show_default=True, metavar="TIME",
    help="Time from one sample to the next.",
)  # fmt: skip
@click.option("--duration", type=DURATION, metavar="TIME", help="Watch for TIME.")
@click.option(
    "--detail-interval", type=DURATION, default="60s", show_default=True, metavar="TIME",
    help="Read residency at most this often: reading it locks the memory map of the process.",
)  # fmt: skip
@click.option(
    "--top", type=COUNT, default="12", show_default=True, metavar="N",
    help="Show the N largest reservations.",
)  # fmt: skip
@click.option("--children", is_flag=True, help="List its descendants as well.")
@click.option("--numa", is_flag=True, help="Show on which NUMA nodes the pages are.")
@click.option(
    "--assert", "conditions", multiple=True, metavar="CONDITION",
    help="Exit 3 unless the condition, such as 'resident.slope<1MiB/min', holds. Can be given several times.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 3 also if a condition is not proven.")
@csv_option("the samples as a table")
@html_option
@click.option(
    "--metrics", type=FILE, metavar="FILE",
    help="Also write the last sample as OpenMetrics text; a watch rewrites FILE at each sample.",
)  # fmt: skip
@host_option
@output_options
@click.pass_context
def command(
    context: click.Context,
    *,
    pid: int | None,
    name: str | None,
    watch: bool,
    interval: int,
    duration: int | None,
    detail_interval: int,
    top: int,
    children: bool,
    numa: bool,
    conditions: tuple[str, ...],
    strict: bool,
    csv: str | None,
    html: str | None,
    metrics: str | None,
    name_host: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Show what a process does with its memory, and which limit will stop it.

    \b
    vmtool inspect 4242
    vmtool inspect 4242 --watch --duration 1m --assert 'resident.slope<1MiB/min'
    vmtool inspect -o report.txt -- python3 -c 'print(2)'

    A command after -- is started and watched until it ends; vmtool exits with its exit code. A
    watch prints one report, or one JSON document, when it ends, even after Ctrl-C or SIGTERM. The
    process is never stopped, attached to or written to.
    """  # noqa: D301 - click's own mark
    from vmtool.inspect.trends_and_conditions import parse_condition
    from vmtool.inspect.watch import InspectOptions

    asked = InspectCommand(
        pid, name, tuple(context.meta.get(COMMAND_AFTER, ())), csv, html, metrics, strict, name_host
    )
    _check_usage(asked, as_json=as_json, path=path)
    options = InspectOptions(
        watch=watch or duration is not None or bool(asked.program),
        interval_ns=interval,
        duration_ns=duration,
        detail_interval_ns=detail_interval,
        fresh=bool(asked.program),
        top=top,
        nodes=numa,
        children=children,
        conditions=tuple(parse_condition(text) for text in conditions),
    )
    output = Output(as_json, path, quiet)
    if asked.program:
        return _run_program(asked, options, output)
    from vmtool.inspect.processes import find_by_name, open_process
    from vmtool.machine import read_facts
    from vmtool.machine.run_conditions import RunConditionsWatch

    noted = RunConditionsWatch(name_host=name_host)
    target = open_process(find_by_name(name) if name is not None else pid or 0)
    try:
        result = _inspect(target, options, read_facts(), output, asked)
    finally:
        target.close()
    result = replace(result, conditions=noted.finish())
    _write_report(output, result)
    _write_files(asked, output, result)
    return _exit_code(asked, result)


def _check_usage(asked: InspectCommand, *, as_json: bool, path: str) -> None:
    given = [asked.pid is not None, asked.name is not None, bool(asked.program)]
    if sum(given) != 1:
        raise UsageError(
            "give one process" if not any(given) else "give only one of PID, --name and -- COMMAND",
            hint="vmtool inspect 4242, vmtool inspect --name llama-server, or "
            "vmtool inspect -- llama-server -m model.gguf",
        )
    if asked.program and as_json and path == "-":
        raise UsageError(
            "--json needs -o FILE with a command: stdout belongs to the command",
            hint="vmtool inspect --json -o inspect.json -- COMMAND",
        )
    if asked.program and path == "-" and sys.stderr is None:
        raise UsageError(
            "the report of a command goes to stderr, which is closed", hint="use -o FILE"
        )


def _inspect(
    target: ProcessView,
    options: InspectOptions,
    facts: MachineFacts,
    output: Output,
    asked: InspectCommand,
    child: WatchedProgram | None = None,
) -> InspectResult:
    from vmtool.inspect.areas_and_reservations import ProcessGoneError
    from vmtool.inspect.watch import look, watch

    def progress(watched: Watch) -> None:
        show_line(lambda: _line(watched.latest))
        if asked.metrics is not None:
            _refresh_metrics(asked.metrics, watched)

    try:
        if not options.watch:
            return look(target, options, facts)
        quiet = output.quiet or child is not None
        with (
            watch_signals() if child is None else nullcontext(child.interruption) as interruption,
            progress_line(quiet=quiet, every_ns=0) as show_line,
        ):
            return watch(
                target,
                options,
                facts,
                stopping=(lambda: interruption.requested) if child is None else child.stop,
                progress=progress,
                ended=(lambda: None) if child is None else child.ended,
            )
    except ProcessGoneError as error:
        raise CallError(
            "read",
            f"process {target.pid}",
            code=errno.ESRCH,
            symbol="ESRCH",
            detail="the process ended before anything was read",
            hint="give the PID of a running process",
        ) from error


def _refresh_metrics(path: str, watched: Watch) -> None:
    """Replace the file; a pipe or a device gets only the last sample."""
    from vmtool.report.csv_and_openmetrics import process_metrics

    # What cannot be written now is tried again at the end, where a failure is reported.
    with suppress(OSError):
        replace_whole(path, process_metrics(watched.identity, watched.latest, watched.limits))


def _line(counters: Sample | None) -> str:
    if counters is None:
        return ""
    words = format_duration(counters.at_ns)
    if counters.resident_bytes is not None:
        words += f", {format_size(counters.resident_bytes)} resident"
    if counters.areas is not None:
        words += f", {counters.areas:,} areas"
    return words


def _run_program(asked: InspectCommand, options: InspectOptions, output: Output) -> int:
    """Start a command, watch it to its end, and return its exit code."""
    # All that takes time comes before the start, so that the first sample follows it at once: the
    # imports, and the name of the user.
    from vmtool.inspect.processes import OTHER_PROC, open_process, shows_other_pids
    from vmtool.machine import read_facts
    from vmtool.machine.run_conditions import RunConditionsWatch

    if shows_other_pids():
        raise VmtoolError(
            f"{OTHER_PROC}, so the command would not be found there; it was not started",
            hint="mount it again: `unshare --pid --fork --mount-proc`, or `mount -t proc proc /proc`",
        )
    facts = read_facts()
    noted = RunConditionsWatch(name_host=asked.name_host)
    with closing(open_process(os.getpid())) as own:
        own.identity()
    with watch_signals() as interruption:
        child = _start_program(asked.program, interruption)
        if isinstance(child, int):
            return child
        try:
            return _watch_program(asked, options, output, child, facts, noted)
        except BaseException:  # such as a second Ctrl-C: nothing is left behind
            child.process.kill()
            child.process.wait()
            raise


class WatchedProgram:
    """A command that was started here.

    Ctrl-C on a terminal reaches the command as well, and it decides what to do about it. If it goes
    on after vmtool was interrupted, it gets SIGTERM, and later it is killed.

    Args:
        program: The command and its arguments.
        interruption: Whether vmtool was interrupted.
        ask_ns: How long after an interruption it gets SIGTERM.
        kill_ns: How long after an interruption it is killed.
    """

    _POLL_S = 0.05

    def __init__(
        self,
        program: tuple[str, ...],
        interruption: Interruption,
        *,
        ask_ns: int = 10**9,
        kill_ns: int = 10 * 10**9,
    ) -> None:
        import subprocess

        self.process = subprocess.Popen(program)
        self.interruption = interruption
        self._ask_ns = ask_ns
        self._kill_ns = kill_ns
        self._since: int | None = None
        self._asked = False

    def ended(self) -> int | None:
        """Return its exit code as a shell gives it, or ``None`` while it runs."""
        code = self.process.poll()
        return None if code is None else _shell_code(code)

    def stop(self) -> bool:
        """Return whether it had to be killed, once vmtool was interrupted."""
        if not self.interruption.requested:
            return False
        now = time.monotonic_ns()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._ask_ns and not self._asked:
            self._asked = True
            self.process.terminate()
        if now - self._since >= self._kill_ns:
            self.process.kill()
            return True
        return False

    def wait(self) -> int:
        """Return its exit code when it has ended, which an interruption makes it do."""
        from subprocess import TimeoutExpired

        while True:
            with suppress(TimeoutExpired):
                return _shell_code(self.process.wait(self._POLL_S))
            self.stop()


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _start_program(program: tuple[str, ...], interruption: Interruption) -> WatchedProgram | int:
    """Start a command; where that fails, say so and return the exit code."""
    try:
        return WatchedProgram(program, interruption)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in an argument
        # As a shell does: 127 for what is not there, 126 for what cannot be run.
        name = program[0]
        missing = isinstance(error, FileNotFoundError) or not name
        reason = "no such program" if missing else getattr(error, "strerror", None) or error
        if name and Path(name).is_dir():
            reason = "it is a directory"
        tell(f"vmtool: error: cannot start {name!r}: {reason}")
        tell("  hint: give a program that is on PATH, or its path, after --")
        return 127 if missing else 126


def _watch_program(
    asked: InspectCommand,
    options: InspectOptions,
    output: Output,
    child: WatchedProgram,
    facts: MachineFacts,
    noted: RunConditionsWatch,
) -> int:
    from vmtool.inspect.processes import open_process
    from vmtool.inspect.watch import nothing_read
    from vmtool.results.inspect import ProcessIdentity, WatchEnding

    try:
        target = open_process(child.process.pid)
        try:
            result = _inspect(target, options, facts, output, asked, child)
        finally:
            target.close()
    except CallError:
        name = Path(asked.program[0]).name
        who = ProcessIdentity(child.process.pid, name, asked.program)
        result = nothing_read(who, options, facts)
    result = replace(result, conditions=noted.finish())
    # What was watched is written at once: the command may run for days.
    continues = result.ending is WatchEnding.COMPLETE and child.ended() is None
    if continues:
        _write_files(asked, output, result)
        if output.path != "-":
            _write_report(output, result)
        output.notice("no longer watching; the command continues")
    code = child.wait()
    result = replace(result, process=replace(result.process, exit_code=code))
    if output.path == "-":
        _print_on_stderr(result)
    elif not continues or (output.as_json and Path(output.path).is_file()):
        _write_report(output, result)  # with the exit code
    if not continues:
        _write_files(asked, output, result)
    return ExitCode.CHECK_FAILED if _exit_code(asked, result) == ExitCode.CHECK_FAILED else code


def _write_report(output: Output, result: InspectResult) -> None:
    from vmtool.report.inspect import to_text

    output.emit(result, lambda console: to_text(result, console))


def _write_files(asked: InspectCommand, output: Output, result: InspectResult) -> None:
    from vmtool.report.csv_and_openmetrics import process_metrics, samples_csv

    output.save(asked.csv, lambda: samples_csv(result))
    output.save(
        asked.metrics,
        lambda: process_metrics(result.process, result.last, result.limits),
        whole=True,
    )
    output.save(asked.html, lambda: _page(result))


def _page(result: InspectResult) -> str:
    from vmtool.report.inspect_page import to_html

    return to_html(result, command=command_line())


def _print_on_stderr(result: InspectResult) -> None:
    from vmtool.report.console import result_console
    from vmtool.report.inspect import to_text

    to_text(result, result_console(sys.stderr))


def _exit_code(asked: InspectCommand, result: InspectResult) -> int:
    from vmtool.report.inspect_sentences import describe_check
    from vmtool.results.check_outcomes import NOT_PROVEN, CheckOutcome
    from vmtool.results.inspect import WatchEnding

    for check in result.checks:
        not_done = check.outcome is CheckOutcome.NOT_DONE
        unproven = check.values.get("reason") == NOT_PROVEN
        if check.failed or (not_done and not (unproven and not asked.strict)):
            tell(f"vmtool: error: {describe_check(check)}")
            return ExitCode.CHECK_FAILED
    if result.ending is WatchEnding.INTERRUPTED:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE
