"""The pages of ``vmtool kv-estimate``: the answer, what each packing commits, the figures."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from vmtool.kv.estimate_compare_result import EstimateComparison, EstimateSweep
from vmtool.kv.estimate_result import EstimateResult
from vmtool.report.kv_estimate import (
    capacity_text,
    explained,
    facts_of,
    headline,
    percent,
    waste_text,
)
from vmtool.report.kv_estimate_compare import compare_title, measured, sweep_title
from vmtool.report.kv_estimate_engines import engine_paragraphs
from vmtool.report.page import (
    Markup,
    details,
    facts,
    figure,
    grid,
    report,
    section,
    table,
    tag,
)
from vmtool.report.svg_chart import WIDTH
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.kv.estimate_compare_result import ComparisonRow
    from vmtool.kv.estimate_result import PolicyResult
    from vmtool.report.kv_estimate_engines import EngineResult

    PageResult = EstimateResult | EstimateComparison | EstimateSweep | EngineResult

#: Of a line of text in a chart, in characters of its size, and the height of text and bar.
_LINE: Final = 44
_TEXT_HEIGHT, _BAR_HEIGHT, _GAP = 15, 9, 9


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar of a chart.

    Attributes:
        name: What it is of.
        text: Its figures.
        used: The length of its first part.
        rest: The length of its second part.
    """

    name: str
    text: str
    used: float
    rest: float = 0


def to_html(result: PageResult, command: Sequence[str]) -> str:
    """Return the page of *result*, which *command* made."""
    if isinstance(result, EstimateResult):
        verdict, body = headline(result), list(_estimate(result))
        good = None if result.need.fits is None or result.sequences == 1 else result.need.fits
    elif isinstance(result, EstimateComparison):
        verdict, body, good = _best(result), list(_comparison(result)), None
    elif isinstance(result, EstimateSweep):
        verdict, body, good = _range(result), list(_sweep(result)), None
    else:
        (verdict, *more), lines = engine_paragraphs(result)
        body = [
            *(tag("p", text) for text in more),
            *(
                section(heading, *(tag("p", tag("code", line)) for line in logged))
                for heading, logged in lines.items()
            ),
        ]
        good = None
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return report(
        result,
        "kv-estimate",
        verdict,
        *body,
        command=command,
        good=good,
        title=[textwrap.shorten(verdict, 80, placeholder="..."), made],
        place=[made, "calculated; no memory was used"],
        reading=_READING.split("\n\n"),
    )


_READING: Final = """\
A sequence takes some bytes for each token that a layer keeps, and a fixed number of bytes for each layer with
states. Memory is committed in whole granules; the part of it that no token uses is wasted.

The longest sequence is the one that fits alone; the number of sequences is how many of the given length fit at once.
"""


def _best(result: EstimateComparison) -> str:
    best = next((row for row in result.rows if row.best), None)
    return f"{'' if best is None else f'{_name(best)} is best; '}{compare_title(result)}"


def _range(result: EstimateSweep) -> str:
    ends = (result.rows[0], result.rows[-1])
    fits = [
        f"{capacity_text(row.answer.max_sequences)} sequences of {row.context_tokens:,} tokens"
        for row in ends
        if row.answer is not None and row.answer.max_sequences is not None
    ]
    return f"{sweep_title(result)}{' holds ' if fits else ''}{' to '.join(fits)}"


def _name(row: ComparisonRow) -> str:
    """Return what tells *row* from the others, such as ``tp 4``."""
    labels = {**row.labels}
    if "context" in labels:
        labels["context"] = f"{row.context_tokens:,}"
    return ", ".join(f"{axis} {value}" for axis, value in labels.items())


