"""The reservations of a process, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.errors import printable
from vmtool.report.console import paragraph
from vmtool.report.inspect_findings import shown_count, shown_size
from vmtool.report.table import table
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from vmtool.results.inspect import InspectResult, ReservedRange


#: The columns that the table of reservations needs with addresses.
_WITH_ADDRESSES: Final = 100


def reservation_parts(result: InspectResult, width: int) -> Iterator[RenderableType]:
    """Yield the tables of the reservations, as wide as *width* allows."""
    addresses = width >= _WITH_ADDRESSES
    headings, rows = reservation_table(result.reservations)
    if addresses:
        headings = (*headings, "base")
        rows = [
            (*row, f"{item.base:#x}") for row, item in zip(rows, result.reservations, strict=True)
        ]
    yield table(headings, rows)
    headings, rows = node_table(result.reservations)
    if rows:
        yield ""
        yield table(headings, rows)
    notes = describe_hidden(result)
    if not addresses:
        notes.append(f"addresses need {_WITH_ADDRESSES} columns or --json")
    age = result.areas_age_ns
    if age is not None and age > 2 * 10**9:
        notes.append(f"read {format_duration(age)} ago")
    if notes:
        yield paragraph("; ".join(notes))


def describe_hidden(result: InspectResult) -> list[str]:
    """Return how many reservations are left out, if any are."""
    hidden = result.reservations_total - len(result.reservations)
    return [f"{hidden:,} smaller ones not shown (see --top)"] if hidden > 0 else []


def reservation_table(
    reservations: Sequence[ReservedRange],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells, without the columns that hold nothing in any row."""
    read = any(item.resident_bytes is not None for item in reservations)
    columns = {
        "reservation": [reservation_name(item) for item in reservations],
        "capacity": [shown_size(item.capacity_bytes) for item in reservations],
        "committed": [shown_size(item.committed_bytes) for item in reservations],
        "resident": [
            ("not read" if read else "-")
            if item.resident_bytes is None
            else shown_size(item.resident_bytes)
            for item in reservations
        ],
        "huge": [shown_size(item.huge_bytes) if item.huge_bytes else "-" for item in reservations],
        "granule": [_granule(item) for item in reservations],
        "areas": [shown_count(item.pieces) for item in reservations],
        "perms": [item.permissions for item in reservations],
    }
    kept = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    return tuple(kept), list(zip(*kept.values(), strict=True))


def node_table(
    reservations: Sequence[ReservedRange],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells of where the pages of the reservations are that have any."""
    placed = [(reservation_name(item), item.node_bytes) for item in reservations if item.node_bytes]
    count = max((len(nodes) for _, nodes in placed), default=0)
    rows = [
        (name, *(format_size(n) for n in (*nodes, *[0] * (count - len(nodes)))))
        for name, nodes in placed
    ]
    return ("resident on", *(f"node {node}" for node in range(count))), rows


def _granule(item: ReservedRange) -> str:
    if item.granule_bytes is None or item.committed_bytes == item.capacity_bytes:
        return "-"
    return ("" if item.granule_exact else "≤ ") + format_size(item.granule_bytes)


def reservation_name(item: ReservedRange) -> str:
    """Return what a reservation is: its owner where that is certain, or the kernel's name of it."""
    name = printable(item.name)
    if item.kind == "file":
        name = name.rsplit("/", 1)[-1]
    if item.owner:
        return f"{item.owner}{f' {name}' if name and item.kind != 'anonymous' else ''}"
    return name or item.kind
