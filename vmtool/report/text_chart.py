"""Charts in text, made of characters: histograms as bars, and lines over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.results.kv_replay import Point
    from vmtool.results.stress import MethodResult


LIVE: Final = "█"
ROUNDING: Final = "░"
BUDGET: Final = "-"
REFUSED: Final = "!"
_ROWS: Final = 8
_WIDEST: Final = 72


def budget_in_reach(points: Sequence[Point], budget: int) -> bool:
    """Return whether a plot of *points* goes up to *budget*: it is near, or refused something."""
    peak = max(point.committed_max_bytes for point in points)
    return 2 * budget <= 3 * peak or any(point.refused for point in points)


def plot_lines(points: Sequence[Point], budget: int, width: int) -> Iterator[str]:
    """Yield a plot of *points* in at most *width* columns, with the line of *budget* if in reach.

    A column has the most of what was committed and live in its stretch of time, and a mark below
    where requests were refused memory.
    """
    limited = budget_in_reach(points, budget)
    top = budget if limited else max(point.committed_max_bytes for point in points)
    label = format_size(top)
    columns = max(min(_WIDEST, width - len(label) - 2), 8)
    last = points[-1].at_ns or 1
    committed, live = [0] * columns, [0] * columns
    refused = [" "] * columns
    start = 0  # a point covers the time since the one before it
    for point in points:
        stop = point.at_ns * (columns - 1) // last
        for at in range(start, stop + 1):
            committed[at] = max(committed[at], point.committed_max_bytes)
            live[at] = max(live[at], point.live_max_bytes)
            if point.refused:
                refused[at] = REFUSED
        start = stop
    if limited:
        yield f"{label} {BUDGET * columns}"
    for row in range(_ROWS, 0, -1):
        cells = "".join(
            _cell(a, b, (row - 1) * top, _ROWS) for a, b in zip(live, committed, strict=True)
        )
        head = label if row == _ROWS and not limited else "0 B" if row == 1 else ""
        yield f"{head:>{len(label)}} {cells}".rstrip()
    if REFUSED in refused:
        yield f"{'':{len(label)}} {''.join(refused)}".rstrip()
    end = format_duration(last)
    yield " " * (len(label) + 1) + "0 s" + end.rjust(columns - 3)


def _cell(live: int, committed: int, floor: int, rows: int) -> str:
    """Return the character of a row that begins at *floor* in units of a row."""
    if live * rows > floor:
        return LIVE
    return ROUNDING if committed * rows > floor else " "


_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_WIDEST_BAR: Final = 20
_NARROWEST_BAR: Final = 4


def histogram_rows(method: MethodResult, width: int) -> Table:
    """Return the latencies of the platform's phases of *method*, in at most *width* columns."""
    rows: list[tuple[str, str, int, int]] = []
    for phase in method.phases:
        if phase.phase == "verify":
            continue  # what the harness does itself
        buckets = _join_empty(phase.histogram.log2_buckets())
        most = max((count for _, _, count in buckets), default=0)
        for index, (start, end, count) in enumerate(buckets):
            rows.append((phase.phase if index == 0 else "", _range(start, end), count, most))
    names = max((len(row[0]) for row in rows), default=0)
    ranges = max((len(row[1]) for row in rows), default=0)
    counts = max((len(f"{row[2]:,}") for row in rows), default=0)
    gap = 2 if width >= 60 else 1
    room = width - names - ranges - counts - 3 * gap
    size = min(max(room, _NARROWEST_BAR), _WIDEST_BAR)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=False)
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify, overflow="fold")
    for name, span, count, most in rows:
        table.add_row(
            name, span, Text(bar(count, most, size).ljust(size), style="cyan"), f"{count:,}"
        )
    return table


def bar(count: int, most: int, size: int) -> str:
    """Return a bar of *count* where *most* fills *size* columns; one that is not zero shows."""
    if count <= 0:
        return ""
    eighths = max(count * size * 8 // most, 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _join_empty(buckets: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return *buckets* with neighbouring empty ones as one."""
    joined: list[tuple[int, int, int]] = []
    for start, end, count in buckets:
        if joined and not count and not joined[-1][2]:
            joined[-1] = (joined[-1][0], end, 0)
        else:
            joined.append((start, end, count))
    return joined


def _range(start: int, end: int) -> str:
    low, high = format_duration(start), format_duration(end)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{low}\u2013{high}"
