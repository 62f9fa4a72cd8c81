"""The pages of ``vmtool kv-replay``: of one replay with charts over time, and of a comparison."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from vmtool.json_documents import plain
from vmtool.report.kv_replay import (
    answer_text,
    compare_answer,
    compare_cells,
    compare_headings,
    facts,
    levels,
    real_text,
    settings_text,
    stall_text,
    trace_text,
)
from vmtool.report.machine import page_machine_rows, page_place
from vmtool.report.page import Markup, figure, grid, join, report, section, tag
from vmtool.report.page import facts as fact_table
from vmtool.report.page import table as page_table
from vmtool.report.svg_chart import Series, histogram_chart, timeline_chart
from vmtool.report.text_chart import budget_in_reach
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.histograms import Summary
    from vmtool.results.kv_replay import (
        Point,
        RealRun,
        ReplayComparison,
        ReplayResult,
        ReplaySettings,
    )


_READING: Final = """\
Live bytes hold tokens. Committed bytes have memory behind them, in whole granules; the difference is what the
packing and the granule waste. Reserved bytes are addresses and take no memory.

A point of a chart is the maximum over its stretch of time; the band goes from the minimum to the maximum. The
time is that of the trace, not of the machine.
"""
#: Why a result is not complete, if nothing else is the reason.
_INTERRUPTED: Final = "interrupted (everything was released)"


def to_html(result: ReplayResult, command: Sequence[str]) -> str:
    """Return the page of one replay that *command* made."""
    return _replay_page(
        result,
        answer_text(result),
        tag("p", settings_text(result.settings)),
        tag("p", trace_text(result)),
        section(
            "Memory over simulated time",
            _charts(result),
            page_table(("", "peak", "mean"), levels(result)),
        ),
        section("What happened", fact_table(facts(result))),
        *([_real(result.real)] if result.real is not None else []),
        *(
            [section("Machine", fact_table(page_machine_rows(result.real.machine)))]
            if result.real
            else []
        ),
        section("Rules", fact_table(_rules(result.settings))),
        command=command,
        real=result.real,
        about=result.settings.model,
        incomplete=_INTERRUPTED if result.accident is None else "ended early",
    )


def _replay_page(
    result: ReplayResult | ReplayComparison,
    verdict: str,
    *body: str,
    command: Sequence[str],
    real: RealRun | None,
    about: str,
    incomplete: str = _INTERRUPTED,
) -> str:
    """Return the page of one replay or of several.

    Args:
        result: What was replayed.
        verdict: The answer in one sentence.
        body: Sections.
        command: The command line that made it.
        real: What real memory did; ``None`` where it was simulated.
        about: What tells the page from others, such as the model.
        incomplete: Why the result is not complete, if it is not.
    """
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    place = [made, "simulated; no memory was used"]
    if real is not None:
        place = page_place(real.conditions, plain(real.machine))
    return report(
        result,
        "kv-replay",
        verdict if result.complete else f"{incomplete}: {verdict}",
        *body,
        command=command,
        good=None if result.complete else False,
        title=[about, made],
        place=place,
        reading=_READING.split("\n\n"),
    )


def compare_html(result: ReplayComparison, command: Sequence[str]) -> str:
    """Return the page of a comparison that *command* made."""
    rows, best = result.rows, result.best
    axes = list(rows[0].labels) if rows else []
    names = compare_headings(rows)
    cells = [
        [
            join(", ".join(row.labels.values()), " (best)" if index in best else ""),
            *compare_cells(row, names),
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
    return _replay_page(
        result,
        compare_answer(result),
        section(
            "Comparison",
            page_table([", ".join(axes), *names], cells),
            *problems,
        ),
        section("Live and committed over simulated time", _chart_key(), grid(charts)),
        command=command,
        real=None,
        incomplete=result.problem or _INTERRUPTED,
        about=f"{len(rows)} combinations of {', '.join(axes)}" if axes else "",
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
        _chart_key(),
        grid(
            [
                figure("Live and committed", _timeline(result)),
                figure("Sequences", sequences),
                figure("Reserved", reserved),
            ]
        ),
    )


def _chart_key() -> Markup:
    """Return what the colours of the charts mean."""
    return tag(
        "p",
        tag("span", "maximum live", class_="key first"),
        tag("span", "maximum committed", class_="key second"),
        tag("span", "minimum to maximum", class_="key range"),
        tag("span", "budget", class_="key limit"),
        tag("span", "memory was refused", class_="key refused"),
    )


def _timeline(result: ReplayResult) -> Markup:
    """Return the chart of live and committed bytes."""
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
    yield "tokens of a block, where the policy has blocks", count_of(settings.block_tokens, "token")
    yield "budget", f"{format_size(settings.budget_bytes)} ({settings.budget_origin})"
    yield "longest sequence", count_of(settings.max_tokens, "token")
    yield "most sequences at once", f"{settings.max_sequences:,}"
    yield "prefill of a sequence", f"{settings.prefill_tokens_per_s:,.10g} tokens/s"
    yield "decode step of a sequence", format_duration(settings.step_ns)
    yield "when memory is refused", settings.on_refusal.value
    yield "committed ahead", count_of(settings.commit_ahead_tokens, "token")
    yield "released memory kept in the pool", format_size(settings.retain_bytes)
    yield "equal prefixes", "shared" if settings.share_prefixes else "not shared"
    yield "unused prefixes", "kept" if settings.prefix_cache else "released"
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
        "On real memory",
        tag(
            "p",
            f"{real_text(real)}; {stall_text(real)}.",
        ),
        page_table(names, rows),
        grid(charts),
    )


def _durations(summary: Summary) -> list[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.max_ns)
    return [format_duration(ns or 0) for ns in values]
