"""The page of ``vmtool inspect``: the answer, counters over time, a map of the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.json_documents import plain
from vmtool.report.inspect import (
    OTHER_NAMESPACE,
    TREND_HEADINGS,
    child_table,
    counter_rows,
    describe_hidden,
    node_table,
    reservation_name,
    reservation_table,
    trend_rows,
)
from vmtool.report.inspect_sentences import (
    describe_check,
    describe_devices,
    describe_ending,
    describe_finding,
    describe_programs,
    describe_unavailable,
    headline,
)
from vmtool.report.machine import moment, page_place
from vmtool.report.page import (
    Markup,
    check,
    checks,
    facts,
    figure,
    grid,
    join,
    report,
    section,
    table,
    tag,
)
from vmtool.report.svg_chart import Series, timeline_chart
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.inspect import FindingRating
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.results.inspect import InspectResult, ReservedRange

_CHARTS: Final = {
    "resident_bytes": "Resident",
    "charge_bytes": "Charge (private writable)",
    "address_space_bytes": "Address space",
    "areas": "Memory areas",
    "huge_bytes": "Transparent huge pages",
    "swapped_bytes": "Swapped",
    "page_table_bytes": "Page tables",
    "threads": "Threads",
    "group_bytes": "Control group",
}
_READING: Final = """\
A reservation is a range of addresses. Its bar shows how much of it is committed, and how much of that is in RAM. The
bars have no common scale: each is one whole reservation.

