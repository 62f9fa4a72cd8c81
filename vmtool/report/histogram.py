"""Histograms in block characters: a row for each power of two, one for several empty ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results import MethodResult

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
    return f"{low}\N{EN DASH}{high}"
