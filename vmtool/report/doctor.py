"""The report of ``vmtool doctor``: one finding a paragraph, what to do below it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vmtool.machine.doctor import Finding, Rating
from vmtool.machine.facts import describe_bound
from vmtool.report.document import document
from vmtool.report.machine import machine_body
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vmtool.machine.facts import MachineFacts

SCHEMA: Final = "vmtool.doctor"
VERSION: Final = 1

_STYLES: Final = {Rating.OK: "green", Rating.NOTE: "yellow", Rating.PROBLEM: "bold red"}
_INDENT: Final = 10


def to_document(
    sections: Sequence[tuple[str, Sequence[Finding]]], facts: MachineFacts, command: list[str]
) -> dict[str, Any]:
    """Return the findings as a JSON document."""
    checks = [check for _, group in sections for check in group]
    counts = Counter(check.rating.value for check in checks)
    body = {
        **machine_body(facts),
        "counts": {rating.value: counts[rating.value] for rating in Rating},
        "checks": [
            {"section": section, "check": check} for section, group in sections for check in group
        ],
    }
    return document(SCHEMA, VERSION, command=command, body=body)


def to_text(
    sections: Sequence[tuple[str, Sequence[Finding]]], facts: MachineFacts | None, console: Console
) -> None:
    """Print the findings, and what is safe to commit on the machine of *facts*."""
    for section, checks in sections:
        console.print(Text(section, style="bold"))
        for check in checks:
            _print_check(check, console)
        console.print()
    if facts is not None:
        safe = format_size(facts.safe_bytes)
        words = describe_bound(facts.limiting_bound, facts)
        console.print(f"{safe} is safe to commit; limited by {facts.limiting_bound}: {words}")
    counts = Counter(check.rating for _, checks in sections for check in checks)
    parts = [f"{counts[rating]} {rating.value}" for rating in Rating if counts[rating]]
    console.print(", ".join(parts))


def _print_check(check: Finding, console: Console) -> None:
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(min_width=_INDENT - 2)
    line.add_column(overflow="fold")
    line.add_row(Text(check.rating.value, _STYLES[check.rating]), check.message)
    console.print(line)
    if check.remedy is not None:
        console.print(
            Padding(Text(f"{check.kind}: {check.remedy}"), (0, 0, 0, _INDENT), expand=False)
        )
