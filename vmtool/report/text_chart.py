"""Charts in text: lines over time, made of characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.results.kv_replay import Point


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
