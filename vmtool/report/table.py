"""Text for streams that cannot show every character: the nearest ASCII, and never a crash."""

from __future__ import annotations

import codecs
import os
import sys
import textwrap
from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import JustifyMethod

# What the reports use beyond ASCII: units, bars, pictures.
_NEAREST: Final = str.maketrans("µ█▉▊▋▌▍▎▏▒░·±\N{EN DASH}", "u###==--.+..~-")
_ERRORS: Final = "vmtool.nearest"
#: UTF-8 has no code for half a surrogate pair, which stands for a byte that is no text, such as one
#: in the name of a file. As ``\\udcff`` it is legal in JSON and readable elsewhere.
UTF_8: Final = ("utf-8", "backslashreplace")


def result_encoding() -> tuple[str, str]:
    """Return the encoding of results on stdout and what happens to other characters.

    UTF-8, as in files, whatever the code page of Windows is. ``PYTHONIOENCODING`` asks for another
    where stdout is no terminal, for readers that know only theirs.
    """
    asked = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    if not asked or sys.stdout is None or sys.stdout.isatty():
        return UTF_8
    try:
        return codecs.lookup(asked).name, _ERRORS
    except LookupError:
        return UTF_8


def nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace each character that has no code by one of ASCII that looks like it, or by ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_NEAREST)
    return "".join(char if char.isascii() else "?" for char in text), error.end


codecs.register_error(_ERRORS, nearest)


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
    prose: int = 0,
) -> list[str]:
    """Return *rows* in columns, or in another arrangement where *width* is too small.

    Args:
        headings: Of the columns; all empty for none.
        rows: The cells; each row as long as *headings*.
        width: Columns of the terminal.
        left: How many of the first columns are left-justified; the others are right-justified.
        label: How many of the first cells name a row.
        prose: How many of the last columns hold words, which may go on in the next line; with any,
            all columns are left-justified.
    """
    lines = [headings, *rows]
    left = len(headings) if prose else left
    whole = _sizes(lines)
    folded = _sizes([[_longest_word(text) for text in headings], *rows])
    ways = [(sizes, gap) for sizes in (whole, folded) for gap in _GAPS]
    if prose:
        ways.append((_narrowed(rows, folded, width, prose), _GAPS[1]))
    for sizes, gap in ways:
        if _across(sizes, gap) <= width:
            return _aligned(headings, rows, sizes, gap, left)
    turned = list(zip(*lines, strict=True))
    if _across(_sizes(turned), _GAPS[1]) <= width:
        return _aligned(turned[0], turned[1:], _sizes(turned), _GAPS[1], 1)
    return _parts(headings, rows, folded, width, left, label) or _records(
        headings, rows, width, label
    )


def comparison(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, names: int
) -> list[str]:
    """Return a table of what differs between *rows*, under a sentence with what does not.

    Args:
        headings: Of the columns.
        rows: The cells; each row as long as *headings*.
        width: Columns of the terminal.
        names: How many of the first cells name a row.
    """
    differ = [len(rows) < 2 or len(set(cells)) > 1 for cells in zip(*rows, strict=True)]
    columns = [i for i, differs in enumerate(differ) if differs or not any(differ)]
    said = [
        f"{heading} {cell}".strip()
        for i, (heading, cell) in enumerate(zip(headings, rows[0], strict=True))
        if i not in columns and cell
    ]
    label = sum(i < names for i in columns)
    return [
        *(paragraph(f"The same in every row: {'; '.join(said)}", width) if said else ()),
        *([""] if said else ()),
        *table(
            [headings[i] for i in columns],
            [[row[i] for i in columns] for row in rows],
            width,
            left=label,
            label=label,
        ),
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


def _sizes(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*lines, strict=True)]


def _narrowed(
    rows: Sequence[Sequence[str]], sizes: Sequence[int], width: int, prose: int
) -> list[int]:
    """Return *sizes* with the widest of the last *prose* columns narrowed, down to their words."""
    narrow = list(sizes)
    least = {
        i: max((len(word) for row in rows for word in row[i].split()), default=0)
        for i in range(len(sizes) - prose, len(sizes))
    }
    while _across(narrow, _GAPS[1]) > width:
        spare = [i for i, size in least.items() if narrow[i] > size]
        if not spare:
            break
        narrow[max(spare, key=lambda i: narrow[i])] -= 1
    return narrow


def _longest_word(heading: str) -> str:
    # A heading that begins with a number, such as "64 KiB", stays in one line.
    return heading if heading[:1].isdigit() else max(heading.split() or [""], key=len)


def _across(sizes: Sequence[int], gap: int) -> int:
    return sum(sizes) + gap * (len(sizes) - 1)


def _aligned(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    sizes: Sequence[int],
    gap: int,
    left: int,
) -> list[str]:
    """Return *rows* in columns of *sizes*; cells that are longer go on below."""
    lines = []
    for cells in [headings, *rows] if any(headings) else rows:
        parts = [
            textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False)
            if len(cell) > size
            else [cell]
            for cell, size in zip(cells, sizes, strict=True)
        ]
        height = max(map(len, parts))
        for part in parts:
            empty = [""] * (height - len(part))
            # Headings stand on their columns; a cell begins beside the name of its row.
            part[:] = [*empty, *part] if cells is headings else [*part, *empty]
        lines += [
            (" " * gap)
            .join(
                cell.ljust(size) if i < left else cell.rjust(size)
                for i, (cell, size) in enumerate(zip(line, sizes, strict=True))
            )
            .rstrip()
            for line in zip(*parts, strict=True)
        ]
    return lines


def _parts(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    sizes: Sequence[int],
    width: int,
    left: int,
    label: int,
) -> list[str]:
    """Return the table in parts of at least two columns beside the names; empty if it cannot be."""
    names, parts = list(range(label)), [[*range(label)]]
    for column in range(label, len(headings)):
        if _across([sizes[i] for i in [*parts[-1], column]], _GAPS[1]) > width:
            parts.append([*names])
        parts[-1].append(column)
    whole = all(_across([sizes[i] for i in part], _GAPS[1]) <= width for part in parts)
    if not whole or any(len(part) < label + 2 for part in parts[:-1]):
        return []
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += _aligned(
            [headings[i] for i in part],
            [[row[i] for i in part] for row in rows],
            [sizes[i] for i in part],
            _GAPS[1],
            left,
        )
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
