"""The report of ``vmtool kv-replay`` about one replay: text, page and CSV."""

from __future__ import annotations

from dataclasses import astuple, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from vmtool.documents import plain
from vmtool.report.chart import (
    BUDGET,
    LIVE,
    REFUSED,
    ROUNDING,
    Series,
    budget_in_reach,
    histogram_chart,
    plot_lines,
    timeline_chart,
)
from vmtool.report.csv_table import csv_table
from vmtool.report.machine import conditions_line, device_words, page_place
from vmtool.report.page import Markup, figure, flat, grid, join, report, section, tag
from vmtool.report.page import facts as fact_table
from vmtool.report.page import table as page_table
from vmtool.report.table import pairs, paragraph, show, table
from vmtool.results.kv_replay import Point
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.results.kv_replay import (
        PrefixCache,
        RealRun,
        ReplayComparison,
        ReplayResult,
        ReplaySettings,
    )
    from vmtool.stats import Summary

#: The rule of the simulated clock, to be read with every time that comes from it.
_RULE: Final = "each sequence decodes at its own fixed rate, however many there are"


def to_text(result: ReplayResult, console: Console) -> None:
    """Print the report."""
    show(console, _parts(result, console.width))


def _parts(result: ReplayResult, width: int) -> Iterator[RenderableType]:
    yield paragraph(answer_text(result), style="bold")
    yield paragraph(settings_text(result.settings))
    yield paragraph(trace_text(result))
    yield ""
    yield table(("", "peak", "mean"), levels(result))
    yield ""
    yield pairs(list(facts(result)))
    if result.real is not None:
        yield ""
        yield from _real_parts(result.real)
    if len(result.timeline) > 1 and result.usage.committed.peak_bytes:
        yield ""
        yield paragraph(_key(result))
        yield from plot_lines(result.timeline, result.settings.budget_bytes, width)


def _key(result: ReplayResult) -> str:
    """Return what the plot shows by which character."""
    text = f"Live {LIVE} and committed {ROUNDING} memory over simulated time"
    if budget_in_reach(result.timeline, result.settings.budget_bytes):
        text += f", the budget {BUDGET}"
    if any(point.refused for point in result.timeline):
        text += f", and when memory was refused {REFUSED}"
    return text


def percent(part: float) -> str:
    """Return *part* of 1 as a percentage."""
    return f"{100 * part:.1f}%"


def answer_text(result: ReplayResult) -> str:
    """Return the answer in a sentence."""
    requests, usage = result.requests, result.usage
    text = "" if result.complete else "interrupted: "
    if result.accident is not None:
        how = result.accident.signal or f"exit code {result.accident.exit_code}"
        text = f"the process of the replay died ({how}); until then "
    text += f"{requests.finished:,} of {count_of(requests.arrived, 'request')} finished; "
    text += f"at most {format_size(usage.charged.peak_bytes)} of"
    text += f" {format_size(result.settings.budget_bytes)} in use, "
    refused = requests.refused_admissions + requests.refused_steps
    return text + (f"{count_of(refused, 'refusal')}" if refused else "nothing refused")


def settings_text(settings: ReplaySettings) -> str:
    """Return the rules in one sentence."""
    formats = settings.format_k
    if settings.format_v != formats:
        formats = f"K {formats}, V {settings.format_v}"
    text = (
        f"{settings.model}, {formats}, {settings.policy} on granules of"
        f" {format_size(settings.granule_bytes)}, {format_size(settings.budget_bytes)} of KV memory"
        f" ({settings.budget_origin}), at most"
        f" {count_of(settings.max_sequences, 'sequence')} of"
        f" {count_of(settings.max_tokens, 'token')}"
    )
    ranks = (settings.tp, settings.pp, settings.dcp)
    return text if ranks == (1, 1, 1) else text + ", tp {}, pp {}, dcp {}".format(*ranks)


def trace_text(result: ReplayResult) -> str:
    """Return what was replayed in a sentence or two."""
    trace = result.trace
    text = (
        f"{trace.name} ({trace.format}): {count_of(result.requests.arrived, 'request')} in"
        f" {format_duration(result.duration_ns)} of simulated time."
    )
    if trace.late:
        what = "request is" if trace.late == 1 else "requests are"
        text += f" {trace.late:,} {what} earlier than one before it, and arrives with it."
        if trace.late > 1:
            text = text.replace("and arrives with it", "and arrive with it")
    if trace.bad:
        listed = "; ".join(f"line {bad.line} {bad.problem}" for bad in trace.bad_lines)
        what = (
            "1 line is not a request" if trace.bad == 1 else f"{trace.bad:,} lines are not requests"
        )
        more = trace.bad - len(trace.bad_lines)
        text += f" {what}: {listed}{f'; and {more:,} more' if more else ''}."
    return text


