"""The runs of ``vmtool stress`` that are not one run: matrix, ceilings and guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.cli.output import command_line
from vmtool.errors import CheckFailedError, ExitCode

if TYPE_CHECKING:
    from vmtool.cli.output import Output
    from vmtool.stress.plan import Request


def run_matrix_mode(output: Output, request: Request, hang_ns: int) -> int:
    """Run every pattern with every method and granule."""
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.progress import progress_line
    from vmtool.machine import read_facts
    from vmtool.report.stress_modes import matrix_document, matrix_text
    from vmtool.stress.matrix import run_matrix

    facts = read_facts()
    with watch_signals() as interruption, progress_line(quiet=output.quiet, every_ns=0) as show:
        report = run_matrix(
            request,
            facts,
            hang_ns=hang_ns,
            stopping=lambda: interruption.requested,
            progress=lambda done, total: show(lambda: f"run {done + 1} of {total}"),
        )
    output.emit(
        lambda: matrix_document(report, facts, command_line()),
        lambda console: matrix_text(report, console),
    )
    if not report.complete:
        output.notice("interrupted; everything is released, the matrix is partial")
        return ExitCode.INTERRUPTED
    if not report.passed:
        raise CheckFailedError(
            "a cell of the matrix failed",
            hint="run its pattern, method and granule alone for the details",
        )
    return ExitCode.DONE


def run_ceiling_mode(output: Output, kind: str, backing: str, methods: tuple[str, ...]) -> int:
    """Search how far one resource goes."""
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.progress import progress_line
    from vmtool.machine import read_facts
    from vmtool.probes.limits import find_ceiling
    from vmtool.report.stress_modes import ceiling_document, ceiling_text

    with watch_signals() as interruption, progress_line(quiet=output.quiet, every_ns=0) as show:
        report = find_ceiling(
            kind,
            backing,
            methods,
            lambda tries: show(lambda: f"try {tries}"),
            stopping=lambda: interruption.requested,
        )
    output.emit(
        lambda: ceiling_document(report, read_facts(), command_line()),
        lambda console: ceiling_text(report, console),
    )
    if not report.complete:
        output.notice("interrupted; everything is released, the search is not at its end")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def run_guards_mode(output: Output, backing: str, methods: tuple[str, ...]) -> int:
    """Show that memory which is not committed faults."""
    from vmtool.cli.interrupt import watch_signals
    from vmtool.machine import read_facts
    from vmtool.probes.guards.children import prove_guards
    from vmtool.report.stress_modes import guards_document, guards_text

    with watch_signals() as interruption:
        report = prove_guards(backing, methods, stopping=lambda: interruption.requested)
    output.emit(
        lambda: guards_document(report, read_facts(), command_line()),
        lambda console: guards_text(report, console),
    )
    if not report.complete:
        output.notice("interrupted; the rest was not tried")
        return ExitCode.INTERRUPTED
    wrong = [proof for proof in report.proofs if not proof.passed]
    if wrong:
        raise CheckFailedError(
            f"{wrong[0].method}: a write to {wrong[0].case} memory: {wrong[0].detail}",
            hint="report this with --json; nothing else that vmtool says about it can be trusted",
        )
    return ExitCode.DONE
