"""The HTML page of a comparison: the verdicts with their intervals, and both runs' latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.compare.runs import Direction
from vmtool.report.chart import histogram_chart, interval_chart
from vmtool.report.compare import (
    change_text,
    footnotes,
    interval_text,
    method_text,
    percent,
    verdict_text,
)
from vmtool.report.page import (
    Markup,
    check,
    checks,
    figure,
    grid,
    join,
    page,
    section,
    table,
    tag,
)
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.compare.differences import Difference
    from vmtool.compare.runs import Change, Comparison
    from vmtool.compare.stored import StoredRun

_STYLES = {Direction.FASTER: "good", Direction.SLOWER: "bad", Direction.UNCHANGED: "soft"}


def compare_page(before: StoredRun, after: StoredRun, comparison: Comparison) -> str:
    """Return the page of two runs held against each other."""
    return page(
        "vmtool compare",
        tag("h1", "vmtool compare"),
        tag(
            "p", tag("span", before.path, class_="key first"), tag("code", " ".join(before.command))
        ),
        tag(
            "p", tag("span", after.path, class_="key second"), tag("code", " ".join(after.command))
        ),
        _headline(comparison),
        section("Gates", _gates(comparison)),
        section("Machines differ", _differences(comparison.machine)),
        section("Settings differ", _differences(comparison.settings)),
        section("Not compared", checks([tag("li", text) for text in comparison.unmatched])),
        section("Changes", *_changes(comparison)),
        section("Latency", grid(list(_histograms(before, after, comparison)))),
        section("Rates", _rates(comparison)),
    )


def _headline(comparison: Comparison) -> Markup:
    """Return the verdict on every phase, by its median."""
    medians = [change for change in comparison.changes if change.statistic == "median"]
    many = len({method_text(change) for change in medians}) > 1
    return join(
        *(
            tag(
                "p",
                f"{method_text(change) + ' ' if many else ''}{change.phase}: "
                f"{verdict_text(change)} ({change_text(change.ratio)})",
                class_=f"state {_STYLES[change.direction]}",
            )
            for change in medians
        )
    )


def _gates(comparison: Comparison) -> Markup:
    return checks(
        [check(not gate.failed, gate.condition, gate.detail) for gate in comparison.gates]
    )


def _changes(comparison: Comparison) -> Iterator[Markup]:
    headings = (
        *("", "before", "after", "change", f"{percent(comparison.confidence)} interval"),
        *("", "verdict"),
    )
    for name in dict.fromkeys(method_text(change) for change in comparison.changes):
        rows = [
            _row(change, comparison.threshold)
            for change in comparison.changes
            if method_text(change) == name
        ]
        yield join(tag("h3", name), table(headings, rows))
    yield tag(
        "p",
        f"The band is what counts as unchanged: less than {percent(comparison.threshold)}.",
        class_="soft",
    )
    for line in footnotes(comparison):
        yield tag("p", line, class_="soft")


def _row(change: Change, threshold: float) -> tuple[str, ...]:
    text = interval_text(change)
    return (
        f"{change.phase} {change.statistic}",
        format_duration(change.before_ns),
        format_duration(change.after_ns),
        change_text(change.ratio),
        text,
        interval_chart(text, change.ratio, change.low, change.high, threshold),
        tag("span", verdict_text(change), class_=_STYLES[change.direction]),
    )


def _histograms(before: StoredRun, after: StoredRun, comparison: Comparison) -> Iterator[Markup]:
    for change in comparison.changes:
        old = before.result.method(change.method)
        new = after.result.method(change.method_after)
        if change.statistic != "median" or old is None or new is None:
            continue
        first, second = old.phase(change.phase), new.phase(change.phase)
        if first is None or second is None:
            continue
        label = f"{change.phase}, {method_text(change)}"
        chart = histogram_chart(
            f"{label}: share of the samples by latency",
            [("first", first.histogram), ("second", second.histogram)],
        )
        yield figure(label, chart, style="over")


def _rates(comparison: Comparison) -> Markup:
    rows = [
        (
            method_text(rate),
            f"{rate.before_cycles_per_s:,.0f}",
            f"{rate.after_cycles_per_s:,.0f}",
        )
        for rate in comparison.rates
    ]
    return table(("", "cycles/s before", "after"), rows)


def _differences(found: Sequence[Difference]) -> Markup:
    def told(value: object) -> str:
        return "not told" if value is None else str(value)

    rows = [(item.name, told(item.before), told(item.after)) for item in found]
    return table(("", "before", "after"), rows)
