"""The page of ``vmtool compare``: the verdict, every figure on one scale, both sides' latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.histograms import merged
from vmtool.report.compare import (
    caveats,
    change_text,
    check_detail,
    footnotes,
    headline,
    interval_text,
    method_text,
    methods_of,
    other_rows,
    percent,
    side_text,
    warnings_of,
)
from vmtool.report.machine import fact_name, fact_text, machine_words, moment
from vmtool.report.page import (
    Markup,
    check,
    checks,
    details,
    figure,
    grid,
    join,
    report,
    section,
    table,
    tag,
)
from vmtool.report.svg_chart import RatioRow, histogram_chart, ratio_chart, ratio_reach
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.compare import Direction
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.compare.run_sets import RunSet
    from vmtool.histograms import HistogramData
    from vmtool.results.compare import Change, CompareResult, Difference

_STYLES = {Direction.FASTER: "good", Direction.SLOWER: "bad"}
_PASSED = {CheckOutcome.PASSED: True, CheckOutcome.FAILED: False, CheckOutcome.NOT_DONE: None}


def to_html(before: RunSet, after: RunSet, result: CompareResult, command: Sequence[str]) -> str:
    """Return the page of two sets of runs.

    Args:
        before: The runs themselves, for their histograms.
        after: Likewise.
        result: What was found.
        command: The command line that made it.
    """
    machines = [side.files[0].result.machine for side in (before, after)]
    words = list(dict.fromkeys(map(machine_words, machines)))
    started = [file.started for side in (before, after) for file in side.files if file.started]
    dates = (
        [" to ".join(dict.fromkeys(map(moment, (min(started), max(started)))))] if started else []
    )
    return report(
        result,
        "compare",
        headline(result),
        tag("p", side_text("before", result.before), class_="key first"),
        tag("p", side_text("after", result.after), class_="key second"),
        section("Checks", _checks(result)),
        section("Warnings", checks(_warnings(result))),
        section("Changes", *_changes(result)),
        _latency(before, after, result),
        section("Machines differ", _differences(result.machine)),
        section("Settings differ", _differences(result.settings)),
        command=command,
        good=_is_good(result),
        title=[f"{result.before.path} and {result.after.path}", *dates],
        place=[*dates, " and ".join(filter(None, words))],
        reading=_reading(result),
    )


def _is_good(result: CompareResult) -> bool | None:
    found = {change.direction for change in result.changes if change.phase == "cycle"}
    if Direction.SLOWER in found or not result.passed:
        return False
    return True if Direction.FASTER in found else None


def _warnings(result: CompareResult) -> list[Markup]:
    return [tag("li", text) for text in (*caveats(result), *warnings_of(result))]


def _checks(result: CompareResult) -> Markup:
    return checks(
        [
            check(
                _PASSED[item.outcome], f"--fail-on {item.values['condition']}", check_detail(item)
            )
            for item in result.checks
        ]
    )


def _changes(result: CompareResult) -> Iterator[Markup]:
    headings = (
        *("", "before", "after", "change", f"{percent(result.confidence)} interval"),
        *("runs vary by", "verdict"),
    )
    limit, many = result.threshold, len(methods_of(result)) > 1
    if many:
        whole = [change for change in result.changes if change.phase == "cycle"]
        yield _ratios("Change of the whole cycle", whole, whole, limit, method_text)
        rows = [(method_text(change), *_row(change)[1:]) for change in whole]
        yield table(("cycle median", *headings[1:]), rows)
    for name in methods_of(result):
        changes = [change for change in result.changes if method_text(change) == name]
        chart = _ratios("Change of each figure", changes, result.changes, limit, _figure_name)
        parts = (chart, table(headings, map(_row, changes)))
        yield details(name, *parts) if many else join(tag("h3", name), *parts)
    for line in (*other_rows(result), *footnotes(result)):
        yield tag("p", line, class_="soft")


def _ratios(
    what: str,
    changes: Sequence[Change],
    scale: Sequence[Change],
    limit: float,
    name: Callable[[Change], str],
) -> Markup:
    """Return the chart of *changes*, on the scale that the medians of *scale* need."""
    bars = [
        RatioRow(
            name=name(change),
            ratio=change.ratio,
            low=change.low,
            high=change.high,
            style=_STYLES.get(change.direction, "soft"),
            words=f"{_figure_name(change)}: {change_text(change.ratio)}"
            f" ({interval_text(change) or 'no interval'}), {change.direction.value}",
        )
        for change in changes
    ]
    # The tail of a distribution may vary by any factor; arrows show what is beyond the medians.
    end = ratio_reach(r for c in scale if c.statistic == "median" for r in (c.ratio, c.low, c.high))
    label = f"{what}, after divided by before; the band marks what counts as unchanged"
    return figure(label, ratio_chart(label, bars, limit, end)) if bars else Markup()


def _figure_name(change: Change) -> str:
    return f"{change.phase} {change.statistic}"


def _row(change: Change) -> tuple[str, ...]:
    return (
        _figure_name(change),
        format_duration(change.before_ns),
        format_duration(change.after_ns),
        change_text(change.ratio),
        interval_text(change) or "none",
        "" if change.variation is None else percent(round(change.variation, 3)),
        tag("span", change.direction.value, class_=_STYLES.get(change.direction, "soft")),
    )


def _latency(before: RunSet, after: RunSet, result: CompareResult) -> Markup:
    """Return the histograms, folded where several methods have some."""
    charts = grid(list(_histograms(before, after, result)))
    many = len(methods_of(result)) > 1
    return details("Latency", charts) if many and charts else section("Latency", charts)


def _histograms(before: RunSet, after: RunSet, result: CompareResult) -> Iterator[Markup]:
    for change in result.changes:
        if change.statistic != "median" or change.phase == "cycle":
            continue
        first = _samples(before, change.method, change.phase)
        second = _samples(after, change.method_after, change.phase)
        label = f"{change.phase}, {method_text(change)}"
        chart = histogram_chart(
            f"{label}: share of the samples by latency", [("first", first), ("second", second)]
        )
        yield figure(label, chart, style="over")


def _samples(runs: RunSet, method: str, phase: str) -> HistogramData:
    """Return the samples of all runs together."""
    return merged(
        found.histogram
        for methods in runs.runs
        for run in methods
        if run.method == method and (found := run.phase(phase)) is not None
    )


def _differences(found: Sequence[Difference]) -> Markup:
    rows = [
        (fact_name(item.name), fact_text(item.name, item.before), fact_text(item.name, item.after))
        for item in found
    ]
    return table(("", "before", "after"), rows)


def _reading(result: CompareResult) -> Iterator[str]:
    yield (
        "Each run is one process and gives one figure, such as its median commit. The change is"
        " the ratio of the figures after to those before; its interval comes from an exact"
        f" permutation test of the runs, and contains the true ratio in {percent(result.confidence)} of cases."
    )
    yield (
        f"Slower and faster mean that the interval does not include 1 and that the change reaches"
        f" {percent(result.threshold)}; unchanged means that the whole interval stays within that threshold. Everything else is not proven, as is everything where a side has fewer than four runs. Each figure is tested separately: of twenty that did not change, one may be called changed by chance."
    )
    yield "The scale of the chart fits the medians; an arrow marks what lies beyond it."
    yield (
        "The histograms show all samples of both sides, each as a share of its own. Two peaks"
        " mean that something changed during the measurement: other work, another processor, other pages."
    )
