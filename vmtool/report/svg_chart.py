"""Charts for pages as inline SVG: histograms, values over time, ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.histograms import bucket_start
from vmtool.report.page import Markup, join, tag
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.histograms import HistogramData

#: A chart is as wide as a phone, so that its text has the size of the page's text there; a wide
#: page puts several beside each other.
WIDTH: Final = 300
_HEIGHT: Final = 170
_RIGHT, _TOP, _BOTTOM = 8, 16, 22

#: Bars of a histogram, and the least factor that its axis covers, as a power of two: a narrow
#: peak must not look like a wide one.
_BARS: Final = 40
_OCTAVES: Final = 1.0
#: Round numbers to mark on a logarithmic axis, in tenths of a power of ten, from many to few.
_ROUND: Final = (
    (10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90),
    *((10, 15, 20, 30, 50, 70), (10, 20, 50), (10, 30), (10,)),
)
_MOST_TICKS: Final = 6
#: Points of a line that answer to the pointer.
_MOST_HOVER: Final = 60
#: About the width of a character of a tick's text.
_CHARACTER: Final = 6.5


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a timeline.

    Attributes:
        style: The CSS class that colours it.
        points: Pairs of time in ns and value, ascending in time; ``None`` breaks the line.
    """

    style: str
    points: Sequence[tuple[int, int | None]]


def histogram_chart(
    label: str,
    runs: Sequence[tuple[str, HistogramData]],
    marks: Sequence[tuple[str, int]] = (),
) -> Markup:
    """Return the latencies of one phase as bars over a logarithmic axis.

    Args:
        label: What is shown, for readers that do not see it.
        runs: A CSS class and the samples; more than one are drawn over each other, each as a
            part of its own samples, so that runs of unlike length compare.
        marks: Names and values in ns that get a line of their own, such as the median.
    """
    low, high = _log_range([data for _, data in runs])
    shares = [(style, _shares(data, low, high)) for style, data in runs]
    most = max((share for _, bars in shares for share in bars), default=0) or 1
    ticks = [share for share in _steps(0, most * 100, 3) if share <= most * 100]
    frame = _Frame(
        left=_room(f"{tick:g} %" for tick in ticks),
        top=_TOP + 13 * max(len(marks) - 1, 0),
    )

    def x(value: float) -> float:
        return frame.x((math.log2(max(value, 1)) - low) / (high - low))

    shapes = []
    step = frame.width / _BARS
    for style, bars in shares:
        for index, share in enumerate(bars):
            if not share:
                continue
            # A single sample among millions is still seen.
            height = max(share / most * frame.height, 1.0)
            start, end = (2 ** (low + (high - low) * i / _BARS) for i in (index, index + 1))
            words = f"{format_duration(start)} to {format_duration(end)}: {100 * share:.2f} % of samples"
            shapes.append(
                tag(
                    "rect",
                    tag("title", words),
                    class_=style,
                    x=frame.left + index * step,
                    y=frame.base - height,
                    width=step * 0.85,
                    height=height,
                )
            )
    shapes.extend(_mark(frame, x(value), name, index) for index, (name, value) in enumerate(marks))
    return frame.draw(
        label,
        shapes,
        [(x(ns), _tick(ns, ns)) for ns in _round_values(2**low, 2**high)],
        [(frame.y(tick / 100 / most), f"{tick:g} %") for tick in ticks],
    )