def _estimate(result: EstimateResult) -> Iterator[Markup]:
    possible = {name: item for name, item in result.policies.items() if not item.impossible}
    bars = [
        _Bar(
            name,
            f"{format_size(item.committed_bytes)}, {_part_wasted(item)} wasted",
            item.used_bytes,
            item.wasted_bytes,
        )
        for name, item in possible.items()
    ]
    length = f"{result.context_tokens:,} tokens"
    caption = (
        f"One sequence of {length} on {format_size(result.granule_bytes)} granules, by packing"
    )
    yield section("Packing", _key(), grid([figure(caption, bar_chart(caption, bars))]))
    headings = ["packing", "1 token", "committed", "wasted"]
    headings.append(f"under {percent(result.waste_threshold / 1000)} waste from")
    if result.budget is not None:
        headings += ["max tokens", "max sequences"]
    rows = [
        [
            name,
            format_size(item.floor_bytes),
            format_size(item.committed_bytes),
            waste_text(item),
            "never" if item.waste_ends_tokens is None else f"{item.waste_ends_tokens:,}",
            *(
                capacity_text(capacity)
                for capacity in (item.max_tokens, item.max_sequences)
                if capacity is not None
            ),
        ]
        for name, item in possible.items()
    ]
    yield table(headings, rows)
    yield section("The model", facts(facts_of(result)))
    if result.provenance is not None:
        title, values = explained(result)
        yield details(title, table(("", "value", "from"), values))


def _part_wasted(item: PolicyResult) -> str:
    return percent(item.wasted_bytes / item.committed_bytes if item.committed_bytes else 0)


def _comparison(result: EstimateComparison) -> Iterator[Markup]:
    possible = [row for row in result.rows if row.answer is not None]
    columns = measured(result)
    axes = list(result.rows[0].labels)
    rows = [
        [
            *row.labels.values(),
            *(show(row) for show in columns.values()),
            "best" if row.best else "",
        ]
        for row in possible
    ]
    yield table([*axes, *columns, ""], rows)
    for row in result.rows:
        if row.problem:
            yield tag("p", f"not possible: {_name(row)}: {row.problem}")
    yield _chart_of(possible)


def _sweep(result: EstimateSweep) -> Iterator[Markup]:
    headings = ["context", "used", "committed", "wasted", "sequences"]
    rows = [
        [
            f"{row.context_tokens:,}",
            format_size(row.answer.used_bytes),
            format_size(row.answer.committed_bytes),
            waste_text(row.answer),
            capacity_text(row.answer.max_sequences),
        ]
        for row in result.rows
        if row.answer is not None
    ]
    yield table(headings, rows)
    yield _chart_of(result.rows)


def _chart_of(rows: Sequence[ComparisonRow]) -> Markup:
    """Return a chart of the sequences that fit, or else of what one commits."""
    bars = []
    counted = all(row.answer is not None and row.answer.max_sequences is not None for row in rows)
    for row in rows:
        if row.answer is None:
            continue
        name = _name(row)
        many = row.answer.max_sequences
        if counted and many is not None:
            bars.append(_Bar(name, capacity_text(many), many.fits or 0))
        else:
            size = format_size(row.answer.committed_bytes)
            bars.append(_Bar(name, size, row.answer.used_bytes, row.answer.wasted_bytes))
    caption = "Sequences that fit" if counted else "Committed for one sequence"
    return section(
        caption, Markup() if counted else _key(), grid([figure(caption, bar_chart(caption, bars))])
    )


def _key() -> Markup:
    return tag(
        "p",
        tag("span", "used", class_="key first"),
        tag("span", "wasted", class_="key second"),
    )


def bar_chart(label: str, bars: Sequence[_Bar]) -> Markup:
    """Return *bars* below each other, each under its name and figures; nothing without bars."""
    most = max((bar.used + bar.rest for bar in bars), default=0)
    if not most:
        return Markup()
    shapes: list[Markup] = []
    y = 0
    for bar in bars:
        lines = textwrap.wrap(bar.name, _LINE)
        if len(lines[-1]) + len(bar.text) + 2 > _LINE:
            lines.append("")
        for i, line in enumerate(lines):
            y += _TEXT_HEIGHT
            if line:
                shapes.append(tag("text", line, x=0, y=y - 3))
            if i == len(lines) - 1:
                shapes.append(tag("text", bar.text, x=WIDTH, y=y - 3, text_anchor="end"))
        used, rest = (part / most * WIDTH for part in (bar.used, bar.rest))
        title = tag("title", f"{bar.name}: {bar.text}")
        for style, x, width in (("first", 0.0, used), ("second", used, rest)):
            if width:
                shapes.append(
                    tag("rect", title, class_=style, x=x, y=y, width=width, height=_BAR_HEIGHT)
                )
        y += _BAR_HEIGHT + _GAP
    return tag("svg", tag("title", label), *shapes, viewBox=f"0 0 {WIDTH} {y}", role="img")
