"""The report of ``vmtool kv-replay --compare``: text, page and CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.report.console import paragraph, show
from vmtool.report.kv_replay import percent
from vmtool.report.kv_replay_page import INTERRUPTED, chart_key, replay_page, timeline
from vmtool.report.page import figure, grid, join, section, tag
from vmtool.report.page import table as page_table
from vmtool.report.table import comparison
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.results.kv_replay import ComparedReplay, ReplayComparison


def to_text(result: ReplayComparison, console: Console) -> None:
    """Print the comparison; the best rows are marked."""
    show(console, _parts(result))


def _parts(result: ReplayComparison) -> Iterator[RenderableType]:
    rows, best = result.rows, result.best
    if not rows:
        why = result.problem or "interrupted"
        yield paragraph(f"no combination was replayed: {why}")
        return
    yield paragraph(_answer(result), style="bold")
    first = next((row.result for row in rows if row.result is not None), None)
    if first is not None:
        trace = first.trace
        yield paragraph(
            f"{count_of(trace.requests, 'request')} of {trace.name} ({trace.format}),"
            f" {first.settings.model}, {format_size(first.settings.budget_bytes)} of KV memory",
        )
        yield ""
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


def _answer(result: ReplayComparison) -> str:
    """Return the best combinations; best is most requests finished, then least waste."""
    if not result.best:
        return "no combination is possible"
    names = [", ".join(f"{k} {v}" for k, v in result.rows[at].labels.items()) for at in result.best]
    text = f"best of {len(result.rows)}: {names[0]}"
    if len(names) > 1:
        text += f" and {len(names) - 1} more"
    return f"{text} (most requests finished, then least waste)"


def headings(rows: Sequence[ComparedReplay]) -> list[str]:
    """Return the names of :func:`row_cells`."""
    names = [
        *("finished", "peak committed", "mean committed", "waste", "fragmentation"),
        *("sequences", "waiting p99", "preemptions", "commits/s"),
    ]
    if _any_found(rows):
        names.append("budget without refusals")
    return [*names, "step p99", "steps that waited"] if _any_real(rows) else names


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
    if "budget without refusals" in names:
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


def _any_found(rows: Sequence[ComparedReplay]) -> bool:
    """Return whether a budget is known that is more than the peak of the replay."""
    found = (row.result for row in rows if row.result is not None)
    return any((r.enough_budget_bytes or 0) > r.usage.committed.peak_bytes for r in found)


def _any_real(rows: Sequence[ComparedReplay]) -> bool:
    return any(row.result is not None and row.result.real is not None for row in rows)


def to_html(result: ReplayComparison, command: Sequence[str]) -> str:
    """Return the page of a comparison that *command* made."""
    rows, best = result.rows, result.best
    axes = list(rows[0].labels) if rows else []
    names = headings(rows)
    cells = [
        [
            join(", ".join(row.labels.values()), " (best)" if index in best else ""),
            *row_cells(row, names),
        ]
        for index, row in enumerate(rows)
    ]
    charts = [
        figure(", ".join(row.labels.values()), timeline(row.result))
        for row in rows
        if row.result is not None
    ]
    problems = [
        tag("p", f"{', '.join(row.labels.values())}: {row.impossible}")
        for row in rows
        if row.impossible
    ]
    return replay_page(
        result,
        _answer(result),
        section(
            "Comparison",
            page_table([", ".join(axes), *names], cells),
            *problems,
        ),
        section("Live and committed over simulated time", chart_key(), grid(charts)),
        command=command,
        real=None,
        incomplete=result.problem or INTERRUPTED,
        about=f"{len(rows)} combinations of {', '.join(axes)}" if axes else "",
    )
