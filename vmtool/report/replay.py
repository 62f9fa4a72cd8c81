"""The report of ``vmtool kv-replay`` about one replay, as text and JSON."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, Final

from vmtool.report.chart import (
    BUDGET,
    LIVE,
    REFUSED,
    ROUNDING,
    budget_in_reach,
    plot_lines,
)
from vmtool.report.document import document
from vmtool.report.kv import count_of, percent
from vmtool.report.table import pairs, paragraph, show, table
from vmtool.results.replay import Point
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.results.replay import PrefixCache, RealRun, ReplayResult, ReplaySettings
    from vmtool.stats import Summary

#: The rule of the simulated clock, to be read with every time that comes from it.
_RULE: Final = "each sequence at its own fixed rate however many there are"


def to_document(result: ReplayResult, command: list[str]) -> dict[str, Any]:
    """Return the JSON document of one replay."""
    body = {field.name: getattr(result, field.name) for field in fields(result)}
    return document("vmtool.kv-replay", 1, command=command, body=body)


def to_text(result: ReplayResult, console: Console) -> None:
    """Print the report."""
    show(console, _parts(result, console.width))


def _parts(result: ReplayResult, width: int) -> Iterator[RenderableType]:
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
    state = "replayed" if result.complete else "replayed before the interruption"
    text = (
        f"{count_of(result.requests.arrived, 'request')} of {trace.name} ({trace.format}) {state} in"
        f" {format_duration(result.duration_ns)} of simulated time."
    )
    if trace.late:
        verbs = ("was", "counts") if trace.late == 1 else ("were", "count")
        text += " {:,} {} out of order and {} as arriving with the one before.".format(
            trace.late, *verbs
        )
    if trace.bad:
        listed = "; ".join(f"line {bad.line} {bad.problem}" for bad in trace.bad_lines)
        what = "1 line is no request" if trace.bad == 1 else f"{trace.bad:,} lines are no requests"
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
    what = "committed or pooled" if result.settings.retain_bytes else "committed"
    yield "wasted", f"{percent(usage.waste)} of what is {what} holds no tokens, on average"
    lost, worst = percent(usage.fragmentation), percent(usage.peak_fragmentation)
    yield "fragmented", f"{lost} of it belongs to no sequence, on average; {worst} at worst"
    yield "requests", ", ".join(_outcomes(result))
    yield "refused", _refusals(result)
    if usage.committed.peak_bytes:
        peak = format_size(usage.committed.peak_bytes)
        yield (
            "peak",
            f"{peak} committed for the first time after {format_duration(usage.peak_at_ns)}",
        )
    if result.prefix_cache is None:
        yield "budget", _budget_text(result)
    yield "queue", _summary_text(result.waiting, "from arrival to admission")
    yield "first token", _summary_text(result.first_token, "from arrival to the end of its step")
    yield "all tokens", _summary_text(result.end_to_end, "from arrival to the last")
    yield "throughput", f"{_rates(result)}; this and the times above are simulated, {_RULE}"
    yield (
        "tokens",
        f"{requests.decode_steps:,} generated, {requests.prompt_tokens:,} prefilled"
        + (f" ({requests.recomputed_tokens:,} again)" if requests.recomputed_tokens else ""),
    )
    yield "commits", _spans_text(done.commits, done.commits_per_s, done.commit_bytes)
    yield "releases", _spans_text(done.releases, done.releases_per_s, done.release_bytes)
    if result.settings.retain_bytes:
        yield "from the pool", f"{format_size(done.reused_bytes)} of what was committed"
    if done.not_committed_bytes:
        yield "sharing", f"{format_size(done.not_committed_bytes)} were not committed anew"
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
        text += f", {requests.deadlocks:,} of them as all waited"
    if requests.stalled_ns:
        text += f"; {format_duration(requests.stalled_ns)} stalled"
    return text


def _cache_text(cache: PrefixCache) -> str:
    return (
        f"{percent(cache.hit_rate)} of the tokens to prefill were there ({cache.saved_tokens:,});"
        f" of what was kept {format_size(cache.reused_bytes)} were used again and"
        f" {format_size(cache.evicted_bytes)} evicted"
    )


def _rates(result: ReplayResult) -> str:
    return (
        f"{result.generated_per_s:,.1f} tokens/s generated, {result.prefilled_per_s:,.1f} prefilled"
    )


def _budget_text(result: ReplayResult) -> str:
    if result.requests.arrived and result.requests.too_long == result.requests.arrived:
        return "no request can be admitted, whatever the budget: all are too long"
    if result.enough_budget_bytes is not None:
        enough = result.enough_budget_bytes
        return f"{format_size(enough)} ({enough:,} bytes) is the least that refuses nothing"
    if not result.complete:
        return "how much refuses nothing is not known after an interruption"
    return "--find-budget tells how much refuses nothing"


def _summary_text(summary: Summary, what: str) -> str:
    if not summary.samples:
        return "no request got there"
    values = {"median": summary.median_ns, "p99": summary.p99_ns, "max": summary.max_ns}
    told = ", ".join(f"{name} {format_duration(ns or 0)}" for name, ns in values.items())
    return f"{told} {what}"


def _spans_text(count: int, rate: float, nbytes: int) -> str:
    return f"{count_of(count, 'span')}, {rate:,.1f} in a second, {format_size(nbytes)} together"


# ---- real memory ----------------------------------------------------------------------------


def _real_parts(real: RealRun) -> Iterator[RenderableType]:
    text = f"On {real.backing} ({real.method}), which commits multiples of"
    text += f" {format_size(real.granule_bytes)}: every byte count as simulated,"
    yield paragraph(f"{text} {count_of(real.checks, 'check')}")
    headings = ("", "samples", "median", "p90", "p99", "p99.9", "max", "together")
    rows = [
        (timing.operation, *_timing(timing.summary, timing.total_ns)) for timing in real.timings
    ]
    told = [at for at in range(len(headings)) if not at or any(row[at] for row in rows)]
    cells = [[row[at] for at in told] for row in rows]
    yield table([headings[at] for at in told], cells)
    yield paragraph(stall_text(real))


def stall_text(real: RealRun) -> str:
    """Return in a sentence how long steps waited for memory, and what of it was measured."""
    text = "No decode step committed memory"
    if real.stepping_commits:
        text = (
            f"{real.stalled_steps:,} of {real.stepping_commits:,} decode steps that committed"
            f" memory stalled on it, for {format_duration(real.stall_ns)} together"
        )
    if real.backing != "host":
        return text
    if real.populated:
        return f"{text}; the page faults are in the commits, which fault every page in"
    if real.touched:
        return f"{text}; admissions and steps are with the page faults of the first writes (touch)"
    return f"{text}; the page faults of the first writes come on top, as nothing was touched"


def _timing(summary: Summary, total_ns: int) -> Sequence[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.p999_ns, summary.max_ns)
    told = ["" if ns is None else format_duration(ns) for ns in values]
    return [f"{summary.samples:,}", *told, format_duration(total_ns)]


def timeline_csv(result: ReplayResult) -> str:
    """Return a row for each point of the timeline, in exact integers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Point)])
    writer.writerows(astuple(point) for point in result.timeline)
    return file.getvalue()
