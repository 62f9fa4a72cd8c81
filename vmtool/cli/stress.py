"""``vmtool stress``: commit and release cycles on real memory, measured and checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import Command, devices_options, output_options
from vmtool.cli.output import Output, command_line
from vmtool.cli.streams import progress_line, tell
from vmtool.cli.stress_options import into_control, into_settings, stress_control, stress_settings
from vmtool.errors import ExitCode, UsageError
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.cli.stress_options import StressControl
    from vmtool.compare.assertions import Condition
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.check_outcomes import Check
    from vmtool.results.stress import StressResult, StressSettings
    from vmtool.stress.parent.run_workers import Progress
    from vmtool.stress.safe_memory import Room

#: Options that have become commands.
_MOVED: Final = {
    "--matrix": "vmtool matrix",
    "--find-ceiling": "vmtool limits",
    "--prove-faults": "vmtool guards",
}


def _refuse_moved(_ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value not in {None, False}:
        name = param.opts[0]
        raise UsageError(f"{name} is a command now", hint=f"use {_MOVED[name]}")


@click.command("stress", cls=Command)
@devices_options
@stress_settings
@stress_control
@output_options
@click.option("--matrix", is_flag=True, hidden=True, expose_value=False, callback=_refuse_moved)
@click.option("--find-ceiling", hidden=True, expose_value=False, callback=_refuse_moved)
@click.option(
    "--prove-faults", is_flag=True, hidden=True, expose_value=False, callback=_refuse_moved
)
@into_settings
@into_control
def command(
    settings: StressSettings, control: StressControl, *, as_json: bool, path: str, quiet: bool
) -> int:
    """Commit, touch and release real memory repeatedly; measure and check every cycle.

    \b
    vmtool stress
    vmtool stress --method all --granule 64KiB --duration 10s
    vmtool stress --pattern random --verify full --soak 1h --json -o soak.json

    The cycles run in processes of their own, so that a crash becomes a result. While they run,
    the kernel's counters are compared with what vmtool expects. The default is five short runs,
    which take about five seconds on an idle machine, and at most 256 MiB. With --backing cuda:all
    all devices run at once, each with its own workers and its own row in the result.
    """  # noqa: D301 - click's own mark
    from vmtool.compare.assertions import evaluate, parse_assertion
    from vmtool.compare.confidence_intervals import DEFAULT_CONFIDENCE
    from vmtool.machine import read_facts
    from vmtool.report.stress import to_text
    from vmtool.results.stress import Outcome
    from vmtool.stress.parent.joined_result import with_checks
    from vmtool.stress.plan import open_backings, with_devices
    from vmtool.stress.safe_memory import measure_rooms

    output = Output(as_json, path, quiet)
    conditions = [parse_assertion(text) for text in control.assertions]
    _refuse_unmeasured(settings, conditions)
    output.announce(settings.backing)
    facts = read_facts()
    settings = with_devices(_choose_methods(_with_soak(settings, control), facts))
    budget_given = bool(settings.budget_bytes)
    backings = open_backings(settings)
    if settings.devices:
        _tell_without_peers(output)
    room = measure_rooms(
        backings,
        facts,
        workers=settings.workers,
        huge_page_bytes=settings.huge_page_bytes,
    )
    result = _run(output, settings, control, facts, room)
    if not budget_given:  # a default is no claim that needs to be tested
        kept = tuple(w for w in result.warnings if w.kind != "budget-not-reached")
        result = replace(result, warnings=kept)
    checks = [
        evaluate(condition, result, confidence=DEFAULT_CONFIDENCE, strict=control.strict)
        for condition in conditions
    ]
    checks += [_required(name, result) for name in control.require]
    result = with_checks(result, checks)
    output.emit(result, lambda console: to_text(result, console, explain=control.explain))
    _write_files(output, control, result)
    # How far to trust figures is of no use where the user stopped it, or there is no result.
    trusted = result.outcome is not Outcome.INTERRUPTED and not output.unwritten
    if trusted and (not control.explain or as_json):
        _show_warnings(output, result)
    return _exit_code(output, result)


def _refuse_unmeasured(settings: StressSettings, conditions: Sequence[Condition]) -> None:
    """Refuse a condition on what the options leave out; no more runs would measure it."""
    absent = {"--verify off": {"verify"}} if settings.verify == "off" else {}
    if settings.touch == "none":
        absent["--touch none"] = {"touch", "verify", "cycle"}
    for condition in conditions:
        for option, phases in absent.items():
            if condition.metric.phase in phases:
                raise UsageError(
                    f"--assert {condition.text}: {option} measures no {condition.metric.phase}",
                    hint=f"leave out {option}, or name another phase, such as commit",
                )


def _with_soak(settings: StressSettings, control: StressControl) -> StressSettings:
    if control.soak_ns is None:
        return settings
    if settings.duration_ns is not None:
        raise UsageError("--soak and --duration cannot be used together", hint="give one of them")
    return replace(settings, duration_ns=control.soak_ns, runs=settings.runs or 1)


def _choose_methods(settings: StressSettings, facts: MachineFacts) -> StressSettings:
    from vmtool.stress.plan import method_names, with_huge

    wanted = next(iter(settings.methods), None)
    methods = method_names(settings.backing, wanted)
    if wanted == "all":
        methods = with_huge(methods, settings, facts.huge_pages.thp_mode)
    return replace(settings, methods=methods)


def _run(
    output: Output,
    settings: StressSettings,
    control: StressControl,
    facts: MachineFacts,
    room: Room,
) -> StressResult:
    from vmtool.stress.parent.run_workers import run_stress
    from vmtool.stress.plan import open_backings, settle

    # A device's context takes memory, and the workers have their own: it is not kept.
    coarsest = max(open_backings(settings), key=lambda backing: backing.granularity)
    settings = settle(settings, coarsest, room)
    _refuse_few_runs(settings, control)
    _preflight(output, settings, facts, room, force=control.force)
    with watch_signals() as interruption, progress_line(quiet=output.quiet) as show:
        return run_stress(
            settings,
            facts,
            hang_ns=control.hang_ns,
            name_host=control.name_host,
            stopping=lambda: interruption.requested,
            progress=lambda progress: show(lambda: _progress_text(settings, progress)),
        )


def _progress_text(settings: StressSettings, progress: Progress) -> str:
    cycles, elapsed = f"{progress.cycles:,}", format_duration(progress.elapsed_ns)
    if settings.cycles is not None:
        lanes = settings.threads * settings.workers * len(settings.methods)
        cycles += f" of {settings.cycles * lanes:,}"
    if settings.runs > 1:  # starting their processes takes time as well
        return f"run {progress.run} of {settings.runs}, {cycles} cycles, {elapsed}"
    if settings.duration_ns is not None:
        elapsed += f" of {format_duration(settings.duration_ns)}"
    return f"{elapsed}, {cycles} cycles"


def _refuse_few_runs(settings: StressSettings, control: StressControl) -> None:
    from vmtool.compare.confidence_intervals import RUNS_NEEDED

    if control.assertions and settings.runs < RUNS_NEEDED:
        raise UsageError(
            f"--assert needs {RUNS_NEEDED} runs, and this would make {settings.runs}",
            hint=f"use --runs {RUNS_NEEDED} or more, and at least as many cycles",
        )


def _write_files(output: Output, control: StressControl, result: StressResult) -> None:
    """Write the result as the files that were requested beside it."""

    def page() -> str:
        from vmtool.report.stress_page import to_html

        return to_html(result, command=command_line())

    def table() -> str:
        from vmtool.report.csv_and_openmetrics import stress_csv

        return stress_csv(result)

    def metrics() -> str:
        from vmtool.report.csv_and_openmetrics import stress_metrics

        return stress_metrics(result)

    output.save(control.html, page)
    output.save(control.metrics, metrics, whole=True)
    output.save(control.csv, table)


def _show_warnings(output: Output, result: StressResult) -> None:
    from vmtool.report.recommendation_and_advice import advice_text

    shown: dict[str, list[str]] = {}
    for advice in result.warnings:
        shown.setdefault(advice.kind, []).append(advice.method or "")
        if len(shown[advice.kind]) > 1:
            continue
        message, remedy = advice_text(advice)
        output.notice(f"warning: {message}", f"  {remedy}")
    more = {kind: names[1:] for kind, names in shown.items() if len(names) > 1}
    if more:
        words = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in more.items())
        output.notice(f"other methods have the same warnings: {words}; --explain shows them")


def _tell_without_peers(output: Output) -> None:
    from vmtool.memory.cuda.devices import offers_peers

    if not offers_peers():
        output.notice(
            "cuDeviceCanAccessPeer is not offered by this driver: no device gets access to the "
            "memory of another"
        )


def _required(name: str, result: StressResult) -> Check:
    """Return whether the checks that ``--require`` calls *name* were done."""
    from vmtool.results.check_outcomes import Check, CheckOutcome

    prefixes = {"leaks": "leak.", "counters": "counters.", "contents": "contents"}
    found = [check for check in result.checks if check.name.startswith(prefixes[name])]
    missing = [c for c in found if c.outcome is CheckOutcome.NOT_DONE]
    # A counter that the platform does not have cannot be required, as long as there is another.
    lacking = [c.name for c in missing if c.values.get("reason") != "not available"]
    if len(missing) == len(found):
        lacking = [c.name for c in missing] or [name]
    return Check(
        f"require.{name}",
        CheckOutcome.of(not lacking),
        {"missing": ", ".join(lacking)} if lacking else {},
    )


def _preflight(
    output: Output, settings: StressSettings, facts: MachineFacts, room: Room, *, force: bool
) -> None:
    """Refuse a plan that is not safe here, or say so when it is forced."""
    from vmtool.machine.preflight import Severity, check, refuse_unsafe
    from vmtool.stress.demand import demand

    shortages = check(demand(settings, room.device_free_bytes), facts)
    if not force:
        refuse_unsafe(shortages)
    for shortage in shortages:
        forced = ", but --force was given" if shortage.severity is Severity.REFUSE else ""
        output.notice(f"warning: {shortage.message}{forced}", f"  {shortage.remedy}")


def _remedy(cause: str | None, hint: str | None) -> list[str]:
    lines = [] if cause is None else [f"  cause: {cause}"]
    return lines if hint is None else [*lines, f"  hint: {hint}"]


def _exit_code(output: Output, result: StressResult) -> int:
    """Return the exit code; what failed is in the result, and the first of each kind on stderr."""
    from vmtool.report.check_sentences import describe
    from vmtool.results.stress import Outcome

    if result.outcome is Outcome.INTERRUPTED:
        output.notice("interrupted; everything is released, and the result is partial")
        return ExitCode.INTERRUPTED
    failed = next((check for check in result.checks if check.failed), None)
    code = ExitCode.DONE
    if result.accidents:
        accident = result.accidents[0]
        tell(
            f"vmtool: error: worker {accident.worker} ended in {accident.operation} of granule "
            f"{accident.granule}: {accident.cause}",
            *_remedy(None, accident.hint),
        )
        code = ExitCode.CALL_FAILED
    elif result.failures:
        failure = result.failures[0]
        where = f"{result.settings.backing_of(failure.worker)}: " if result.devices else ""
        words = f"vmtool: error: {where}{failure.message}"
        tell(words, *_remedy(failure.cause, failure.hint))
        code = ExitCode.CALL_FAILED
    if failed is not None:
        tell(f"vmtool: error: {failed.name} failed: {describe(failed)}")
        code = ExitCode.CHECK_FAILED
    return code
