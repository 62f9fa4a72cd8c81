"""The runs of ``vmtool stress`` that are not one run: matrix, ceilings and guards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from vmtool.cli.output import command_line
from vmtool.cli.streams import on_terminal
from vmtool.errors import CheckFailedError, ExitCode

if TYPE_CHECKING:
    from vmtool.cli.output import Output
    from vmtool.stress.plan import Request


def run_matrix_mode(output: Output, request: Request, hang_ns: int) -> int:
    """Run every pattern with every method and granule."""
    from vmtool.cli.interrupt import watch_signals
    from vmtool.machine import read_facts
    from vmtool.report.stress_modes import matrix_document, matrix_text
    from vmtool.stress.matrix import run_matrix

    def show(done: int, total: int) -> None:
        _show(output, f"run {done + 1} of {total}")

    with watch_signals() as interruption:
        report = run_matrix(
            request,
            read_facts(),
            hang_ns=hang_ns,
            stopping=lambda: interruption.requested,
            progress=show,
        )
    _show(output, "")
    output.emit(
        lambda: matrix_document(report, command_line()),
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
    from vmtool.report.stress_modes import ceiling_document, ceiling_text
    from vmtool.stress.ceiling import find_ceiling

    def show(tries: int) -> None:
        _show(output, f"try {tries}")

    with watch_signals() as interruption:
        report = find_ceiling(kind, backing, methods, show, stopping=lambda: interruption.requested)
    _show(output, "")
    output.emit(
        lambda: ceiling_document(report, command_line()),
        lambda console: ceiling_text(report, console),
    )
    if not report.complete:
        output.notice("interrupted; everything is released, the search is not at its end")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def run_guards_mode(output: Output, backing: str, methods: tuple[str, ...]) -> int:
    """Show that memory which is not committed faults."""
    from vmtool.cli.interrupt import watch_signals
    from vmtool.report.stress_modes import guards_document, guards_text
    from vmtool.stress.guards import prove_guards

    with watch_signals() as interruption:
        report = prove_guards(backing, methods, stopping=lambda: interruption.requested)
    output.emit(
        lambda: guards_document(report, command_line()),
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


def _show(output: Output, text: str) -> None:
    """Overwrite the one line of progress, on a terminal only; an empty text removes it."""
    if not output.quiet and on_terminal(sys.stderr):
        click.echo(f"\r{text:<39}" + ("" if text else "\r"), nl=False, err=True)
