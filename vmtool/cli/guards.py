"""``vmtool guards``: show that a write to memory that is not committed faults."""

from __future__ import annotations

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import Command, backing_option, host_option, output_options
from vmtool.cli.output import Output
from vmtool.cli.stress_options import method_option
from vmtool.errors import CheckFailedError, ExitCode


@click.command("guards", cls=Command)
@backing_option
@method_option
@host_option
@output_options
def command(
    *,
    backing: str,
    methods: tuple[str, ...],
    name_host: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Write to committed, never committed and released memory, each in a process of its own.

    \b
    vmtool guards
    vmtool guards --method protect

    A write to memory that is not committed must end the process. With advise it does not, as that method has no guards.
    """  # noqa: D301 - click's own mark
    from vmtool.json_documents import plain
    from vmtool.machine import read_facts
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.probes.guards import prove_guards
    from vmtool.probes.question_process import WRITES
    from vmtool.report.check_sentences import describe, hint
    from vmtool.report.guards import to_text
    from vmtool.results.check_outcomes import all_passed
    from vmtool.results.guards import GuardsResult
    from vmtool.stress.plan import method_names

    output = Output(as_json, path, quiet)
    names = method_names(backing, next(iter(methods), "all"))
    watch = RunConditionsWatch(name_host=name_host)
    with watch_signals() as interruption:
        checks = prove_guards(backing, names, stopping=lambda: interruption.requested)
    result = GuardsResult(
        backing=backing,
        checks=checks,
        complete=len(checks) == len(names) * len(WRITES),
        passed=all_passed(checks),
        conditions=watch.finish(),
        machine=plain(read_facts()),
    )
    output.emit(result, lambda console: to_text(result, console))
    if not result.complete:
        output.notice("interrupted; the rest was not tried")
        return ExitCode.INTERRUPTED
    failed = next((check for check in checks if check.failed), None)
    if failed is not None:
        raise CheckFailedError(describe(failed), hint=hint(failed))
    return ExitCode.DONE
