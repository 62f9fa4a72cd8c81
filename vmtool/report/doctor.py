"""The report of ``vmtool doctor``: a paragraph for each finding, with its remedy below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vmtool.machine.facts import describe_bound
from vmtool.machine.findings import Rating
from vmtool.report.machine import system_name
from vmtool.units import count_of, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.machine.findings import Finding
    from vmtool.results.doctor import DoctorResult

_STYLES: Final = {Rating.OK: "green", Rating.NOTE: "yellow", Rating.PROBLEM: "bold red"}
_INDENT: Final = 10
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
        bound = describe_bound(result.limiting_bound, facts)
        console.print(f"{format_size(result.safe_bytes)} is safe to commit: {bound}")
    for title, findings in (
        (f"this machine: {system_name(facts)}", result.machine_findings),
        ("CUDA", result.device_findings),
    ):
        if findings:
            console.print()
            console.print(Text(title, style="bold"))
        for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.rating)):
            _print_finding(finding, console)


def _print_finding(finding: Finding, console: Console) -> None:
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(min_width=_INDENT - 2)
    line.add_column(overflow="fold")
    line.add_row(Text(finding.rating.value, _STYLES[finding.rating]), finding.message)
    console.print(line)
    if finding.remedy is not None:
        console.print(
            Padding(Text(f"{finding.kind}: {finding.remedy}"), (0, 0, 0, _INDENT), expand=False)
        )
