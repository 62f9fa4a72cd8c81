"""Live against committed memory over time, in block characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.replay.results import Point

LIVE: Final = "█"
ROUNDING: Final = "░"
_ROWS: Final = 8
_WIDEST: Final = 72


def plot_lines(points: Sequence[Point], width: int) -> Iterator[str]:
    """Yield a plot of *points* in at most *width* columns.

    A column has the most of what was committed and live in its stretch of time.
    """
    top = max(point.committed_bytes for point in points)
    label = format_size(top)
    columns = max(min(_WIDEST, width - len(label) - 2), 8)
    last = points[-1].at_ns or 1
    committed, live = [0] * columns, [0] * columns
    for before, point in zip((points[0], *points), points, strict=False):
        # A point tells what was so since the one before it.
        start = before.at_ns * (columns - 1) // last
        for at in range(start, point.at_ns * (columns - 1) // last + 1):
            committed[at] = max(committed[at], point.committed_bytes)
            live[at] = max(live[at], point.live_bytes)
    for row in range(_ROWS, 0, -1):
        cells = "".join(
            _cell(a, b, (row - 1) * top, _ROWS) for a, b in zip(live, committed, strict=True)
        )
        head = label if row == _ROWS else "0 B" if row == 1 else ""
        yield f"{head:>{len(label)}} {cells}".rstrip()
    end = format_duration(last)
    yield " " * (len(label) + 1) + "0 s" + end.rjust(columns - 3)


def _cell(live: int, committed: int, floor: int, rows: int) -> str:
    """Return the character of a row that begins at *floor* in units of a row."""
    if live * rows > floor:
        return LIVE
    return ROUNDING if committed * rows > floor else " "
