"""The table of ``vmtool kv-replay --compare``, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping  # noqa: TC003 - the JSON Schema is made of the types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vmtool.report.document import document
from vmtool.report.kv import count_of, percent
from vmtool.report.table import comparison, paragraph, show
from vmtool.results.replay import ReplayResult  # noqa: TC001 - likewise
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType


@dataclass(frozen=True, slots=True)
class ComparedReplay:
    """One row of a comparison.

    Attributes:
        labels: What was chosen, by axis.
        result: The replay, or null if the combination is not possible.
        impossible: Why it is not; empty if it is.
    """

    labels: Mapping[str, str]
    result: ReplayResult | None
    impossible: str


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """Replays of one trace under several rules.

    Attributes:
        complete: Whether every combination was replayed; false after an interruption.
        rows: One for each combination.
        best: Which rows finished most requests and, of those, wasted least; from 0.
    """

    complete: bool
    rows: tuple[ComparedReplay, ...]
    best: tuple[int, ...]


def best_rows(rows: Sequence[ComparedReplay]) -> tuple[int, ...]:
    """Return which rows finished most requests and, of those, wasted least."""
    ranks = [
        (-1, 0.0) if row.result is None else (row.result.requests.finished, -row.result.usage.waste)
        for row in rows
    ]
    top = max(ranks, default=(-1, 0.0))
    return tuple(i for i, rank in enumerate(ranks) if rank == top and rank[0] >= 0)


def compare_document(
    rows: Sequence[ComparedReplay], command: list[str], *, complete: bool
) -> dict[str, Any]:
    """Return the JSON document of a comparison."""
    body = {"complete": complete, "rows": tuple(rows), "best": best_rows(rows)}
    return document("vmtool.kv-replay.compare", 1, command=command, body=body)


def compare_text(rows: Sequence[ComparedReplay], console: Console) -> None:
    """Print the comparison; the best rows are marked."""
    show(console, _compare_parts(rows))


def _compare_parts(rows: Sequence[ComparedReplay]) -> Iterator[RenderableType]:
    if not rows:
        yield "no combination was replayed to its end"
        return
    first = next((row.result for row in rows if row.result is not None), None)
    if first is not None:
        trace = first.trace
        yield paragraph(
            f"{count_of(trace.requests, 'request')} of {trace.name} ({trace.format}),"
            f" {first.settings.model}, {format_size(first.settings.budget_bytes)} of KV memory;"
            " best: most requests finished, then least waste",
        )
        yield ""
    best = best_rows(rows)
    axes, measured = list(rows[0].labels), headings(rows)
    cells = [
        [*row.labels.values(), *row_cells(row, measured), "best" if index in best else ""]
        for index, row in enumerate(rows)
        if row.result is not None
    ]
    if cells:
        yield from comparison([*axes, *measured, ""], cells, names=len(axes))
    for row in rows:
        if row.impossible:
            text = f"not possible: {', '.join(row.labels.values())}: {row.impossible}"
            yield paragraph(text, indent="  ")


def headings(rows: Sequence[ComparedReplay]) -> list[str]:
    """Return the names of :func:`row_cells`."""
    names = [
        *("finished", "peak committed", "mean committed", "wasted", "fragmented"),
        *("sequences", "queue p99", "preempted", "commits/s"),
    ]
    if _any_found(rows):
        names.append("enough")
    return [*names, "step p99", "stalled"] if _any_real(rows) else names


def row_cells(row: ComparedReplay, names: Sequence[str]) -> list[str]:
    """Return the figures of one row under the headings *names*."""
    result = row.result
    if result is None:
        return ["not possible", *[""] * (len(names) - 1)]
    usage = result.usage
    wait = result.waiting.p99_ns
    cells = [
        f"{result.requests.finished:,}",
        format_size(usage.charged.peak_bytes),
        format_size(usage.charged.mean_bytes),
        percent(usage.waste),
        percent(usage.fragmentation),
        f"{result.peak_sequences:,}",
        "" if wait is None else format_duration(wait),
        f"{result.requests.preemptions:,}",
        f"{result.operations.commits_per_s:,.1f}",
    ]
    if "enough" in names:
        enough = result.enough_budget_bytes
        cells.append("" if enough is None else format_size(enough))
    real = result.real
    if real is None:
        return cells
    steps = [timing.summary.p99_ns for timing in real.timings if timing.operation == "step"]
    return [
        *cells,
        format_duration(steps[0]) if steps and steps[0] is not None else "",
        f"{real.stalled_steps:,}",
    ]


def compare_csv(rows: Sequence[ComparedReplay]) -> str:
    """Return the comparison as CSV, in exact integers."""
    axes = list(rows[0].labels) if rows else []
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [name for name, _ in _figures(None)]
    writer.writerow([*axes, *names, "best", "impossible"])
    best = best_rows(rows)
    for index, row in enumerate(rows):
        values = [value for _, value in _figures(row.result)]
        writer.writerow([*row.labels.values(), *values, int(index in best), row.impossible])
    return file.getvalue()


def _figures(result: ReplayResult | None) -> list[tuple[str, object]]:
    """Return names and values of one row's columns; no values without a result."""
    paths = (
        *("requests.arrived", "requests.finished", "requests.rejected", "requests.cut"),
        *("requests.too_long", "requests.too_large", "requests.preemptions"),
        *("usage.live.peak_bytes", "usage.live.mean_bytes"),
        *("usage.committed.peak_bytes", "usage.committed.mean_bytes"),
        *("usage.charged.peak_bytes", "usage.charged.mean_bytes"),
        *("usage.reserved.peak_bytes", "usage.reserved.mean_bytes"),
        *("usage.saved.peak_bytes", "usage.waste", "usage.fragmentation"),
        *("peak_sequences", "mean_sequences", "waiting.median_ns", "waiting.p99_ns"),
        *("first_token.median_ns", "first_token.p99_ns", "end_to_end.median_ns"),
        *("end_to_end.p99_ns", "generated_per_s", "enough_budget_bytes"),
        *("operations.commits", "operations.releases", "duration_ns"),
    )
    found: list[tuple[str, object]] = []
    for path in paths:
        value: Any = result
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        found.append((path.replace(".", "_"), "" if value is None else value))
    return found


def _any_found(rows: Sequence[ComparedReplay]) -> bool:
    """Tell whether a budget is known that is more than the peak of the replay."""
    found = (row.result for row in rows if row.result is not None)
    return any((r.enough_budget_bytes or 0) > r.usage.committed.peak_bytes for r in found)


def _any_real(rows: Sequence[ComparedReplay]) -> bool:
    return any(row.result is not None and row.result.real is not None for row in rows)
