"""The formats of files for other programs: CSV for spreadsheets, OpenMetrics for a textfile collector.

Format of OpenMetrics: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

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


class Metrics:
    """Gauges, each family kept together as the format wants."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float, /, **labels: object) -> None:
        """Add one sample of the family ``vmtool_NAME``."""
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
        self._families.setdefault(f"vmtool_{name}", []).append(f"vmtool_{name}{{{pairs}}} {value}")

    def text(self) -> str:
        """Return the whole exposition."""
        lines = []
        for name, samples in self._families.items():
            lines += [f"# TYPE {name} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    # A line break has an escape in the format; other control characters are spelled out.
    return printable_lines(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
