"""The HTML page of replays: what happened, memory over time, latencies, the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool import __version__
from vmtool.encoding import plain
from vmtool.report.charts import Series, histogram_chart, timeline_chart
from vmtool.report.html import facts as fact_table
from vmtool.report.html import figure, flat, grid, page, section, table
from vmtool.report.markup import Markup, join, tag
from vmtool.report.replay import facts, settings_text, trace_text
from vmtool.report.replay_table import best_rows, headings, row_cells
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.replay.results import RealRun, ReplayResult
    from vmtool.report.replay_table import ComparedReplay
    from vmtool.stats import Summary


def replay_page(result: ReplayResult, *, command: Sequence[str]) -> str:
    """Return the page of one replay that *command* made."""
    return _page(
        command,
        _state(complete=result.complete),
        tag("p", settings_text(result.settings)),
        tag("p", trace_text(result)),
        section("Memory over simulated time", _charts(result), _levels(result)),
        section("What happened", fact_table(facts(result))),
        *([_real(result.real)] if result.real is not None else []),
        *([section("Machine", fact_table(flat("", result.real.machine)))] if result.real else []),
        section("Rules", fact_table(flat("", plain(result.settings)))),
    )


def compare_page(rows: Sequence[ComparedReplay], *, command: Sequence[str], complete: bool) -> str:
    """Return the page of a comparison that *command* made."""
    axes = list(rows[0].labels) if rows else []
    best = best_rows(rows)
    width = len(headings(rows))
    cells = [
        [
            join(", ".join(row.labels.values()), " (best)" if index in best else ""),
            *row_cells(row, width),
        ]
        for index, row in enumerate(rows)
    ]
    charts = [
        figure(", ".join(row.labels.values()), _timeline(row.result))
        for row in rows
        if row.result is not None
    ]
    problems = [
        tag("p", f"{', '.join(row.labels.values())}: {row.impossible}")
        for row in rows
        if row.impossible
    ]
    return _page(
        command,
        _state(complete=complete),
        section(
            "Comparison",
            tag("p", "Best: most requests finished, then least waste.", class_="soft"),
            table([", ".join(axes), *headings(rows)], cells),
            *problems,
        ),
        section("Live and committed over simulated time", _key(), grid(charts)),
    )


def _state(*, complete: bool) -> Markup:
    state = "complete" if complete else "interrupted: everything was released"
    return tag("p", state, class_=f"state {'good' if complete else 'bad'}")


def _page(command: Sequence[str], *body: str) -> str:
    return page(
        "vmtool kv-replay",
        tag("h1", "vmtool kv-replay"),
        tag("p", tag("code", " ".join(command)), class_="soft"),
        *body,
        tag("p", f"made by vmtool {__version__}", class_="soft"),
    )


def _charts(result: ReplayResult) -> Markup:
    sequences = Series("first", [(point.at_ns, point.sequences) for point in result.timeline])
    reserved = Series("first", [(point.at_ns, point.reserved_bytes) for point in result.timeline])
    return join(
        _key(),
        grid(
            [
                figure("Live and committed", _timeline(result)),
                figure("Sequences", timeline_chart("sequences", [sequences], str)),
                figure("Reserved", timeline_chart("reserved bytes", [reserved], format_size)),
            ]
        ),
    )


def _key() -> Markup:
    return tag(
        "p",
        tag("span", "live", class_="key first"),
        tag("span", "committed", class_="key second"),
    )


def _timeline(result: ReplayResult) -> Markup:
    live = [(point.at_ns, point.live_bytes) for point in result.timeline]
    committed = [(point.at_ns, point.committed_bytes) for point in result.timeline]
    lines = [Series("second", committed), Series("first", live)]
    return timeline_chart("live and committed bytes over simulated time", lines, format_size)


def _levels(result: ReplayResult) -> Markup:
    usage = result.usage
    levels = (
        *(("live", usage.live), ("committed", usage.committed), ("pooled", usage.pooled)),
        *(("reserved", usage.reserved), ("saved by sharing", usage.saved)),
    )
    rows = [
        [name, format_size(level.peak_bytes), format_size(level.mean_bytes)]
        for name, level in levels
    ]
    rows.append(["sequences", f"{result.peak_sequences:,}", f"{result.mean_sequences:,.1f}"])
    return table(("", "peak", "mean"), rows)


def _real(real: RealRun) -> Markup:
    charts = [
        figure(
            timing.operation,
            histogram_chart(
                f"latency of {timing.operation}",
                [("first", timing.histogram)],
                [("median", timing.summary.median_ns or 0), ("p99", timing.summary.p99_ns or 0)],
            ),
        )
        for timing in real.timings
    ]
    names = ("operation", "samples", "median", "p90", "p99", "max")
    rows = [
        [timing.operation, f"{timing.summary.samples:,}", *_durations(timing.summary)]
        for timing in real.timings
    ]
    return section(
        f"On real memory: {real.backing} ({real.method})",
        tag(
            "p",
            f"Every byte count as simulated, {real.checks:,} checks. {real.stalled_steps:,} of "
            f"{real.stepping_commits:,} decode steps that committed memory stalled on it, for "
            f"{format_duration(real.stall_ns)} together.",
        ),
        table(names, rows),
        grid(charts),
    )


def _durations(summary: Summary) -> list[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.max_ns)
    return [format_duration(ns or 0) for ns in values]
