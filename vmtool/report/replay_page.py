"""The HTML page of replays: what happened, memory over time, latencies, the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool import __version__
from vmtool.report.chart import Series, budget_in_reach, histogram_chart, timeline_chart
from vmtool.report.kv import count_of
from vmtool.report.page import (
    Markup,
    figure,
    flat,
    grid,
    join,
    page,
    section,
    table,
    tag,
)
from vmtool.report.page import facts as fact_table
from vmtool.report.replay import facts, levels, settings_text, stall_text, trace_text
from vmtool.report.replay_table import best_rows, headings, row_cells
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.report.replay_table import ComparedReplay
    from vmtool.results.replay import Point, RealRun, ReplayResult, ReplaySettings
    from vmtool.stats import Summary


def replay_page(result: ReplayResult, *, command: Sequence[str]) -> str:
    """Return the page of one replay that *command* made."""
    return _page(
        command,
        _state(complete=result.complete),
        tag("p", settings_text(result.settings)),
        tag("p", trace_text(result)),
        section(
            "Memory over simulated time",
            _charts(result),
            table(("", "peak", "mean"), levels(result)),
        ),
        section("What happened", fact_table(facts(result))),
        *([_real(result.real)] if result.real is not None else []),
        *([section("Machine", fact_table(flat("", result.real.machine)))] if result.real else []),
        section("Rules", fact_table(_rules(result.settings))),
    )


def compare_page(rows: Sequence[ComparedReplay], *, command: Sequence[str], complete: bool) -> str:
    """Return the page of a comparison that *command* made."""
    axes = list(rows[0].labels) if rows else []
    best = best_rows(rows)
    names = headings(rows)
    cells = [
        [
            join(", ".join(row.labels.values()), " (best)" if index in best else ""),
            *row_cells(row, names),
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
            table([", ".join(axes), *names], cells),
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
    points = result.timeline
    sequences = timeline_chart(
        "sequences",
        [Series("first", _steps(points, lambda point: point.sequences_max))],
        str,
        _range(points, lambda point: (point.sequences_min, point.sequences_max)),
    )
    reserved = timeline_chart(
        "reserved bytes",
        [Series("first", _steps(points, lambda point: point.reserved_max_bytes))],
        format_size,
        _range(points, lambda point: (point.reserved_min_bytes, point.reserved_max_bytes)),
    )
    return join(
        _key(),
        grid(
            [
                figure("Live and committed", _timeline(result)),
                figure("Sequences", sequences),
                figure("Reserved", reserved),
            ]
        ),
    )


def _key() -> Markup:
    return tag(
        "p",
        tag("span", "live, at most", class_="key first"),
        tag("span", "committed, at most", class_="key second"),
        tag("span", "least to most", class_="key range"),
        tag("span", "budget", class_="key limit"),
        tag("span", "memory was refused", class_="key refused"),
    )


def _timeline(result: ReplayResult) -> Markup:
    points, budget = result.timeline, result.settings.budget_bytes
    lines = [
        Series("second", _steps(points, lambda point: point.committed_max_bytes)),
        Series("first", _steps(points, lambda point: point.live_max_bytes)),
    ]
    if points and budget_in_reach(points, budget):
        lines.append(Series("limit", [(0, budget), (points[-1].at_ns, budget)]))
        refused = _steps(points, lambda point: budget if point.refused else None)
        lines.append(Series("refused", refused))
    committed = _range(points, lambda point: (point.committed_min_bytes, point.committed_max_bytes))
    return timeline_chart(
        "live and committed bytes over simulated time", lines, format_size, committed
    )


def _steps(
    points: Sequence[Point], value: Callable[[Point], int | None]
) -> list[tuple[int, int | None]]:
    """Return the corners of a line that has the value of each point from the one before to it."""
    starts = (0, *(point.at_ns for point in points))
    return [
        corner
        for start, point in zip(starts, points, strict=False)
        for corner in ((start, value(point)), (point.at_ns, value(point)))
    ]


def _range(
    points: Sequence[Point], edges: Callable[[Point], tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return the least and most of each point at the corners of its stretch."""
    low = _steps(points, lambda point: edges(point)[0])
    high = _steps(points, lambda point: edges(point)[1])
    return [(at, least or 0, most or 0) for (at, least), (_, most) in zip(low, high, strict=True)]


def _rules(settings: ReplaySettings) -> Iterator[tuple[str, str]]:
    yield "model", settings.model
    yield "format of K", settings.format_k
    yield "format of V", settings.format_v
    yield "ranks", f"tp {settings.tp}, pp {settings.pp}, dcp {settings.dcp}"
    yield "packing policy", settings.policy
    yield "granule", format_size(settings.granule_bytes)
    yield "block, where the policy has blocks", count_of(settings.block_tokens, "token")
    yield "budget", f"{format_size(settings.budget_bytes)} ({settings.budget_origin})"
    yield "longest sequence", count_of(settings.max_tokens, "token")
    yield "sequences at once, at most", f"{settings.max_sequences:,}"
    yield "prefill of a sequence", f"{settings.prefill_tokens_per_s:,.10g} tokens/s"
    yield "decode step of a sequence", format_duration(settings.step_ns)
    yield "when memory is refused", settings.on_refusal.value
    yield "committed ahead of need", count_of(settings.commit_ahead_tokens, "token")
    yield "released memory that is kept", format_size(settings.retain_bytes)
    yield "equal prefixes", "shared" if settings.share_prefixes else "not shared"
    yield "prefixes that no sequence has", "kept" if settings.prefix_cache else "released"
    yield "seed", f"{settings.seed}"


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
            f"Every byte count as simulated, {count_of(real.checks, 'check')}. {stall_text(real)}.",
        ),
        table(names, rows),
        grid(charts),
    )


def _durations(summary: Summary) -> list[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.max_ns)
    return [format_duration(ns or 0) for ns in values]
