"""Tables in text reports, names beside their values, and the wording of some cells.

Nothing is ever cut: a table that is too wide for the terminal becomes lines of ``name: value``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vmtool.errors import printable
from vmtool.report.console import PROSE, UNLIMITED, Words, paragraph
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult

#: Blanks between columns, and where that is too wide.
_GAPS: Final = (3, 2)
_INDENT: Final = 2


class ReportTable:
    """A table without rules.

    Where it is too wide, headings take several lines; then each row becomes a block of
    ``heading: cell`` lines under the cells that name the row.

    Args:
        columns: Headings, each with how to justify it; alone, the first *left* columns are
            left-justified and the others right.
        left: How many columns are left-justified.
        label: How many of the first cells name a row.
        prose: How many of the last columns hold words, which may continue on the next line.
    """

    def __init__(
        self,
        *columns: str | tuple[str, JustifyMethod],
        left: int = 1,
        label: int = 1,
        prose: int = 0,
    ) -> None:
        words = len(columns) - prose
        pairs: list[tuple[str, JustifyMethod]] = [
            item
            if isinstance(item, tuple)
            else (item, "left" if i < left or i >= words else "right")
            for i, item in enumerate(columns)
        ]
        self.headings = [heading for heading, _ in pairs]
        self.rows: list[tuple[list[Text], str]] = []
        self._justify: list[JustifyMethod] = [justify for _, justify in pairs]
        self._label = label
        self._prose = prose

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row; cells that are left out at its end are empty."""
        texts = [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells]
        texts += [Text()] * (len(self.headings) - len(texts))
        self.rows.append((texts, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=UNLIMITED, width=UNLIMITED)
        for headings in (self.headings, [_folded(text) for text in self.headings]):
            for gap in _GAPS:
                table = self._table(headings, gap)
                if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                    yield table
                    return
        if self._prose and self._narrowest() <= options.max_width:
            yield self._table([_folded(text) for text in self.headings], _GAPS[1], wrap=True)
            return
        yield from self._records()

    def _table(self, headings: Sequence[str], gap: int, *, wrap: bool = False) -> Table:
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, gap, 0, 0),
            header_style="bold",
            show_header=any(headings),
        )
        for i, (heading, justify) in enumerate(zip(headings, self._justify, strict=True)):
            prose = i >= len(headings) - self._prose
            table.add_column(
                Text(heading),
                justify=justify,
                no_wrap=not (wrap and prose),
                overflow="fold",
                vertical="top",
            )
        for cells, style in self.rows:
            table.add_row(*cells, style=style)
        return table

    def _narrowest(self) -> int:
        """Return the columns that the table needs if its prose is broken between all words."""
        width = _GAPS[1] * (len(self.headings) - 1)
        first_prose = len(self.headings) - self._prose
        for i, heading in enumerate(self.headings):
            cells = [Text(_folded(heading)), *(cells[i] for cells, _ in self.rows)]
            if i >= first_prose:
                words = [word for cell in cells for word in cell.plain.split()]
                width += max(map(len, words), default=0)
            else:
                width += max(len(line) for cell in cells for line in cell.plain.split("\n"))
        return width

    def _records(self) -> RenderResult:
        for cells, style in self.rows:
            name = Text(" ").join([cell for cell in cells[: self._label] if cell])
            if name:
                yield paragraph(name, style=style)
            for heading, cell in zip(
                self.headings[self._label :], cells[self._label :], strict=True
            ):
                if cell:
                    line = Text(f"{heading}: " if heading else "")
                    line.append_text(cell)
                    # A value that is too long continues indented further than its name.
                    yield Words(line, style, margin=_INDENT, indent=_INDENT)


def _folded(heading: str) -> str:
    """Return *heading* with a word a line; one that begins with a number stays in one line."""
    return heading if heading[:1].isdigit() else heading.replace(" ", "\n")


def plain_table(*columns: str | tuple[str, JustifyMethod]) -> ReportTable:
    """Return an empty table with *columns*."""
    return ReportTable(*columns)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    label: int = 1,
    prose: int = 0,
) -> ReportTable:
    """Return a table of *rows*; see :class:`ReportTable`."""
    made = ReportTable(*headings, left=left, label=label, prose=prose)
    for row in rows:
        made.add_row(*row)
    return made


def comparison(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, names: int
) -> Iterable[RenderableType]:
    """Yield a table of the columns in which *rows* differ, under a sentence with the others.

    Args:
        headings: Of the columns.
        rows: The cells; each row as long as *headings*.
        names: How many of the first cells name a row.
    """
    differ = [len(rows) < 2 or len(set(cells)) > 1 for cells in zip(*rows, strict=True)]
    columns = [i for i, differs in enumerate(differ) if differs or not any(differ)]
    same = [
        f"{heading} {cell}".strip()
        for i, (heading, cell) in enumerate(zip(headings, rows[0], strict=True))
        if i not in columns and cell and (heading or i < names)
    ]
    label = sum(i < names for i in columns)
    if same:
        yield paragraph(f"The same in every row: {'; '.join(same)}")
        yield ""
    yield table(
        [headings[i] for i in columns],
        [[row[i] for i in columns] for row in rows],
        left=label,
        label=label,
    )


def pairs(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return names beside their values; long values continue on the next line."""
    return _Pairs(rows)


class _Pairs:
    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows = [(printable(name), printable(value)) for name, value in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        size = max((len(name) for name, _ in self._rows), default=0) + _GAPS[0]
        longest = max((len(value) for _, value in self._rows), default=0)
        below = options.max_width < 60 and longest > options.max_width - size
        for name, value in self._rows:
            if below:
                if name:
                    yield paragraph(name)
                yield Words(Text(value), margin=_INDENT)
            else:
                yield Words(Text(name.ljust(size) + value), indent=size, most=max(PROSE, size + 20))


def backing_label(backing: str, device: str | None) -> str:
    """Return what a backing is called, with the driver's own name of its device."""
    return backing if device is None else f"{backing}, {device}"


def duration_or_dash(ns: int | None) -> str:
    """Return *ns* nanoseconds as text; a dash if they were not measured."""
    return "-" if ns is None else format_duration(ns)