def timeline_chart(
    label: str,
    series: Sequence[Series],
    show: Callable[[int], str],
    band: Sequence[tuple[int, int, int]] = (),
) -> Markup:
    """Return values over time, with the range they may have; nothing if no line has two points.

    Args:
        label: What is shown.
        series: The lines.
        show: Gives a value its unit.
        band: Time in ns, lowest and highest value allowed, ascending in time.
    """
    values = [v for line in series for _, v in line.points if v is not None]
    times = [at for line in series for at, _ in line.points]
    known = (sum(v is not None for _, v in line.points) for line in series)
    if max(known, default=0) < 2 or min(times) == max(times):
        return Markup()
    values += [edge for _, low, high in band for edge in (low, high)]
    bottom, top = min(*values, 0), max(*values, 0)
    first, last = min(times), max(times)
    steps = _steps(bottom, top, 4, binary=show is format_size)
    levels = [round(level) for level in steps if float(level).is_integer()]
    frame = _Frame(left=_room(map(show, levels)))

    def x(at: int) -> float:
        return frame.x((at - first) / (last - first))

    def y(value: float) -> float:
        return frame.y((value - bottom) / ((top - bottom) or 1))

    shapes = []
    if band:
        edges = [f"{x(at):.1f},{y(high):.1f}" for at, _, high in band]
        edges += [f"{x(at):.1f},{y(low):.1f}" for at, low, _ in reversed(band)]
        shapes.append(tag("polygon", class_="band", points=" ".join(edges)))
    for line in series:
        shapes.extend(
            tag("polyline", class_=line.style, points=" ".join(f"{a:.1f},{b:.1f}" for a, b in part))
            for part in _unbroken((x(at), None if v is None else y(v)) for at, v in line.points)
        )
    shapes.extend(_hover_points(series, x, y, show, first))
    return frame.draw(
        label,
        shapes,
        [(x(first + round(at)), _tick(at, last - first)) for at in _steps(0, last - first, 4)],
        [(y(level), show(level)) for level in levels],
        zero=y(0),
    )


