"""The report of ``vmtool reserve``: the reservation, and the counters before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from rich.text import Text

from vmtool.report.machine import device_words, running_on
from vmtool.report.table import backing_label, plain_table
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.results.check_outcomes import Check
    from vmtool.results.reserve import ReserveResult

_LABELS: Final = {
    "counters.address_space": "address space",
    "counters.charge": "charge",
    "counters.resident": "resident",
    "counters.mappings": "memory areas",
    "counters.device_memory": "device memory",
}


def counter_label(check: Check) -> str:
    """Return what a user calls the counter of *check*."""
    return _LABELS[check.name]


def to_text(result: ReserveResult, console: Console) -> None:
    """Print the result."""
    failed = [counter_label(check) for check in result.checks if check.failed]
    answer = f"WRONG: {', '.join(failed)}" if failed else "no memory was taken"
    duration = format_duration(result.reserve_ns)
    console.print(f"{format_size(result.capacity_bytes)} reserved in {duration}: {answer}")
    where = f"{backing_label(result.backing, result.device)}, {result.method}"
    console.print(
        f"{result.capacity_bytes:,} bytes at {result.base:#x} ({where}{running_on(result.machine)})"
    )
    if result.machine.device is not None:
        console.print(device_words(result.machine.device))
    if result.requested_bytes != result.capacity_bytes:
        console.print(f"{result.requested_bytes:,} bytes rounded up to whole granules")
    console.print()
    table = plain_table("", "before", "after", "change", "in the range", ("", "left"))
    for check in result.checks:
        table.add_row(
            counter_label(check),
            _amount(check, "before"),
            _amount(check, "after"),
            _amount(check, "change", signed=True),
            _amount(check, "in_range"),
            _outcome(check),
        )
    console.print(table)


def _amount(check: Check, name: str, *, signed: bool = False) -> str:
    counted = check.name == "counters.mappings"
    value = cast("int | None", check.values[name if counted else f"{name}_bytes"])
    if value is None:
        return "-"
    text = str(abs(value)) if counted else format_size(abs(value))
    return f"{'-' if value < 0 else '+' if signed and value else ''}{text}"


def _outcome(check: Check) -> Text:
    if check.outcome is CheckOutcome.NOT_DONE:
        return Text("not available")
    if check.outcome is CheckOutcome.PASSED:
        return Text("ok", "green")
    return Text(f"WRONG: {_amount(check, 'expected')} expected", "bold red")
