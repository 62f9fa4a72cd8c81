"""The report of ``vmtool grow``: a chart of the lengths, latencies, and the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.check_sentences import describe, hint
from vmtool.report.machine import device_words, running_on
from vmtool.report.table import ReportTable, backing_label, duration_or_dash, plain_table
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.histograms import Summary
    from vmtool.results.check_outcomes import Check
    from vmtool.results.grow import CopyResult, GrowFailure, GrowResult

#: The most rows of the picture, evenly chosen, and the most cells of a bar.
_ROWS: Final = 16
_BAR: Final = 40
_CHECKS: Final = {
    "base": "base stays",
    "committed": "committed follows length",
    "contents": "contents survive",
    "zero": "new memory is zero",
    "released": "all is released",
    "node": "pages are on the node",
}
_LENGTH, _ROUNDING, _RESERVED = "█", "▒", "·"


def to_text(result: GrowResult, console: Console) -> None:
    """Print the result."""
    console.print(_answer(result))
    where = f"{backing_label(result.backing, result.device)}, {result.method}"
    if result.node is not None:
        where += f", NUMA node {result.node}"
    console.print(
        f"{format_size(result.capacity_bytes)} reserved at {result.base:#x} "
        f"({where}{running_on(result.machine)}), granules of {format_size(result.granule_bytes)}"
    )
    if result.machine.device is not None:
        console.print(device_words(result.machine.device))
    console.print()
    _print_picture(result, console)
    _print_latency(result, console)
    if result.copying is not None:
        _print_copying(result.copying, console)
    _print_checks(result, console)
    if result.ended_by is not None:
        _print_failure(result.ended_by, console)


def _answer(result: GrowResult) -> str:
    failed = [check_label(check) for check in result.checks if check.failed]
    steps = count_of(len(result.steps.elapsed_ns), "step")
    if failed:
        return f"FAILED after {steps}: {', '.join(failed)}"
    if not result.complete:
        return f"stopped after {steps}; every check so far passed"
    peak = format_size(max(result.steps.length_bytes))
    doubts = [
        f"{check_label(check)}: {_unavailable(check)}"
        for check in result.checks
        if "reason" in check.values
    ]
    if doubts:
        return f"grown to {peak} and back in {steps}: every other check passed; {'; '.join(doubts)}"
    return f"grown to {peak} and back in {steps}: every check passed"


def _unavailable(check: Check) -> str:
    return f"not available: {describe(check)}"


def check_label(check: Check) -> str:
    """Return the promise that *check* is about."""
    return _CHECKS[check.name]


def describe_failure(check: Check) -> str:
    """Return what a failed *check* found."""
    values = check.values
    if check.name == "base":
        return f"it moved to {values['base']:#x}"
    if check.name == "committed":
        return f"{values['committed_bytes']} bytes are committed for {values['length_bytes']} bytes"
    if check.name == "node":
        return f"{values['elsewhere_bytes']} bytes are on another node"
    if check.name == "contents":
        return f"the bytes written at offset {values['offset']} have changed"
    if check.name == "zero":
        return f"the byte at offset {values['offset']} is not zero"
    return f"{values['unreleased_bytes']} bytes are still in use at length 0"


def picked_rows(count: int) -> list[int]:
    """Return at most 16 indices below *count*, evenly spread, with the first and the last."""
    if count <= _ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_ROWS - 1)) for i in range(_ROWS)})


def bar(length: int, committed: int, capacity: int, cells: int) -> str:
    """Return a bar of *cells*: the length, what rounding up added, and what is only reserved."""
    filled = min(-(-length * cells // capacity), cells)
    backed = min(max(-(-committed * cells // capacity), filled), cells)
    return _LENGTH * filled + _ROUNDING * (backed - filled) + _RESERVED * (cells - backed)


def _print_picture(result: GrowResult, console: Console) -> None:
    steps = result.steps
    cells = max(min(_BAR, console.width - 40), 8)
    table = plain_table("step", "length", "committed", ("", "left"))
    for index in picked_rows(len(steps.elapsed_ns)):
        length, committed = steps.length_bytes[index], steps.committed_bytes[index]
        table.add_row(
            str(index + 1),
            format_size(length),
            format_size(committed),
            bar(length, committed, result.capacity_bytes, cells),
        )
    console.print(table)
    console.print(
        f"{_LENGTH} length  {_ROUNDING} rounded up to granules  {_RESERVED} reserved only\n"
    )


def _print_latency(result: GrowResult, console: Console) -> None:
    console.print(_latencies(("growing", result.growing), ("shrinking", result.shrinking)))


def _latencies(*series: tuple[str, Summary]) -> ReportTable:
    """Return statistics in rows and series in columns, which fits a narrow terminal."""
    table = plain_table("", *(name for name, _ in series))
    table.add_row("steps", *(f"{summary.samples:,}" for _, summary in series))
    for name in ("median", "p90", "p99", "max"):
        values = (getattr(summary, f"{name}_ns") for _, summary in series)
        table.add_row(name, *map(duration_or_dash, values))
    return table


def _print_copying(copying: CopyResult, console: Console) -> None:
    console.print(Text("\nthe same growth by copying into larger blocks", style="bold"))
    table = _latencies(("in place", copying.in_place), ("by copying", copying.copying))
    together = (format_duration(ns) for ns in (copying.in_place_ns, copying.copying_ns))
    table.add_row("together", *together)
    console.print(table)
    if copying.in_place_ns:
        ratio = copying.copying_ns / copying.in_place_ns
        words = f"{ratio:.1f} times as long" if ratio < 100 else f"{ratio:.0f} times as long"
        console.print(f"copying took {words} and copied {format_size(copying.copied_bytes)}")
        start = copying.faster_from_bytes
        console.print(
            "growing in place was not faster at the largest length measured"
            if start is None
            else f"growing in place was faster from {format_size(start)} on, at every step"
        )
    if copying.stopped is not None:
        console.print(
            f"Only the first {copying.steps} of {copying.planned_steps} growing steps were copied: "
            f"{_stopped(copying.stopped)}. Later steps copy more."
        )


def _stopped(reason: str) -> str:
    return "the time limit of 2 s was reached" if reason == "time limit" else reason


def _print_checks(result: GrowResult, console: Console) -> None:
    console.print()
    table = ReportTable("check", "comparisons", "", prose=1)
    for check in result.checks:
        if check.outcome is CheckOutcome.FAILED:
            outcome = Text(f"FAILED: {describe_failure(check)}", "bold red")
        elif check.outcome is CheckOutcome.PASSED:
            outcome = Text("ok", "green")
        else:
            outcome = Text(_unavailable(check) if "reason" in check.values else "not done")
        table.add_row(check_label(check), f"{check.values['compared']:,}", outcome)
    console.print(table)
    for check in result.checks:
        if "reason" in check.values and (remedy := hint(check)):
            console.print(Text(f"hint: {remedy}"))


def _print_failure(failure: GrowFailure, console: Console) -> None:
    where = f"{failure.operation} of step {failure.step}, to {format_size(failure.length_bytes)}"
    if failure.operation == "unreserve":
        where = "unreserve at the end"
    console.print(Text(f"\nfailed in {where}: {failure.message}", style="bold red"))
    for label, words in (("cause", failure.cause), ("hint", failure.hint)):
        if words:
            console.print(Text(f"{label}: {words}"))