def _hover_points(
    series: Sequence[Series],
    x: Callable[[int], float],
    y: Callable[[float], float],
    show: Callable[[int], str],
    first: int,
) -> Iterator[Markup]:
    """Yield what shows its time and value when the pointer is on it; a bounded number of them."""
    for line in series:
        step = -(-len(line.points) // _MOST_HOVER)
        for at, value in line.points[:: step or 1]:
            if value is not None:
                words = f"{format_duration(at - first)}: {show(value)}"
                yield tag("circle", tag("title", words), class_="hover", cx=x(at), cy=y(value), r=5)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plane of a chart between its axes.

    Attributes:
        left: Columns for the texts of the vertical axis.
        top: Where the plane begins.
    """

    left: float
    top: float = _TOP

    @property
    def width(self) -> float:
        return WIDTH - _RIGHT - self.left

    @property
    def base(self) -> float:
        return _HEIGHT - _BOTTOM

    @property
    def height(self) -> float:
        return self.base - self.top

    def x(self, part: float) -> float:
        return self.left + part * self.width

    def y(self, part: float) -> float:
        return self.base - part * self.height

    def draw(
        self,
        label: str,
        shapes: Sequence[Markup],
        across: Sequence[tuple[float, str]],
        up: Sequence[tuple[float, str]],
        zero: float | None = None,
    ) -> Markup:
        """Return the chart with its grid below and its axes above *shapes*."""
        right, base = WIDTH - _RIGHT, self.base
        grid, texts = [], []
        for at, text in up:
            grid.append(tag("line", class_="grid", x1=self.left, x2=right, y1=at, y2=at))
            texts.append(tag("text", text, x=self.left - 4, y=at + 4, text_anchor="end"))
        for at, text, anchor in _apart(across):
            grid.append(tag("line", class_="grid", x1=at, x2=at, y1=self.top, y2=base))
            texts.append(tag("text", text, x=at, y=_HEIGHT - 4, text_anchor=anchor))
        floor = base if zero is None else zero
        axes = [
            tag("line", class_="axis", x1=self.left, x2=right, y1=floor, y2=floor),
            tag("line", class_="axis", x1=self.left, x2=self.left, y1=self.top, y2=base),
        ]
        return tag(
            "svg",
            tag("title", label),
            *grid,
            *shapes,
            *axes,
            *texts,
            viewBox=f"0 0 {WIDTH} {_HEIGHT}",
            role="img",
        )


def _room(texts: Iterable[str]) -> float:
    """Return how wide the vertical axis of *texts* is."""
    return max((2 * _half(text) for text in texts), default=0) + 4


def _tick(ns: float, most: float) -> str:
    """Return a round duration on an axis whose ticks have the unit of *most*."""
    unit, factor = next(
        (unit, factor)
        for unit, factor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))
        if most >= factor or factor == 1
    )
    return f"{ns / factor:,.6g} {unit}"


def _steps(low: float, high: float, most: int, *, binary: bool = False) -> list[float]:
    """Return at most about *most* round values from *low* to *high*, with 0 if it is between."""
    span = (high - low) or 1
    if binary:
        step: float = 1 << max(math.ceil(math.log2(max(span / most, 1))), 0)
    else:
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * most >= span)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One row of a chart of ratios.

    Attributes:
        name: Beside the row.
        ratio: The dot.
        low: Left end of its interval; ``None`` for none.
        high: Right end.
        style: A CSS class.
        words: What hovering shows.
    """

    name: str
    ratio: float
    low: float | None
    high: float | None
    style: str
    words: str


#: The least that a chart of ratios reaches each way, and the most.
_LEAST_RATIO: Final = 1.25
_MOST_RATIO: Final = 16.0
#: What matters most first: those that do not fit beside them are left out, on both sides of 1.
_RATIO_TICKS: Final = (
    *((1.0,), (0.5, 2.0), (0.25, 4.0), (0.125, 8.0), (0.0625, 16.0)),
    *((0.8, 1.25), (2 / 3, 1.5), (0.9, 1.1), (1 / 3, 3.0)),
)
#: Longer names of rows are squeezed into this many characters, so that the axis keeps its room.
_LONGEST_NAME: Final = 24
_ROW: Final = 22


def ratio_reach(ratios: Iterable[float | None]) -> float:
    """Return the ratio at which the axis of a chart of *ratios* ends; 1 over it is its start."""
    least = max([_LEAST_RATIO, *(max(ratio, 1 / ratio) for ratio in ratios if ratio)])
    return min(least * 1.05, _MOST_RATIO)


def ratio_chart(label: str, rows: Sequence[RatioRow], limit: float, end: float) -> Markup:
    """Return ratios as dots with intervals on one logarithmic axis that all rows share.

    Args:
        label: What is shown, for readers that do not see it.
        rows: From the top.
        limit: Half the width of the band of what counts as unchanged, such as 0.05.
        end: Of the axis, see :func:`ratio_reach`; an arrow points at what is beyond.
    """
    longest = max((len(row.name) for row in rows), default=0)
    names = min(longest, _LONGEST_NAME) * _CHARACTER + 8
    width, top = float(WIDTH), 6.0
    bottom = top + _ROW * len(rows)
    reach = math.log(end)

    def x(ratio: float) -> float:
        part = (max(min(_log(ratio) / reach, 1), -1) + 1) / 2
        return names + part * (width - names - 12)

    shapes = [
        tag(
            "rect",
            class_="band",
            x=x(1 - min(limit, 0.99)),
            y=top,
            width=x(1 + limit) - x(1 - min(limit, 0.99)),
            height=bottom - top,
        )
    ]
    taken: list[tuple[float, float]] = []
    for ticks in _RATIO_TICKS:
        texts = [f"{tick:.3g}×" for tick in ticks]  # noqa: RUF001
        halves = [len(text) * _CHARACTER / 2 for text in texts]
        spans = [(x(tick) - half, x(tick) + half) for tick, half in zip(ticks, halves, strict=True)]
        fits = abs(math.log(ticks[-1])) <= reach and spans[-1][1] <= width
        if not fits or any(a < end and b > begin for a, b in spans for begin, end in taken):
            continue
        taken += [(a - _CHARACTER, b + _CHARACTER) for a, b in spans]
        for tick, text in zip(ticks, texts, strict=True):
            at, style = x(tick), "axis" if tick == 1 else "grid"
            middle = min(at, width - _half(text))
            shapes.append(tag("line", class_=style, x1=at, x2=at, y1=top, y2=bottom))
            shapes.append(tag("text", text, x=middle, y=bottom + 14, text_anchor="middle"))
    for i, row in enumerate(rows):
        shapes.append(_ratio_row(row, top + _ROW * (i + 0.5), x, reach))
    return tag(
        "svg",
        tag("title", label),
        *shapes,
        viewBox=f"0 0 {width:.0f} {bottom + 20:.0f}",
        class_="ratios",
        role="img",
    )


def _ratio_row(row: RatioRow, y: float, x: Callable[[float], float], reach: float) -> Markup:
    squeezed = len(row.name) > _LONGEST_NAME
    room = {"textLength": _LONGEST_NAME * _CHARACTER, "lengthAdjust": "spacingAndGlyphs"}
    name = tag("text", row.name, x=0, y=y + 4, **(room if squeezed else {}))
    parts = [tag("title", row.words), name]
    ends = [row.ratio]
    if row.low is not None and row.high is not None:
        parts.append(tag("line", class_="interval", x1=x(row.low), x2=x(row.high), y1=y, y2=y))
        ends += [end for end, way in ((row.low, -1), (row.high, 1)) if (end > 1) == (way > 0)]
    for end in {math.copysign(reach, _log(end)) for end in ends if abs(_log(end)) > reach}:
        way, tip = (1 if end > 0 else -1), x(math.exp(end))
        points = f"{tip + 6 * way:.1f},{y} {tip:.1f},{y - 4} {tip:.1f},{y + 4}"
        parts.append(tag("polygon", class_="dot", points=points))
    if abs(_log(row.ratio)) <= reach:
        parts.append(tag("circle", class_="dot", cx=x(row.ratio), cy=y, r=4))
    # Hovering anywhere in the row shows its words.
    parts.append(tag("rect", class_="hover", x=0, y=y - _ROW / 2, width=WIDTH, height=_ROW))
    return tag("g", *parts, class_=row.style)


def _log(value: float) -> float:
    return math.log(max(value, 1e-6))


def _log_range(histograms: Sequence[HistogramData]) -> tuple[float, float]:
    """Return the log2 of the smallest and the largest sample, with room at least."""
    used = [data for data in histograms if data.count]
    low = min((math.log2(max(data.min_ns, 1)) for data in used), default=0.0)
    high = max((math.log2(data.max_ns + 1) for data in used), default=1.0)
    spare = max(_OCTAVES - (high - low), 0) / 2
    low = max(low - spare, 0.0)
    return low, max(high + spare, low + _OCTAVES)


def _shares(data: HistogramData, low: float, high: float) -> list[float]:
    """Return which part of the samples each bar holds; a bucket spreads over those it touches."""
    found = [0.0] * _BARS
    if not data.count:
        return found
    for index, count in data.buckets:
        edges = (math.log2(max(bucket_start(i), 0.5)) for i in (index, index + 1))
        start, end = (min(max((e - low) / (high - low) * _BARS, 0), _BARS) for e in edges)
        first, last = (min(math.floor(edge), _BARS - 1) for edge in (start, end))
        for bar in range(first, last + 1):
            inside = min(end, bar + 1) - max(start, bar)
            found[bar] += count / data.count * (inside / (end - start) if end > start else 1)
    return found


def _round_values(low: float, high: float) -> list[int]:
    """Return at most six round values between *low* and *high*."""
    powers = range(max(math.floor(math.log10(low)), 0), math.ceil(math.log10(high)) + 1)
    ticks: list[int] = []
    for tenths in _ROUND:
        values = (ten * 10**power for power in powers for ten in tenths)
        ticks = [
            value // 10 for value in values if value % 10 == 0 and low * 10 <= value <= high * 10
        ]
        if len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]


