"""The report of ``vmtool doctor``: a paragraph for each finding, with its remedy below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from vmtool.machine.doctor.findings import Rating
from vmtool.machine.memory_limit_sentences import describe_safe
from vmtool.report.machine import system_name
from vmtool.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vmtool.machine.doctor.findings import Finding
    from vmtool.results.doctor import DoctorResult

_STYLES: Final = {Rating.OK: "green", Rating.NOTE: "yellow", Rating.PROBLEM: "bold red"}
_RATING_WIDTH: Final = 8
#: What matters most comes first.
_ORDER: Final = (Rating.PROBLEM, Rating.NOTE, Rating.OK)


def to_text(result: DoctorResult, console: Console) -> None:
    """Print how many findings there are and what is safe to commit, then the findings."""
    counts = result.counts
    console.print(
        Text(
            f"{count_of(counts.problem, 'problem')}, {count_of(counts.note, 'note')}, "
            f"{counts.ok} ok",
            style="bold",
        )
    )
    facts = result.machine
    if result.machine_findings:
        bound, _ = describe_safe(facts)
        console.print(f"{format_size(result.safe_bytes)} is safe to commit: {bound}")
    for title, findings in (
        (f"this machine: {system_name(facts)}", result.machine_findings),
        ("CUDA", result.device_findings),
    ):
        if findings:
            console.print()
            console.print(Text(title, style="bold"))
            console.print(_findings(findings))


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_RATING_WIDTH)
    table.add_column(overflow="fold")
    for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.rating)):
        table.add_row(Text(finding.rating.value, _STYLES[finding.rating]), Text(finding.message))
        if finding.remedy is not None:
            table.add_row("", Text(f"{finding.kind}: {finding.remedy}"))
    return table
