"""The report of ``vmtool reserve``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from vmtool.report.document import document
from vmtool.report.table import backing_label, plain_table
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.machine.facts import MachineFacts
    from vmtool.probes.reserve import LedgerCheck, ReserveResult

SCHEMA: Final = "vmtool.reserve"
VERSION: Final = 1

#: From this many columns the totals of the process fit beside their change.
_WIDE: Final = 80


def to_document(result: ReserveResult, facts: MachineFacts, command: list[str]) -> dict[str, Any]:
    """Return the result as a JSON document; byte ledgers carry their unit in the key."""
    ledgers = {}
    for check in result.ledgers:
        unit = "" if check.ledger == "mappings" else "_bytes"
        ledgers[check.ledger.replace(" ", "_")] = {
            f"before{unit}": check.before,
            f"after{unit}": check.after,
            f"change{unit}": check.change,
            f"in_range{unit}": check.in_range,
            f"expected{unit}": check.expected,
            "passed": check.passed,
        }
    body = {
        "machine": facts,
        "backing": result.backing,
        "device": result.device,
        "method": result.method,
        "base": result.base,
        "capacity_bytes": result.capacity_bytes,
        "reserve_ns": result.reserve_ns,
        "ledgers": ledgers,
        "passed": result.passed,
    }
    return document(SCHEMA, VERSION, command=command, body=body)


def to_text(result: ReserveResult, console: Console) -> None:
    """Print the result."""
    size = format_size(result.capacity_bytes)
    console.print(
        f"{size} ({result.capacity_bytes:,} bytes) reserved at {result.base:#x} in "
        f"{format_duration(result.reserve_ns)} ({backing_label(result.backing, result.device)}, {result.method})\n"
    )
    whole = ("before", "after") if console.width >= _WIDE else ()
    table = plain_table("", *whole, "change", "in the range", ("", "left"))
    for check in result.ledgers:
        totals = (_amount(check, check.before), _amount(check, check.after)) if whole else ()
        table.add_row(
            check.ledger,
            *totals,
            _amount(check, check.change, signed=True),
            _amount(check, check.in_range),
            _verdict(check),
        )
    console.print(table)


def _amount(check: LedgerCheck, value: int | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    text = str(abs(value)) if check.ledger == "mappings" else format_size(abs(value))
    return f"{'-' if value < 0 else '+' if signed and value else ''}{text}"


def _verdict(check: LedgerCheck) -> Text:
    if check.passed is None:
        return Text("not told")
    expected = _amount(check, check.expected)
    if check.passed:
        return Text("ok", "green")
    return Text(f"WRONG: {expected} expected", "bold red")