def levels(result: ReplayResult) -> list[list[str]]:
    """Return the peak and mean of each total that the replay had."""
    usage = result.usage
    found = [("live", usage.live), ("committed", usage.committed)]
    if result.settings.retain_bytes:
        found += [("pooled", usage.pooled), ("both", usage.charged)]
    found.append(("reserved", usage.reserved))
    if usage.saved.peak_bytes:
        found.append(("saved by sharing", usage.saved))
    if result.prefix_cache is not None:
        found.append(("kept prefixes", result.prefix_cache.kept))
    rows = [
        [name, format_size(level.peak_bytes), format_size(level.mean_bytes)]
        for name, level in found
    ]
    return [*rows, ["sequences", f"{result.peak_sequences:,}", f"{result.mean_sequences:,.1f}"]]


def facts(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """Yield what happened: names and sentences."""
    usage, done, requests = result.usage, result.operations, result.requests
    memory = "committed and pooled memory" if result.settings.retain_bytes else "committed memory"
    yield "waste", f"{percent(usage.waste)} of {memory} holds no tokens, on average"
    mean, most = percent(usage.fragmentation), percent(usage.peak_fragmentation)
    yield "fragmentation", f"{mean} of {memory} is unused by any sequence (peak {most})"
    yield "requests", ", ".join(_outcomes(result))
    yield "refused", _refusals(result)
    if usage.committed.peak_bytes:
        peak = format_size(usage.committed.peak_bytes)
        yield (
            "peak",
            f"{peak} committed, first reached after {format_duration(usage.peak_at_ns)}",
        )
    if result.prefix_cache is None:
        yield "budget", _budget_text(result)
    yield "waiting", _summary_text(result.waiting, "from arrival to admission")
    yield (
        "first token",
        _summary_text(result.first_token, "from arrival to the end of the first decode step"),
    )
    yield "last token", _summary_text(result.end_to_end, "from arrival to the end")
    yield "throughput", f"{_rates(result)}; all times are simulated: {_RULE}"
    yield (
        "tokens",
        f"{requests.decode_steps:,} generated, {requests.prompt_tokens:,} prefilled"
        + (f" ({requests.recomputed_tokens:,} again)" if requests.recomputed_tokens else ""),
    )
    yield "commits", _spans_text(done.commits, done.commits_per_s, done.commit_bytes)
    yield "releases", _spans_text(done.releases, done.releases_per_s, done.release_bytes)
    if result.settings.retain_bytes:
        yield "pool", f"{format_size(done.reused_bytes)} of what was committed came from the pool"
    if done.not_committed_bytes:
        yield "sharing", f"saved committing {format_size(done.not_committed_bytes)}"
    if result.prefix_cache is not None:
        yield "prefix cache", _cache_text(result.prefix_cache)


def _outcomes(result: ReplayResult) -> Iterator[str]:
    requests = result.requests
    yield f"{requests.finished:,} finished"
    others = {
        "too long": requests.too_long,
        "too large for the budget": requests.too_large,
        "rejected": requests.rejected,
        "cut short": requests.cut,
        "unfinished": requests.unfinished,
    }
    yield from (f"{count:,} {name}" for name, count in others.items() if count)


def _refusals(result: ReplayResult) -> str:
    requests = result.requests
    parts = [
        count_of(requests.refused_admissions, "admission"),
        count_of(requests.refused_steps, "step"),
    ]
    if result.settings.commit_ahead_tokens:
        parts.append(f"{count_of(requests.refused_ahead, 'commit')} ahead of need")
    text = ", ".join(parts)
    if requests.preemptions:
        text += f"; {count_of(requests.preemptions, 'preemption')}"
    if requests.deadlocks:
        text += f", {requests.deadlocks:,} of them because all sequences waited"
    if requests.stalled_ns:
        text += f"; {format_duration(requests.stalled_ns)} stalled"
    return text


def _cache_text(cache: PrefixCache) -> str:
    return (
        f"hit rate {percent(cache.hit_rate)} ({cache.saved_tokens:,} tokens not prefilled);"
        f" {format_size(cache.reused_bytes)} of kept memory used again,"
        f" {format_size(cache.evicted_bytes)} evicted"
    )


def _rates(result: ReplayResult) -> str:
    return (
        f"{result.generated_per_s:,.1f} tokens/s generated, {result.prefilled_per_s:,.1f} prefilled"
    )


def _budget_text(result: ReplayResult) -> str:
    if result.requests.arrived and result.requests.too_long == result.requests.arrived:
        return "no budget is enough: every request is longer than --context"
    if result.enough_budget_bytes is not None:
        enough = result.enough_budget_bytes
        return f"{format_size(enough)} ({enough:,} bytes) is the smallest without refusals"
    if not result.complete:
        return "the smallest budget without refusals is unknown after an interruption"
    return "use --find-budget to find the smallest budget without refusals"


def _summary_text(summary: Summary, what: str) -> str:
    if not summary.samples:
        return "none"
    values = {"median": summary.median_ns, "p99": summary.p99_ns, "max": summary.max_ns}
    text = ", ".join(f"{name} {format_duration(ns or 0)}" for name, ns in values.items())
    return f"{text} {what}"


def _spans_text(count: int, rate: float, nbytes: int) -> str:
    return f"{count_of(count, 'span')}, {rate:,.1f} a second, {format_size(nbytes)} in all"


# ---- real memory ----------------------------------------------------------------------------


def _real_parts(real: RealRun) -> Iterator[RenderableType]:
    yield paragraph(real_text(real))
    if real.machine.device is not None:
        yield paragraph(device_words(real.machine.device))
    if real.conditions is not None:
        yield paragraph(conditions_line(real.conditions, None, plain(real.machine)))
    headings = ("", "samples", "median", "p90", "p99", "p99.9", "max", "total")
    rows = [
        (timing.operation, *_timing(timing.summary, timing.total_ns)) for timing in real.timings
    ]
    used = [at for at in range(len(headings)) if not at or any(row[at] for row in rows)]
    cells = [[row[at] for at in used] for row in rows]
    yield table([headings[at] for at in used], cells)
    yield paragraph(stall_text(real))


def real_text(real: RealRun) -> str:
    """Return what memory it was, and that it agreed."""
    return (
        f"On real memory: {real.backing} ({real.method}), granularity"
        f" {format_size(real.granule_bytes)}; every byte count agreed with the simulation in"
        f" {count_of(real.checks, 'check')}{_held_text(real)}"
    )


def _held_text(real: RealRun) -> str:
    held = ", ".join(f"{each.holder} {format_size(each.held_bytes)}" for each in real.held)
    return f"; at the peak {held}" if held else ""


def stall_text(real: RealRun) -> str:
    """Return how long steps waited for memory, and which page faults are in that."""
    text = "no decode step committed memory"
    if real.stepping_commits:
        text = (
            f"{real.stalled_steps:,} of {real.stepping_commits:,} decode steps that committed"
            f" memory waited for it, {format_duration(real.stall_ns)} in all"
        )
    if real.backing != "host":
        return text
    if real.populated:
        return f"{text}; commits include the page faults"
    if real.touched:
        return f"{text}; admissions and steps include the page faults of the first writes (touch)"
    return f"{text}; no time includes page faults, as --no-touch was given"


def _timing(summary: Summary, total_ns: int) -> Sequence[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.p999_ns, summary.max_ns)
    texts = ["" if ns is None else format_duration(ns) for ns in values]
    return [f"{summary.samples:,}", *texts, format_duration(total_ns)]


def to_csv(result: ReplayResult) -> str:
    """Return a row for each point of the timeline, in exact integers."""
    names = [field.name for field in fields(Point)]
    return csv_table(names, map(astuple, result.timeline))


# ---- page -----------------------------------------------------------------------------------


def to_html(result: ReplayResult, command: Sequence[str]) -> str:
    """Return the page of one replay that *command* made."""
    return replay_page(
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
            [section("Machine", fact_table(flat("", plain(result.real.machine))))]
            if result.real
            else []
        ),
        section("Rules", fact_table(_rules(result.settings))),
        command=command,
        real=result.real,
        about=result.settings.model,
    )


_READING: Final = """\
Live bytes hold tokens. Committed bytes have memory behind them, in whole granules; the difference is what the
packing and the granule waste. Reserved bytes are addresses and take no memory.

A point of a chart is the maximum over its stretch of time; the band goes from the minimum to the maximum. The
time is that of the trace, not of the machine.
"""


#: Why a result is not complete, if nothing else is the reason.
INTERRUPTED: Final = "interrupted (everything was released)"


def replay_page(
    result: ReplayResult | ReplayComparison,
    verdict: str,
    *body: str,
    command: Sequence[str],
    real: RealRun | None,
    about: str,
    incomplete: str = INTERRUPTED,
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
        chart_key(),
        grid(
            [
                figure("Live and committed", timeline(result)),
                figure("Sequences", sequences),
                figure("Reserved", reserved),
            ]
        ),
    )


def chart_key() -> Markup:
    """Return what the colours of the charts mean."""
    return tag(
        "p",
        tag("span", "live, at most", class_="key first"),
        tag("span", "committed, at most", class_="key second"),
        tag("span", "least to most", class_="key range"),
        tag("span", "budget", class_="key limit"),
        tag("span", "memory was refused", class_="key refused"),
    )


def timeline(result: ReplayResult) -> Markup:
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
