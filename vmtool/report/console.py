"""Consoles that never cut a number."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

# When its output is not a terminal rich assumes 80 columns and shortens cells.
_WIDE: Final = 240


def result_console(file: IO[str]) -> Console:
    """Return a console for the result: the terminal's width, or wide when there is none."""
    return Console(
        file=file,
        width=None if file.isatty() else _WIDE,
        highlight=False,
        emoji=False,
        markup=False,
    )


def notice_console() -> Console:
    """Return a console on stderr for progress; it animates on a terminal only."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)


def plain_table(*columns: str | tuple[str, JustifyMethod]) -> Table:
    """Return a table without lines, whose cells fold and are never shortened.

    Args:
        columns: Headings; the first is left-justified and the others right, unless given in pairs.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        name, justify = (
            column if isinstance(column, tuple) else (column, "right" if index else "left")
        )
        table.add_column(name, justify=justify, overflow="fold")
    return table


def backing_label(backing: str, device: str | None) -> str:
    """Return what a backing is called, with the driver's own name of its device."""
    return backing if device is None else f"{backing}, {device}"
