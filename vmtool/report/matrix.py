"""The report and the page of ``vmtool matrix``: which granule to use, and what every cell costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from vmtool.report.console import paragraph
from vmtool.report.machine import device_words, moment, page_machine_rows, page_place
from vmtool.report.page import details, facts, report, section, tag
from vmtool.report.page import table as html_table
from vmtool.report.recommendation_and_advice import method_option_words, reason_rows
from vmtool.report.table import duration_or_dash, table
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from vmtool.results.matrix import GranuleChoice, MatrixCell, MatrixResult


def to_text(result: MatrixResult, console: Console) -> None:
    """Print the answer, each granule with its cost, and one cycle of every cell."""
    console.print(Text(answer(result), style="bold"))
    for note in _notes(result):
        console.print(paragraph(note, indent="  "))
    if result.device:
        console.print(f"on {result.device}")
    if device := result.machine.get("device"):
        console.print(device_words(device))
    if result.granules:
        console.print()
        console.print(table(*_granule_rows(result), left=2))
    console.print()
    console.print(paragraph(_reading(result)))
    console.print()
    console.print(table(*_cell_rows(result), left=2, label=2))
    failed = [cell for cell in result.cells if cell.failed]
    console.print()
    console.print(
        f"seed {result.settings.seed}; {len(result.cells)} cells, {len(failed)} with a failed check"
    )
    for cell in failed:
        where = f"{cell.pattern}, {format_size(cell.granule_bytes)}, {cell.method}"
        console.print(Text(f"{where}: {', '.join(cell.failed)} FAILED", style="bold red"))
    for why in dict.fromkeys(cell.refused for cell in result.cells if cell.refused):
        console.print(f"refused: {why}")
    for why in dict.fromkeys(cell.error for cell in result.cells if cell.error):
        console.print(Text(f"ended early: {why}", style="bold red"))


def answer(result: MatrixResult) -> str:
    """Return which granule and method to use, with its cost, in one line."""
    best = result.best
    if best is None:
        return "no granule could be measured"
    return (
        f"use granules of {format_size(best.granule_bytes)} and "
        f"{method_option_words(best.method, pasted=True)}: {format_duration(best.per_gib_ns)} per GiB"
    )


def _notes(result: MatrixResult) -> Iterator[str]:
    """Yield what else there is to know about the answer: the waste, the reasons, a drawback."""
    best = result.best
    if best is None:
        return
    if best.waste_share is not None and result.context_tokens is not None:
        yield (
            f"a sequence of {result.context_tokens:,} tokens of {result.model} wastes "
            f"{100 * best.waste_share:.1f} % of what it commits"
        )
    elif result.device and result.settings.chunk_bytes is None:
        yield "no larger chunk is more than 5 % cheaper"
    system = result.machine.get("system", {}).get("os", "")
    several = len({cell.pattern for cell in result.cells}) > 1  # rows may have winners
    for name, text in reason_rows(best.method, best.fastest, best.reason, system):
        over = "over all patterns " if several and name != "drawback" else ""
        yield f"{name}: {over}{text}"


def to_html(result: MatrixResult, *, command: Sequence[str]) -> str:
    """Return the page of *result*, which *command* made."""
    conditions, label = result.conditions, result.settings.label
    title = [label]
    if conditions is not None:
        title += [conditions.host, moment(conditions.started)]
    return report(
        result,
        "matrix",
        answer(result),
        *(tag("p", note) for note in _notes(result)),
        section("Granules", html_table(*_granule_rows(result))),
        section("One cycle of every cell", html_table(*_cell_rows(result))),
        details("Machine", facts(page_machine_rows(result.machine))),
        command=command,
        good=result.passed,
        title=title,
        place=[*filter(None, [label]), *page_place(conditions, result.machine)],
        reading=[_reading(result)],
    )


def _reading(result: MatrixResult) -> str:
    words = "per GiB: the time to commit, touch and release 1 GiB; "
    words += "one cycle: the sum of the medians of commit, touch and release"
    if len({cell.method for cell in result.cells}) > 1:
        words += (
            '; "fastest" means that its interval lies below all others and that the next is at '
            "least 5 % slower"
        )
    return words


def _granule_rows(result: MatrixResult) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: each granule with its best method, cost and waste."""
    huge = any(choice.without_huge_ns is not None for choice in result.granules)
    waste = result.model is not None
    headings = ["granule", "best method", "per GiB"]
    headings += ["without --huge"] * huge + ["waste", "per used GiB"] * waste
    return headings, [_granule_row(c, huge=huge, waste=waste) for c in result.granules]


def _granule_row(choice: GranuleChoice, *, huge: bool, waste: bool) -> list[str]:
    row = [
        format_size(choice.granule_bytes),
        method_option_words(choice.method),
        format_duration(choice.per_gib_ns),
    ]
    if huge:
        row.append(duration_or_dash(choice.without_huge_ns))
    if waste:
        row.append("-" if choice.waste_share is None else f"{100 * choice.waste_share:.1f} %")
        row.append(duration_or_dash(choice.per_used_gib_ns))
    return row


def _cell_rows(result: MatrixResult) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: one cycle of every cell, and the fastest method of a row."""
    methods = list(dict.fromkeys(cell.method for cell in result.cells))
    rows: dict[tuple[int, str], dict[str, MatrixCell]] = {}
    for cell in result.cells:
        rows.setdefault((cell.granule_bytes, cell.pattern), {})[cell.method] = cell
    winners = {(row.granule_bytes, row.pattern): row.fastest for row in result.rows}
    headings = ["granule", "pattern", *methods]
    lines = [
        [format_size(key[0]), key[1], *(_cell(cells.get(method)) for method in methods)]
        for key, cells in rows.items()
    ]
    if len(methods) > 1:
        headings.append("fastest")
        for line, key in zip(lines, rows, strict=True):
            line.append(winners.get(key) or "no clear winner")
    return headings, lines


def _cell(cell: MatrixCell | None) -> str:
    if cell is None:
        return "-"
    if cell.refused:
        return "refused"
    return duration_or_dash(cell.cycle_ns)