A trend is the median of the slopes between all pairs of samples. A counter grows when the whole interval is above
zero and the growth over the watch is more than a heap takes while it warms up.
"""


def to_html(result: InspectResult, *, command: Sequence[str]) -> str:
    """Return the page of *result*, which *command* made."""
    process = result.process
    conditions = result.conditions
    return report(
        result,
        "inspect",
        headline(result),
        tag("p", tag("code", " ".join(process.command)), class_="soft"),
        *(tag("p", text) for text in _remarks(result)),
        section("Findings", _findings(result)),
        section("Conditions", _conditions(result)),
        section("Over time", grid(_charts(result))),
        section("Trends", *_trends(result)),
        section("Reservations", _map(result.reservations), _reservations(result)),
        section("Devices", *(tag("p", text) for text in describe_devices(result.devices))),
        section("Children", table(*child_table(result.children)) if result.children else ""),
        section("Counters", facts(counter_rows(result))),
        section("Limits", _limits(result)),
        section(
            "Not available", *(tag("p", text) for text in describe_unavailable(result.unavailable))
        ),
        command=command,
        good=_is_good(result),
        title=[
            f"{process.name} ({process.pid})",
            *([] if conditions is None else [conditions.host, moment(conditions.started)]),
        ],
        place=page_place(conditions, plain(result.machine) or {}),
        reading=_READING.split("\n\n"),
    )


def _remarks(result: InspectResult) -> Iterator[str]:
    if ending := describe_ending(result):
        yield ending
    if len(result.programs) > 1:
        yield describe_programs(result.programs)
    if result.process.own_pid_namespace:
        yield OTHER_NAMESPACE


def _is_good(result: InspectResult) -> bool | None:
    ratings = {finding.rating for finding in result.findings}
    if FindingRating.PROBLEM in ratings or any(item.failed for item in result.checks):
        return False
    return None if FindingRating.WARNING in ratings or not result.samples else True


def _findings(result: InspectResult) -> Markup:
    items = []
    for finding in result.findings:
        message, remedy = describe_finding(finding)
        good = {
            FindingRating.PROBLEM: False,
            FindingRating.WARNING: None,
            FindingRating.NOTE: True,
        }[finding.rating]
        items.append(check(good, finding.name, f"{message}; {remedy}" if remedy else message))
    return checks(items)


def _conditions(result: InspectResult) -> Markup:
    states = {CheckOutcome.PASSED: True, CheckOutcome.FAILED: False, CheckOutcome.NOT_DONE: None}
    return checks(
        [check(states[item.outcome], "assert", describe_check(item)) for item in result.checks]
    )


def _charts(result: InspectResult) -> list[Markup]:
    limits = {limit.counter: limit.soft for limit in result.limits if limit.soft is not None}
    charts = []
    for counter, title in _CHARTS.items():
        points = [(sample.at_ns, getattr(sample, counter)) for sample in result.samples]
        values = [value for _, value in points if value is not None]
        if len(values) < 2 or not any(values):
            continue
        series = [Series("first", points)]
        limit = limits.get(counter)
        # A limit far above would press the line into the axis.
        if limit is not None and limit <= 2 * max(values):
            series.append(Series("limit", [(points[0][0], limit), (points[-1][0], limit)]))
        charts.append(figure(title, timeline_chart(title, series, _unit(counter))))
    return charts


def _trends(result: InspectResult) -> list[Markup]:
    rows, notes = trend_rows(result)
    if not rows:
        return []
    return [table(TREND_HEADINGS, rows), *(tag("p", note, class_="soft") for note in notes)]


def _unit(counter: str) -> Callable[[int], str]:
    return format_size if counter.endswith("_bytes") else (lambda count: f"{count:,}")


def _map(reservations: Sequence[ReservedRange]) -> Markup:
    """Return each reservation as a bar, by address, with what is free between them.

    The bar shows what is committed of it, and of that what is resident. Addresses span 128 TiB: on
    one scale every reservation would be thinner than a line.
    """
    if not reservations:
        return Markup()
    keys = [("range", "reserved"), ("second", "committed"), ("first", "resident")]
    if any(item.resident_bytes is None for item in reservations):
        keys.append(("unknown", "committed, resident not read"))
    rows, end = [], None
    for item in sorted(reservations, key=lambda item: item.base):
        if end is not None and item.base > end:
            rows.append(tag("p", f"{format_size(item.base - end)} to the next", class_="soft"))
        rows.append(_bar(item))
        # All stacks of threads are one row, as are all arenas, wherever they are.
        merged = item.owner in {"thread stack", "glibc malloc arena"}
        end = None if merged else item.base + item.capacity_bytes
    return join(
        tag("p", *(tag("span", name, class_=f"key {style}") for style, name in keys)),
        figure("The largest reservations by address, low to high", join(*rows)),
    )


def _bar(item: ReservedRange) -> Markup:
    label = (
        f"{item.base:#x} {reservation_name(item)}: {format_size(item.committed_bytes)} of "
        f"{format_size(item.capacity_bytes)} committed"
    )
    if item.resident_bytes is None:
        label += ", resident not read"
    parts = (
        ("band", item.capacity_bytes),
        ("unknown" if item.resident_bytes is None else "second", item.committed_bytes),
        ("first", item.resident_bytes or 0),
    )
    bars = [
        tag("rect", class_=style, x=0, y=0, width=nbytes / item.capacity_bytes * 100, height=1)
        for style, nbytes in parts
        if nbytes
    ]
    return join(tag("p", label, class_="soft"), tag("svg", *bars, viewBox="0 0 100 1"))


def _reservations(result: InspectResult) -> Markup:
    (what, *headings), rows = reservation_table(result.reservations)
    placed = node_table(result.reservations)
    return join(
        table(
            (what, "base", *headings),
            [
                (name, f"{item.base:#x}", *cells)
                for (name, *cells), item in zip(rows, result.reservations, strict=True)
            ],
        ),
        table(*placed),
        *(tag("p", text, class_="soft") for text in describe_hidden(result)),
    )


def _limits(result: InspectResult) -> Markup:
    def shown(value: int | None, counter: str) -> str:
        return "unlimited" if value is None else _unit(counter)(value)

    return table(
        ("limit", "used", "soft", "hard", "set for"),
        [
            (
                limit.name,
                "not available" if limit.used is None else _unit(limit.counter)(limit.used),
                shown(limit.soft, limit.counter),
                shown(limit.hard, limit.counter) if limit.where in {"process", "user"} else "-",
                limit.where,
            )
            for limit in result.limits
        ],
    )
