"""Tables and paragraphs as plain text, for commands that answer before rich is loaded.

Nothing is ever cut: a table that is too wide for the terminal is told row by row instead.
"""

from __future__ import annotations

import os
import textwrap
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where there is no terminal, nothing limits a line.
WIDE: Final = 240
_USUAL: Final = 80
#: Columns between cells, and where that is too wide.
_GAPS: Final = (3, 2)
_INDENT: Final = "  "


def text_width(file: IO[str]) -> int:
    """Return the columns that *file* has: the terminal's, or many when it is none."""
    if not file.isatty():
        return WIDE
    # What shutil.get_terminal_size does, without the archive formats that shutil loads.
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(file.fileno()).columns or _USUAL
    except OSError:
        return _USUAL


def paragraph(text: str, width: int, *, indent: str = "") -> list[str]:
    """Return *text* in lines of at most *width*, except for words that are longer."""
    return textwrap.wrap(
        text,
        min(width, 100),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: int = 1,
    label: int = 1,
) -> list[str]:
    """Return *rows* in columns, or one below the other where *width* is too small.

    Args:
        headings: Of the columns; all empty for none.
        rows: The cells; each row as long as *headings*.
        width: Columns of the terminal.
        left: How many of the first columns are left-justified; the others are right-justified.
        label: How many of the first cells name a row that is told below one another.
    """
    lines = [headings, *rows] if any(headings) else list(rows)
    sizes = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    fitting = [gap for gap in _GAPS if sum(sizes) + gap * (len(sizes) - 1) <= width]
    if not fitting:
        return _records(headings, rows, width, label)
    return [
        (" " * fitting[0])
        .join(
            cell.ljust(size) if i < left else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(line, sizes, strict=True))
        )
        .rstrip()
        for line in lines
    ]


def pairs(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and what they are, aligned; long values continue below, indented."""
    size = max(len(name) for name, _ in rows) + _GAPS[0]
    lines = []
    for name, value in rows:
        if width - size < len(value) and width < 60:
            lines += [name] if name else []
            lines += paragraph(_INDENT + value, width, indent=_INDENT)
        else:
            lines += paragraph(name.ljust(size) + value, max(width, size + 20), indent=" " * size)
    return lines


def _records(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, label: int
) -> list[str]:
    lines = []
    for row in rows:
        lines += paragraph(" ".join(cell for cell in row[:label] if cell), width)
        for heading, cell in zip(headings[label:], row[label:], strict=True):
            if cell:
                text = f"{_INDENT}{heading}: {cell}" if heading else f"{_INDENT}{cell}"
                lines += paragraph(text, width, indent=_INDENT * 2)
    return lines
