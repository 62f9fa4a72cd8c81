"""The page of ``vmtool stress``: checks, latencies, the counters over time, the machine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from vmtool.report.check_sentences import describe, hint, leak_amount
from vmtool.report.machine import fact_name, fact_text, moment, page_machine_rows, page_place
from vmtool.report.page import (
    Markup,
    check,
    checks,
    details,
    facts,
    figure,
    grid,
    join,
    report,
    section,
    table,
    tag,
)
from vmtool.report.recommendation_and_advice import advice_text
from vmtool.report.stress import (
    CALL_HEADINGS,
    DEVICE_HEADINGS,
    answer,
    call_rows,
    cycle_ns,
    device_rows,
    device_sentences,
    failed_in,
    recommendation_lines,
)
from vmtool.report.svg_chart import Series, histogram_chart, timeline_chart
from vmtool.report.table import backing_label, duration_or_dash
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.stress import Outcome
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.results.stress import (
        Checkpoint,
        MethodResult,
        PhaseResult,
        StressResult,
        StressSettings,
    )

_STATISTICS: Final = ("median", "mean", "p90", "p99", "p999", "max")
_TITLES: Final = {"charge": "Commit charge"}
# More lines than this cannot be distinguished.
_MOST_WORKERS: Final = 8
_READING: Final = """\
A cycle is one commit and the release of what it committed. Its cost is the sum of the medians of
commit, touch and release: commit alone only changes page tables, and the first touch pays for the pages.

A histogram shows how many samples took how long, on a logarithmic axis; the lines are the median and the
99th percentile.

