"""``vmtool stress``: commit and release cycles on real memory, measured and checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from vmtool import __version__
from vmtool.cli.options import Command, backing_options, output_options
from vmtool.cli.output import Output, command_line, tell
from vmtool.cli.stress_options import stress_options
from vmtool.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from typing import Any

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.results.stress import StressResult, StressSettings
    from vmtool.stress.plan import Request


_USED_BY_ALL: Final = ("backing", "method", "as_json", "path", "quiet")
#: What the runs of their own take besides.
_USED_BY: Final = {
    "matrix": (
        *("chunk", "retain", "capacity", "duration", "soak", "touch", "verify", "huge"),
        *("prefault", "threads", "workers", "seed", "inject", "hang_timeout"),
    ),
    "ceiling": (),
    "prove_faults": (),
}


@click.command("stress", cls=Command)
@backing_options
@stress_options
@output_options
def command(*, as_json: bool, path: str, quiet: bool, **options: Any) -> int:
    """Commit, touch and release real memory over and over: how fast, and is it done right.

    \b
    vmtool stress
    vmtool stress --method all --granule 64KiB --duration 10s
    vmtool stress --pattern random --verify full --soak 1h --json -o soak.json

    The cycles run in a process of their own, so that a crash becomes a result. What the kernel
    counts is compared with what vmtool believes while they run. The default run takes some four
    seconds and 256 MiB.
    """  # noqa: D301 - click's own mark
    output = Output(as_json, path, quiet)
    modes = [name for name in ("matrix", "ceiling", "prove_faults") if options[name]]
    if len(modes) > 1:
        raise UsageError(
            "--matrix, --find-ceiling and --prove-faults are runs of their own",
            hint="give one of them",
        )
    return _run_mode(modes[0], output, options) if modes else _run(output, options)


def _refuse_unused(mode: str) -> None:
    """Refuse options that *mode* makes no use of: an assertion unheard would pass for ever."""
    context = click.get_current_context()
    used = {mode, *_USED_BY[mode], *_USED_BY_ALL}
    names = {option.name: option.opts[0] for option in context.command.params}
    unused = [
        option.opts[0]
        for option in context.command.params
        if option.name not in used
        and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    ]
    if unused:
        raise UsageError(
            f"{names[mode]} makes no use of {', '.join(unused)}",
            hint="leave it out, or run without that mode",
        )


def _run_mode(mode: str, output: Output, options: dict[str, Any]) -> int:
    from vmtool.cli.options import device_free
    from vmtool.cli.stress_modes import run_ceiling_mode, run_guards_mode, run_matrix_mode
    from vmtool.machine import read_facts
    from vmtool.stress.plan import method_names

    backing = options["backing"]
    _refuse_unused(mode)
    output.announce(backing)
    methods = method_names(backing, options["method"] or "all")
    if mode == "ceiling":
        return run_ceiling_mode(output, options["ceiling"], backing, methods)
    if mode == "prove_faults":
        return run_guards_mode(output, backing, methods)
    free = device_free(_backings(options, methods[:1])[0], contexts=options["workers"])
    request = _request(options, methods, read_facts(), free)
    return run_matrix_mode(output, request, options["hang_timeout"])


def _run(output: Output, options: dict[str, Any]) -> int:
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.options import device_free
    from vmtool.cli.progress import stress_progress
    from vmtool.compare.assertions import evaluate, parse_assertion
    from vmtool.machine import read_facts
    from vmtool.report.stress import to_text
    from vmtool.stress.parent.run import run_stress, with_verdicts
    from vmtool.stress.plan import make_settings, method_names

    conditions = [parse_assertion(text) for text in options["assertions"]]
    output.announce(options["backing"])
    facts = read_facts()
    methods = method_names(options["backing"], options["method"])
    backings = _backings(options, methods)
    free = device_free(backings[0], contexts=options["workers"])
    settings = make_settings(_request(options, methods, facts, free), backings[0])
    backings.clear()  # a device's context takes memory, and the workers have their own
    _preflight(output, settings, facts, free, force=options["force"])
    with watch_signals() as interruption, stress_progress(settings, quiet=output.quiet) as progress:
        result = run_stress(
            settings,
            facts,
            hang_ns=options["hang_timeout"],
            stopping=lambda: interruption.requested,
            progress=progress,
        )
    result = with_verdicts(result, [evaluate(condition, result) for condition in conditions])
    output.emit(result, lambda console: to_text(result, console))
    _write_files(output, options, result)
    for warning in result.warnings:
        output.notice(f"warning: {warning.message}\n  {warning.hint}")
    return _exit_code(output, result)


def _write_files(output: Output, options: dict[str, Any], result: StressResult) -> None:
    """Write the result as the files that were asked for beside it."""

    def page() -> str:
        from vmtool.report.stress_page import stress_page

        return stress_page(result, command=command_line(), version=__version__)

    def table() -> str:
        from vmtool.report.stress import stress_csv

        return stress_csv(result)

    output.save(options["html"], page)
    output.save(options["csv"], table)


def _backings(options: dict[str, Any], methods: tuple[str, ...]) -> list[VirtualBacking]:
    """Open what the workers will open, so that what cannot work is said before they start."""
    from vmtool.memory import open_backing
    from vmtool.memory.faults import FaultyCalls
    from vmtool.memory.inject import parse_fault

    faults = FaultyCalls([parse_fault(text) for text in options["inject"]])
    return [
        open_backing(
            options["backing"],
            method=method,
            prefault=options["prefault"],
            huge=options["huge"],
            chunk=options["chunk"],
            faults=faults if options["inject"] else None,
        )
        for method in methods
    ]


def _request(
    options: dict[str, Any], methods: tuple[str, ...], facts: MachineFacts, free: int | None
) -> Request:
    from vmtool.machine.preflight import describe_safe, safe_device_part
    from vmtool.stress.plan import Request

    if options["retain"] is not None and "pooled" not in methods:
        raise UsageError("only a pool retains memory", hint="use --method pooled or all")

    touch, seed = options["touch"], options["seed"]
    bound, widen = describe_safe(facts, free)
    return Request(
        methods=methods,
        safe_bytes=facts.safe_bytes if free is None else safe_device_part(free),
        backing=options["backing"],
        pattern=options["pattern"],
        capacity_bytes=options["capacity"],
        budget_bytes=options["budget"],
        granule_bytes=options["granule"],
        cycles=options["cycles"],
        duration_ns=_duration(options),
        touch=touch,
        verify=options["verify"] or ("off" if touch == "none" else "sample"),
        huge=options["huge"],
        prefault=options["prefault"],
        threads=options["threads"],
        workers=options["workers"],
        seed=int.from_bytes(os.urandom(4), "big") if seed is None else seed,
        inject=options["inject"],
        chunk_bytes=options["chunk"],
        retain_bytes=options["retain"],
        device_free_bytes=free,
        bound=bound,
        widen=widen,
    )


def _duration(options: dict[str, Any]) -> int | None:
    soak: int | None = options["soak"]
    duration: int | None = options["duration"]
    if soak is not None and duration is not None:
        raise UsageError("--soak and --duration contradict each other", hint="give one of them")
    return duration if soak is None else soak


def _preflight(
    output: Output,
    settings: StressSettings,
    facts: MachineFacts,
    free: int | None,
    *,
    force: bool,
) -> None:
    """Refuse a plan that is not safe here, or say so when it is forced."""
    from vmtool.machine.preflight import Severity, check, refuse_unsafe
    from vmtool.stress.plan import demand

    findings = check(demand(settings, free), facts)
    if not force:
        refuse_unsafe(findings)
    for finding in findings:
        forced = ", but --force was given" if finding.severity is Severity.REFUSE else ""
        output.notice(f"warning: {finding.message}{forced}\n  {finding.remedy}")


def _exit_code(output: Output, result: StressResult) -> int:
    """Return the exit code; what failed stands in the result, and the first of it on stderr."""
    from vmtool.results.stress import Outcome

    if result.outcome is Outcome.INTERRUPTED:
        output.notice("interrupted; everything is released, the result is partial")
        return ExitCode.INTERRUPTED
    failed = next((verdict for verdict in result.verdicts if verdict.passed is False), None)
    if failed is not None:
        tell(f"vmtool: error: {failed.check} failed: {failed.detail}")
        return ExitCode.CHECK_FAILED
    if result.accidents:
        accident = result.accidents[0]
        tell(
            f"vmtool: error: worker {accident.worker} ended in {accident.operation} of granule "
            f"{accident.granule}: {accident.cause}"
        )
        return ExitCode.CALL_FAILED
    if result.failures:
        tell(f"vmtool: error: {result.failures[0].message}")
        return ExitCode.CALL_FAILED
    return ExitCode.DONE
