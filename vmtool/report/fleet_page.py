"""The page of ``vmtool fleet``: the answer, and how the machines of each group are spread."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from vmtool.report.fleet import (
    MOST_VALUES,
    answer_text,
    fact_rows,
    finding_lines,
    group_name,
    group_text,
    named_hosts,
    value_text,
)
from vmtool.report.page import facts as fact_table
from vmtool.report.page import figure, grid, join, report, section, tag
from vmtool.units import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.report.page import Markup
    from vmtool.results.fleet import FleetResult, Group, Spread

#: Of a picture of how machines are spread: bars, the units that one is wide, and how high all are.
_BARS: Final = 24
_WIDE: Final = 10
_HIGH: Final = 60
#: Outliers that the page names under a picture.
_NAMED: Final = 12


def to_html(result: FleetResult, command: Sequence[str]) -> str:
    """Return the page that *command* made."""
    bad = result.outliers or result.failed or any(group.splits for group in result.groups)
    decided = any(group.decided for group in result.groups)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return report(
        result,
        "fleet",
        answer_text(result),
        *(_group_section(group) for group in result.groups),
        *([_problems(result)] if result.problems else []),
        command=command,
        good=False if bad else True if decided else None,
        title=[textwrap.shorten(answer_text(result), 80, placeholder="..."), made],
        place=[made, count_of(result.machines, "machine")],
        reading=[_HOW.format(**_how(result))],
    )


_HOW: Final = (
    "Each chart shows how many machines have each value, the lowest on the left; an orange bar contains an outlier."
    " Machines are compared with those that are alike, by the mean of their runs. A machine differs if such a large difference is improbable among the others (Tukey's biweight; Benjamini and Hochberg"
    " over {tests} tests: at most {rate} of the outliers are expected to be due to chance) and the difference is at least {threshold}. Facts are"
    " ranked by how well they separate machines; that is not proof of a cause."
)


def _how(result: FleetResult) -> dict[str, str]:
    return {
        "tests": f"{result.tests:,}",
        "rate": f"{100 * result.false_discovery_rate:.0f} %",
        "threshold": f"{100 * result.threshold:.0f} %",
    }


def _group_section(group: Group) -> Markup:
    named: dict[str, list[str]] = {}
    for outlier in group.outliers:
        named.setdefault(outlier.measure, []).append(outlier.host)
    findings = list(finding_lines(group))
    content = [tag("p", group_text(group))]
    if findings:
        content.append(tag("ul", *(tag("li", line) for line in findings)))
    # What differs stands first.
    spreads = sorted(group.spreads, key=lambda spread: spread.measure not in named)
    content.append(grid([_figure(s, group.hosts, named.get(s.measure, [])) for s in spreads]))
    if group.facts:
        content.append(tag("h3", "Facts that differ"))
        content.append(fact_table(fact_rows(group, most=2 * MOST_VALUES)))
    return section(group_name(group), *content)


def _figure(spread: Spread, hosts: Sequence[str], named: Sequence[str]) -> Markup:
    values = [value for value in spread.values if value is not None]
    if not values:
        return join()
    low, high, usual = (
        value_text(spread.measure, value) for value in (min(values), max(values), spread.usual)
    )
    words = f"{low} to {high}, usually {usual}" if low != high else f"{low} everywhere"
    if spread.tested and spread.logarithmic:
        words += f", varying by {100 * spread.scale:.1f} % between machines"
    elif spread.single and not spread.tested:
        words += "; one value per machine: not decided"
    lines = [tag("div", words, class_="soft")]
    if named:
        lines.append(
            tag("div", tag("strong", "Outliers: ", class_="bad"), named_hosts(named, _NAMED))
        )
    return figure(spread.measure, join(histogram(spread, hosts, named), *lines))


def histogram(spread: Spread, hosts: Sequence[str], named: Sequence[str]) -> Markup:
    """Return how many machines have which values; bars with an outlier look different."""
    known = {host: v for host, v in zip(hosts, spread.values, strict=True) if v is not None}
    low, high = min(known.values()), max(known.values())
    bars: list[list[str]] = [[] for _ in range(_BARS)]
    for host, value in known.items():
        at = int((value - low) / (high - low) * _BARS) if high > low else _BARS // 2
        bars[min(at, _BARS - 1)].append(host)
    most = max(map(len, bars))
    step = (high - low) / _BARS
    drawn = []
    for at, here in enumerate(bars):
        if here:
            ends = [value_text(spread.measure, low + step * (at + more)) for more in (0, 1)]
            height = max(_HIGH * len(here) / most, 1.5)
            words = f"{count_of(len(here), 'machine')}, {' to '.join(ends)}: {named_hosts(here)}"
            style = "first" if set(here).isdisjoint(named) else "second"
            drawn.append(
                tag(
                    "rect",
                    tag("title", words),
                    x=_WIDE * at,
                    y=_HIGH - height,
                    width=_WIDE - 1,
                    height=height,
                    class_=style,
                )
            )
    line = tag("line", x1=0, x2=_WIDE * _BARS, y1=_HIGH, y2=_HIGH, class_="axis")
    size = f"0 0 {_WIDE * _BARS} {_HIGH + 1}"
    label = f"machines by {spread.measure}"
    return tag("svg", *drawn, line, viewBox=size, role="img", aria_label=label)


def _problems(result: FleetResult) -> Markup:
    lines = (
        tag("li", tag("strong", problem.source), f": {problem.problem}")
        for problem in result.problems
    )
    return section("Problems", tag("ul", *lines))
