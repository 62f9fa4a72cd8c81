"""The report of ``vmtool grow``: a picture of the way up and down, latencies, and the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from vmtool.report.document import document
from vmtool.report.table import backing_label, plain_table
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.machine.facts import MachineFacts
    from vmtool.probes.grow import CopyResult, GrowFailure, GrowPlan, GrowResult
    from vmtool.report.table import ReportTable
    from vmtool.stats import Summary

SCHEMA: Final = "vmtool.grow"
VERSION: Final = 1

#: The picture has at most so many rows, evenly chosen, and bars of at most so many cells.
_ROWS: Final = 16
_BAR: Final = 40
_LENGTH, _ROUNDING, _RESERVED = "█", "▒", "·"


def to_document(
    result: GrowResult, plan: GrowPlan, facts: MachineFacts, command: list[str]
) -> dict[str, Any]:
    """Return the result as a JSON document, with every step."""
    body = {
        "machine": facts,
        "backing": result.backing,
        "device": result.device,
        "method": result.method,
        "complete": result.complete,
        "interrupted": result.interrupted,
        "passed": result.failure is None,
        "base": result.base,
        "capacity_bytes": result.capacity_bytes,
        "granule_bytes": result.granule_bytes,
        "budget_bytes": plan.budget_bytes,
        "planned_steps": len(plan.lengths),
        "steps": {
            "length_bytes": result.lengths_bytes,
            "committed_bytes": result.committed_bytes,
            "elapsed_ns": result.elapsed_ns,
        },
        "growing": result.growing,
        "shrinking": result.shrinking,
        "checks": result.checks,
        "copying": result.copying,
        "ended_by": result.ended_by,
    }
    return document(SCHEMA, VERSION, command=command, body=body)


def to_text(result: GrowResult, console: Console) -> None:
    """Print the result."""
    console.print(
        f"{format_size(result.capacity_bytes)} reserved at {result.base:#x} "
        f"({backing_label(result.backing, result.device)}, {result.method}), granules of {format_size(result.granule_bytes)}"
    )
    if not result.complete:
        console.print(f"stopped after {len(result.elapsed_ns)} steps")
    console.print()
    _print_picture(result, console)
    _print_latency(result, console)
    if result.copying is not None:
        _print_copying(result.copying, console)
    _print_checks(result, console)
    if result.ended_by is not None:
        _print_failure(result.ended_by, console)


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
    cells = max(min(_BAR, console.width - 40), 8)
    table = plain_table("step", "length", "committed", ("", "left"))
    for index in picked_rows(len(result.elapsed_ns)):
        length, committed = result.lengths_bytes[index], result.committed_bytes[index]
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
    """Return statistics in rows and series in columns: on a narrow terminal no figure breaks."""
    table = plain_table("", *(name for name, _ in series))
    table.add_row("steps", *(f"{summary.samples:,}" for _, summary in series))
    for name in ("median", "p90", "p99", "max"):
        values = (getattr(summary, f"{name}_ns") for _, summary in series)
        table.add_row(name, *("-" if ns is None else format_duration(ns) for ns in values))
    return table


def _print_copying(copying: CopyResult, console: Console) -> None:
    console.print(Text("\nthe same growth by reallocating and copying", style="bold"))
    table = _latencies(("in place", copying.in_place), ("by copying", copying.copying))
    together = (format_duration(ns) for ns in (copying.in_place_ns, copying.copying_ns))
    table.add_row("together", *together)
    console.print(table)
    if copying.in_place_ns:
        ratio = copying.copying_ns / copying.in_place_ns
        words = f"{ratio:.1f} times as long" if ratio < 100 else f"{ratio:.0f} times as long"
        console.print(f"copying took {words}; {format_size(copying.copied_bytes)} were copied")
    if copying.stopped is not None:
        console.print(
            f"Only the first {copying.steps} of {copying.planned_steps} growing steps were copied: "
            f"{copying.stopped}. Later steps copy more, so the whole would take still longer."
        )


def _print_checks(result: GrowResult, console: Console) -> None:
    console.print()
    table = plain_table("check", "looked at", ("", "left"))
    for check in result.checks:
        if check.failure is not None:
            verdict = Text(f"FAILED: {check.failure}", "bold red")
        elif check.looked_at:
            verdict = Text("ok", "green")
        else:
            verdict = Text("not checked")
        table.add_row(check.check, f"{check.looked_at:,}", verdict)
    console.print(table)


def _print_failure(failure: GrowFailure, console: Console) -> None:
    where = f"{failure.operation} of step {failure.step}, to {format_size(failure.length_bytes)}"
    if failure.operation == "unreserve":
        where = "unreserve at the end"
    console.print(Text(f"\nfailed in {where}: {failure.message}", style="bold red"))
    for label, words in (("cause", failure.cause), ("hint", failure.hint)):
        if words:
            console.print(Text(f"{label}: {words}"))
