"""The matrix, the ceilings and the guards of ``vmtool stress`` as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from vmtool.compare.runs import DEFAULT_THRESHOLD
from vmtool.probes.guards.children import GUARDS_SCHEMA, GUARDS_VERSION
from vmtool.probes.limits import CEILING_SCHEMA, CEILING_VERSION
from vmtool.report.compare import percent
from vmtool.report.document import document
from vmtool.report.table import paragraph, plain_table, show, table
from vmtool.stress.matrix import MATRIX_SCHEMA, MATRIX_VERSION, fastest
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.machine.facts import MachineFacts
    from vmtool.probes.guards.children import GuardReport
    from vmtool.probes.limits import CeilingReport
    from vmtool.stress.matrix import MatrixCell, MatrixReport

_CASES = {
    "committed": "write to committed memory",
    "never": "write to memory never committed",
    "released": "write to released memory",
}


def matrix_document(
    report: MatrixReport, machine: MachineFacts, command: list[str]
) -> dict[str, Any]:
    """Return the matrix as a JSON document."""
    body = {
        "machine": machine,
        "device": report.device,
        "seed": report.seed,
        "complete": report.complete,
        "cells": report.cells,
    }
    return document(MATRIX_SCHEMA, MATRIX_VERSION, command=command, body=body)


def matrix_text(report: MatrixReport, console: Console) -> None:
    """Print the cost of one cycle of every cell, and what failed."""
    methods = list(dict.fromkeys(cell.method for cell in report.cells))
    rows: dict[tuple[int, str], dict[str, MatrixCell]] = {}
    for cell in report.cells:
        rows.setdefault((cell.granule_bytes, cell.pattern), {})[cell.method] = cell
    _print_place(report.device, console)
    headings = ["granule", "pattern", *methods]
    lines = [
        [format_size(granule), pattern, *(_cell(cells.get(method)) for method in methods)]
        for (granule, pattern), cells in rows.items()
    ]
    words = "one cycle: the medians of commit, touch and release together"
    if len(methods) > 1:
        headings.append("fastest")
        for line, cells in zip(lines, rows.values(), strict=True):
            line.append(fastest(cells.values()) or "no clear winner")
        words += (
            "; fastest: its interval lies below all others, as chance makes it in fewer than 5 % of"
            f" rows, and the next takes at least {percent(float(DEFAULT_THRESHOLD))} longer; where"
            " none is clear, a longer --duration or a quieter machine may tell"
        )
    show(console, (paragraph(words), "", table(headings, lines, left=2, label=2)))
    failed = [cell for cell in report.cells if cell.failed]
    console.print()
    console.print(
        f"seed {report.seed}; {len(report.cells)} cells, {len(failed)} with a failed check"
    )
    for cell in failed:
        where = f"{cell.pattern}, {format_size(cell.granule_bytes)}, {cell.method}"
        console.print(Text(f"{where}: {', '.join(cell.failed)} FAILED", style="bold red"))
    for why in dict.fromkeys(cell.refused for cell in report.cells if cell.refused):
        console.print(f"refused: {why}")


def _print_place(device: str | None, console: Console) -> None:
    """Name the device whose memory was used."""
    if device:
        console.print(f"on {device}")


def _cell(cell: MatrixCell | None) -> str:
    if cell is None:
        return "-"
    if cell.refused:
        return "refused"
    return "-" if cell.cycle_ns is None else format_duration(cell.cycle_ns)


def ceiling_document(
    report: CeilingReport, machine: MachineFacts, command: list[str]
) -> dict[str, Any]:
    """Return the ceilings as a JSON document."""
    body = {
        "machine": machine,
        "device": report.device,
        "kind": report.kind,
        "complete": report.complete,
        "methods": report.methods,
    }
    return document(CEILING_SCHEMA, CEILING_VERSION, command=command, body=body)


def ceiling_text(report: CeilingReport, console: Console) -> None:
    """Print how far each method got."""
    titles = {
        "reserve": "the largest reservation",
        "commit": "the largest commit in one call, untouched, after which another can follow",
        "mappings": "memory areas of one process",
    }
    _print_place(report.device, console)
    console.print(f"{titles[report.kind]}; a new process for each try")
    for method in report.methods:
        console.print()
        if method.refused is None and method.cause is not None:
            console.print(
                f"{method.method}: no ceiling: {method.cause} (the process has {_amount(report.kind, method.reached)})"
            )
            continue
        if method.refused is None and method.error is not None:
            console.print(
                f"{method.method}: not found, as the process that tried ended: {method.error}"
            )
            continue
        reached = _amount(report.kind, method.reached)
        tries = "1 try" if method.tries == 1 else f"{method.tries} tries"
        most = "" if method.most is None else f", {_bound(report.kind, method.most)} at most"
        console.print(f"{method.method}: {reached} works ({tries}{most})")
        if method.refused is not None:
            console.print(f"  {_amount(report.kind, method.refused)} is refused: {method.error}")
            if method.cause is not None:
                console.print(f"  cause: {method.cause}")
        elif not method.complete:
            console.print("  nothing was refused so far")
        elif report.kind == "commit" and method.method == "advise":
            console.print(
                "  nothing was refused within the bounds of the search: half of what is safe, as "
                "this method commits by faulting memory in"
            )
        else:
            console.print("  nothing was refused within the bounds of the search")
    if not report.complete:
        console.print("\ninterrupted: no search goes on, and what was not tried is left out")


def _amount(kind: str, number: int) -> str:
    exact = "" if kind == "mappings" else f" ({number:,} bytes)"
    return _bound(kind, number) + exact


def _bound(kind: str, number: int) -> str:
    return f"{number:,}" if kind == "mappings" else format_size(number)


def guards_document(
    report: GuardReport, machine: MachineFacts, command: list[str]
) -> dict[str, Any]:
    """Return the proofs as a JSON document."""
    body = {
        "machine": machine,
        "passed": report.passed,
        "complete": report.complete,
        "proofs": report.proofs,
    }
    return document(GUARDS_SCHEMA, GUARDS_VERSION, command=command, body=body)


def guards_text(report: GuardReport, console: Console) -> None:
    """Print what each write did."""
    _print_place(None, console)
    table = plain_table("method", ("write to", "left"), ("what happened", "left"))
    for proof in report.proofs:
        words = proof.detail if proof.passed else f"{proof.detail}: WRONG"
        if proof.passed and not proof.faulted and proof.case != "committed":
            words += " (this method has no guards)"
        table.add_row(proof.method, _CASES[proof.case].removeprefix("write to "), words)
    console.print(table)
    if not report.complete:
        console.print("interrupted: what was not tried is left out")