def _apart(ticks: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str, str]]:
    """Yield the ticks whose texts stay inside and do not touch, each with its anchor."""
    edge = -math.inf
    for x, text in ticks:
        half = _half(text)
        anchor = "start" if x < half else "end" if x > WIDTH - half else "middle"
        left = {"start": x, "middle": x - half, "end": x - 2 * half}[anchor]
        if left >= edge:
            yield x, text, anchor
            edge = left + 2 * half + _CHARACTER


def _half(text: str) -> float:
    """Return half of the most that the text of a tick is wide: a unit such as ms is wide."""
    return (len(text) + 1) * _CHARACTER / 2


def _unbroken(
    points: Iterable[tuple[float, float | None]],
) -> Iterator[list[tuple[float, float]]]:
    """Yield the parts of a line between unknown values; a lone point twice, to be seen as a dot."""
    part: list[tuple[float, float]] = []
    for at, value in (*points, (0.0, None)):
        if value is not None:
            part.append((at, value))
        elif part:
            yield part * 2 if len(part) == 1 else part
            part = []


def _mark(frame: _Frame, x: float, name: str, index: int) -> Markup:
    """Return a line with a name beside it, on the side that has room."""
    wide = len(name) * _CHARACTER + 3
    if x + wide <= WIDTH:
        at, anchor = x + 3, "start"
    elif x - wide >= 0:
        at, anchor = x - 3, "end"
    else:
        at, anchor = WIDTH - 1.0, "end"
    y = _TOP + 13 * index
    return join(
        tag("line", class_="mark", x1=x, x2=x, y1=y - 10, y2=frame.base),
        tag("text", name, x=at, y=y, text_anchor=anchor),
    )
