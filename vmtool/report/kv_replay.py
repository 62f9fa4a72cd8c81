"""The report of ``vmtool kv-replay`` as text: of one replay, and of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.json_documents import plain
from vmtool.report.console import paragraph, show
from vmtool.report.machine import conditions_line, device_words
from vmtool.report.table import comparison, pairs, table
from vmtool.report.text_chart import BUDGET, LIVE, REFUSED, ROUNDING, budget_in_reach, plot_lines
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.histograms import Summary
    from vmtool.results.kv_replay import (
        ComparedReplay,
        PrefixCache,
        RealRun,
        ReplayAccident,
        ReplayComparison,
        ReplayResult,
        ReplaySettings,
    )


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


def _percent(part: float) -> str:
    """Return *part* of 1 as a percentage."""
    return f"{100 * part:.1f} %"


def how_it_ended(accident: ReplayAccident) -> str:
    """Return what ended the real memory before the replay came to its end."""
    if accident.error is not None:
        return accident.error
    how = accident.signal or f"exit code {accident.exit_code}"
    return f"the replay process died ({how})"


def answer_text(result: ReplayResult) -> str:
    """Return the answer in a sentence."""
    requests, usage = result.requests, result.usage
    text = "" if result.complete else "interrupted: "
    if result.accident is not None:
        text = f"{how_it_ended(result.accident)}; until then "
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
        if trace.late == 1:
            text += " 1 request is out of order, and arrives with the latest one before it."
        else:
            text += f" {trace.late:,} requests are out of order, and arrive with the latest one before them."
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
    """Yield the facts of a replay: names and sentences."""
    usage, done, requests = result.usage, result.operations, result.requests
    memory = "committed and pooled memory" if result.settings.retain_bytes else "committed memory"
    yield "waste", f"{_percent(usage.waste)} of {memory} holds no tokens, on average"
    mean, most = _percent(usage.fragmentation), _percent(usage.peak_fragmentation)
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
        f"hit rate {_percent(cache.hit_rate)} ({cache.saved_tokens:,} tokens not prefilled);"
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
        return "the smallest budget without refusals is unknown: the replay ended early"
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
    """Return which memory was used, and that it agreed with the simulation."""
    return (
        f"On real memory: {real.backing} ({real.method}), granularity"
        f" {format_size(real.granule_bytes)}; every byte count agreed with the simulation in"
        f" {count_of(real.checks, 'check')}{_held_text(real)}"
    )


def _held_text(real: RealRun) -> str:
    held = ", ".join(f"{each.holder} {format_size(each.held_bytes)}" for each in real.held)
    return f"; held at the peak: {held}" if held else ""


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
    return f"{text}; the times do not include page faults, as --no-touch was given"


def _timing(summary: Summary, total_ns: int) -> Sequence[str]:
    values = (summary.median_ns, summary.p90_ns, summary.p99_ns, summary.p999_ns, summary.max_ns)
    texts = ["" if ns is None else format_duration(ns) for ns in values]
    return [f"{summary.samples:,}", *texts, format_duration(total_ns)]


# ---- a comparison ---------------------------------------------------------------------------


def compare_text(result: ReplayComparison, console: Console) -> None:
    """Print the comparison; the best rows are marked."""
    show(console, _compare_parts(result))


def _compare_parts(result: ReplayComparison) -> Iterator[RenderableType]:
    rows, best = result.rows, result.best
    if not rows:
        why = result.problem or "interrupted"
        yield paragraph(f"no combination was replayed: {why}")
        return
    yield paragraph(compare_answer(result), style="bold")
    first = next((row.result for row in rows if row.result is not None), None)
    if first is not None:
        trace = first.trace
        yield paragraph(
            f"{count_of(trace.requests, 'request')} of {trace.name} ({trace.format}),"
            f" {first.settings.model}, {format_size(first.settings.budget_bytes)} of KV memory",
        )
        yield ""
    axes, measured = list(rows[0].labels), compare_headings(rows)
    cells = [
        [*row.labels.values(), *compare_cells(row, measured), "best" if index in best else ""]
        for index, row in enumerate(rows)
        if row.result is not None
    ]
    if cells:
        yield from comparison([*axes, *measured, ""], cells, names=len(axes))
    for row in rows:
        if row.impossible:
            text = f"not possible: {', '.join(row.labels.values())}: {row.impossible}"
            yield paragraph(text, indent="  ")


def compare_answer(result: ReplayComparison) -> str:
    """Return the best combinations; best is most requests finished, then least waste."""
    if not result.best:
        return "no combination is possible"
    names = [", ".join(f"{k} {v}" for k, v in result.rows[at].labels.items()) for at in result.best]
    text = f"best of {len(result.rows)}: {names[0]}"
    if len(names) > 1:
        text += f" and {len(names) - 1} more"
    return f"{text} (most requests finished, then least waste)"


def compare_headings(rows: Sequence[ComparedReplay]) -> list[str]:
    """Return the names of :func:`compare_cells`."""
    names = [
        *("finished", "peak committed", "mean committed", "waste", "fragmentation"),
        *("sequences", "waiting p99", "preemptions", "commits/s"),
    ]
    if _any_found(rows):
        names.append("budget without refusals")
    return [*names, "step p99", "steps that waited"] if _any_real(rows) else names


def compare_cells(row: ComparedReplay, names: Sequence[str]) -> list[str]:
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
        _percent(usage.waste),
        _percent(usage.fragmentation),
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