At checkpoints the kernel's counters are compared with what vmtool expects; a difference beyond the allowed
range is a failed check. A slope whose whole interval is above zero, and whose growth exceeds what an
interpreter takes while it warms up, is a leak.
"""


def to_html(result: StressResult, *, command: Sequence[str]) -> str:
    """Return the page of *result*, which *command* made."""
    conditions = result.conditions
    label = backing_label(result.settings.backing, result.device)
    title = [result.settings.label]
    if conditions is not None:
        title += [conditions.host, moment(conditions.started)]
    return report(
        result,
        "stress",
        answer(result),
        *(tag("p", line) for line in recommendation_lines(result)),
        _accidents(result),
        section("Latency", *_latency(result), _unmapping(result)),
        section("Runs", _runs(result)),
        section("Devices", table(DEVICE_HEADINGS, device_rows(result))),
        section("Checks", _checks(result), _warnings(result)),
        section("Growth per cycle", _slopes(result)),
        section("Counters over time", *_counters(result)),
        section("Scaling", _scaling(result)),
        details("Settings", facts(_settings(result))),
        details("Machine", facts(page_machine_rows(result.machine))),
        command=command,
        good=result.passed and result.outcome is Outcome.COMPLETE,
        title=title,
        place=[
            *filter(None, [result.settings.label]),
            *page_place(conditions, result.machine),
            *([] if label == "host" else [label]),
        ],
        reading=_READING.split("\n\n"),
    )


def show_counter(counter: str) -> Callable[[int], str]:
    """Return a function that formats a value of *counter* with its unit."""
    return (lambda count: f"{count:,}") if counter.endswith("mappings") else format_size


def counter_title(counter: str) -> str:
    """Return the name of *counter* as a heading."""
    return _TITLES.get(counter, counter.replace("_", " ").capitalize())


def _runs(result: StressResult) -> Markup:
    """Return the cycle of each method in each run: what one process measures depends on chance."""
    if len(result.runs) < 2:
        return Markup()
    names = [method.method for method in result.methods]
    rows = [
        (
            f"run {run.index + 1}",
            *(
                duration_or_dash(None if (found := run.method(name)) is None else cycle_ns(found))
                for name in names
            ),
        )
        for run in result.runs
    ]
    return table(("one cycle", *names), rows)


def _accidents(result: StressResult) -> Markup:
    items = [
        check(
            False,
            f"worker {a.worker} was ended by {a.signal or a.kind}",
            f"{a.method}: {a.operation} of granule {a.granule} in cycle {a.cycle}, "
            f"thread {a.thread}; {a.cause}",
            a.hint,
        )
        for a in result.accidents
    ]
    items += [
        check(
            False,
            f"{f.call} failed{' (injected)' if f.injected else ''}",
            f"{f.message}; {failed_in(f)}, worker {f.worker}{'; ' + f.cause if f.cause else ''}",
            f.hint,
        )
        for f in result.failures
    ]
    return checks(items)


def _checks(result: StressResult) -> Markup:
    order = list(CheckOutcome)
    order.insert(0, order.pop(order.index(CheckOutcome.FAILED)))
    passed = {CheckOutcome.PASSED: True, CheckOutcome.FAILED: False, CheckOutcome.NOT_DONE: None}
    return checks(
        [
            check(passed[c.outcome], c.name, describe(c), hint(c))
            for c in sorted(result.checks, key=lambda c: order.index(c.outcome))
        ]
    )


def _warnings(result: StressResult) -> Markup:
    items = [
        tag(
            "li",
            tag("strong", w.kind),
            ": ",
            advice_text(w)[0],
            tag("br"),
            tag("span", advice_text(w)[1], class_="soft"),
        )
        for w in result.warnings
    ]
    return join(tag("h3", "Warnings"), checks(items)) if items else Markup()


def _latency(result: StressResult) -> Iterator[Markup]:
    """Yield the latencies of each method; where there are several, all but the best one folded."""
    if len(result.methods) > 1:
        yield _overview(result.methods)
    for method in result.methods:
        rates = f"{method.cycles:,} cycles, {method.cycles_per_s:,.0f} per second"
        parts = (
            tag("p", f"{rates}, {format_size(round(method.bytes_per_s))} per second"),
            table(
                ("", "median", "mean", "p90", "p99", "p99.9", "max", "samples"),
                map(_phase_row, method.phases),
            ),
            grid([_histogram(method.method, phase) for phase in method.phases]),
            table(CALL_HEADINGS, call_rows(method)),
        )
        yield _folded(result, method.method, f"Latencies of {method.method}", *parts)


def _folded(result: StressResult, method: str, heading: str, *parts: str) -> Markup:
    """Return what is about one method: shown for the best one, folded for others."""
    best = result.recommendation
    if len(result.methods) > 1 and (best is None or best.method != method):
        return details(heading, *parts)
    return join(tag("h3", heading), *parts)


def _overview(methods: Sequence[MethodResult]) -> Markup:
    rows = []
    for method in methods:
        found = (method.phase(name) for name in ("commit", "touch", "release"))
        medians = (None if phase is None else phase.summary.median_ns for phase in found)
        rate = f"{method.cycles_per_s:,.0f}"
        rows.append(
            (
                method.method,
                duration_or_dash(cycle_ns(method)),
                *map(duration_or_dash, medians),
                rate,
            )
        )
    return table(("median", "cycle", "commit", "touch", "release", "cycles/s"), rows)


def _phase_row(phase: PhaseResult) -> tuple[str, ...]:
    times = (duration_or_dash(getattr(phase.summary, f"{name}_ns")) for name in _STATISTICS)
    return (phase.phase, *times, f"{phase.summary.samples:,}")


def _unmapping(result: StressResult) -> Markup:
    return join(*(tag("p", words) for words in device_sentences(result)))


def _histogram(method: str, phase: PhaseResult) -> Markup:
    marks = [
        (f"{name} {format_duration(value)}", value)
        for name, value in (("median", phase.summary.median_ns), ("p99", phase.summary.p99_ns))
        if value is not None
    ]
    label = f"{phase.phase} with {method}, {phase.summary.samples:,} samples"
    return figure(label, histogram_chart(label, [("first", phase.histogram)], marks))


def _counters(result: StressResult) -> list[Markup]:
    """Return a chart of each counter for each method, one line a worker, and for the processes."""
    kept = [point for point in result.checkpoints if point.worker < _MOST_WORKERS]
    if not kept:
        return []
    parts = [
        tag(
            "p",
            tag("span", "counted by the kernel", class_="key first"),
            tag("span", "expected by vmtool", class_="key second"),
            tag("span", "allowed range", class_="key range"),
        )
    ]
    # Several methods together, between their rounds, are in the order in which a run takes them.
    names_of = {point.method: ", ".join(sorted(point.method.split(", "))) for point in kept}
    for method in dict.fromkeys(names_of.values()):
        lanes = _by_worker(point for point in kept if names_of[point.method] == method)
        lanes = [lane for lane in lanes if len(lane) > 1]  # one point is no series
        if not lanes:
            continue
        names = dict.fromkeys(r.counter for lane in lanes for point in lane for r in point.buffers)
        charts = grid([figure(counter_title(name), _expected(name, lanes)) for name in names])
        parts.append(_folded(result, method, f"The reserved ranges with {method}", charts))
    lanes = _by_worker(kept)
    parts.append(tag("h3", "The process beyond what vmtool expects"))
    names = dict.fromkeys(name for point in kept for name in point.process)
    parts.append(grid([figure(counter_title(name), _beyond(name, lanes)) for name in names]))
    return parts


def _by_worker(checkpoints: Iterable[Checkpoint]) -> list[list[Checkpoint]]:
    lanes: dict[tuple[int, int], list[Checkpoint]] = {}
    for point in checkpoints:
        lanes.setdefault((point.run, point.worker), []).append(point)
    return [sorted(lane, key=lambda point: point.at_ns) for lane in lanes.values()]


def _expected(counter: str, lanes: Sequence[Sequence[Checkpoint]]) -> Markup:
    series, band = [], []
    for lane in lanes:
        found = [(p.at_ns, r) for p in lane for r in p.buffers if r.counter == counter]
        series.append(Series("first", [(at, reading.observed) for at, reading in found]))
        series.append(Series("second", [(at, reading.expected) for at, reading in found]))
        band = [(at, reading.low, reading.high) for at, reading in found]
    # With several lines the bands would lie over each other.
    return timeline_chart(
        f"{counter_title(counter)} of the reserved ranges over time",
        [line for line in series if line.points],
        show_counter(counter),
        band if len(lanes) == 1 else (),
    )


def _beyond(counter: str, lanes: Sequence[Sequence[Checkpoint]]) -> Markup:
    series = [Series("first", [(p.at_ns, p.process.get(counter)) for p in lane]) for lane in lanes]
    return timeline_chart(
        f"{counter_title(counter)} of the process beyond what vmtool expects, over time",
        series,
        show_counter(counter),
    )


def _slopes(result: StressResult) -> Markup:
    rows = [
        (
            f"{counter_title(s.counter)}, worker {s.worker}",
            leak_amount(s.counter, s.per_cycle),
            f"{leak_amount(s.counter, s.low)} to {leak_amount(s.counter, s.high)}",
            leak_amount(s.counter, s.grown),
            leak_amount(s.counter, s.floor),
            "leak" if s.leaks else "none",
        )
        for s in result.slopes
    ]
    return table(
        ("", "per cycle", "99 % interval", "grown by", "warm-up up to", "leak"),
        rows,
    )


def _scaling(result: StressResult) -> Markup:
    rows = [
        (
            s.method,
            f"{s.workers:,}",
            f"{s.threads:,}",
            f"{s.single_cycles_per_s:,.0f}",
            f"{s.cycles_per_s:,.0f}",
            f"{s.speedup:.2f}",
        )
        for s in result.scaling
    ]
    return table(("", "workers", "threads", "cycles/s alone", "cycles/s together", "speedup"), rows)


def _settings(result: StressResult) -> Iterator[tuple[str, str]]:
    yield from settings_rows(result.settings)
    yield "harness overhead", format_duration(result.overhead_ns)
    yield "checkpoints' share of the time", f"{100 * result.checkpoint_share:.2f} %"


def settings_rows(settings: StressSettings) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run that are set, each by name."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if value in {None, ()}:
            continue
        text = ", ".join(value) if isinstance(value, tuple) else fact_text(item.name, value)
        yield fact_name(item.name), text
