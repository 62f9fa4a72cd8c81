"""Tables as CSV, which spreadsheets open."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from vmtool.errors import printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A spreadsheet takes a text that begins so for a formula, and runs it.
_FORMULA: Final = ("=", "+", "-", "@")


def csv_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV; ``None`` is an empty cell.

    Names of hosts, files and models come from outside, so a text that a spreadsheet would run gets
    an apostrophe in front, which makes it text there as well. Numbers stay as they are.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(
        [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in row
        ]
        for row in rows
    )
    return printable_lines(file.getvalue())
