"""Paragraphs in the text of a report: lines that are broken between words, or never."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

from vmtool.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


#: Longer lines are hard to read.
PROSE: Final = 100
UNLIMITED: Final = 1 << 16
_WORD: Final = re.compile(r"\S+")


class Words:
    """Text that is broken between words only, with *margin* before each line.

    Lines after the first are indented by *indent* more.
    """

    def __init__(
        self,
        text: Text,
        style: str = "",
        *,
        margin: int = 0,
        indent: int = 0,
        most: int | None = None,
    ) -> None:
        self._text = text
        self._style = style
        self._margin = " " * margin
        self._indent = " " * indent
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        most = options.max_width if self._most is None else self._most
        width = most if most == UNLIMITED else min(options.max_width, most) - len(self._margin)
        whole = self._text.copy()
        whole.stylize_before(self._style)
        for line in whole.split("\n", allow_blank=True):
            for i, part in enumerate(line.divide(_breaks(line.plain, width, len(self._indent)))):
                part.rstrip()
                shown = Text(self._margin + (self._indent if i else ""))
                shown.append_text(part)
                shown.no_wrap = True
                shown.overflow = "ignore"
                yield shown


def _breaks(text: str, width: int, indent: int) -> list[int]:
    """Return where *text* continues on the next line: at words that do not fit any more."""
    found: list[int] = []
    start, room = 0, width
    for match in _WORD.finditer(text):
        if match.start() > start and cell_len(text[start : match.end()]) > room:
            start, room = match.start(), width - indent
            found.append(start)
    return found


def paragraph(text: str | Text, *, indent: str = "", style: str = "") -> RenderableType:
    """Return *text* in lines of at most 100 columns, except for words that are longer.

    A line break in a string, such as that of a file's name, is escaped.

    Args:
        text: Words.
        indent: Before each line after the first.
        style: Such as ``bold red``.
    """
    made = text if isinstance(text, Text) else Text(printable(text))
    return Words(made, style, indent=len(indent), most=PROSE)


def verbatim(text: str) -> RenderableType:
    """Return *text* that is never broken, such as a line of a log."""
    return Words(Text(text), most=UNLIMITED)
