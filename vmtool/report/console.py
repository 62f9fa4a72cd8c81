"""The console that reports are printed to, and paragraphs, whose lines break between words or never.

The console cuts nothing and obeys no control character.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from vmtool.errors import printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType, RenderResult


#: Longer lines are hard to read.
PROSE: Final = 100
UNLIMITED: Final = 1 << 16
_WORD: Final = re.compile(r"\S+")
#: Where there is no terminal, nothing limits a line; rich would assume 80 columns.
WIDE: Final = 240


def result_console(file: IO[str], *, width: int | None = None) -> Console:
    """Return a console that prints to *file*.

    Only a terminal gets colour and bold text, whatever FORCE_COLOR says: the rest is stored, pasted
    or read by a program. With NO_COLOR a terminal gets bold text only (https://no-color.org).

    Args:
        file: A terminal, or any other file.
        width: Columns; ``None``: as many as the terminal has, or :data:`WIDE` without one.
    """
    if width is None and not file.isatty():
        width = WIDE
    return _Console(
        file=file,
        width=width,
        force_terminal=file.isatty(),
        highlight=False,
        emoji=False,
        markup=False,
    )


class _Console(Console):
    """A console that cuts no word and obeys no control character in what it prints."""

    def print(self, *objects: Any, **options: Any) -> None:
        whole = [
            Words(Text(item) if isinstance(item, str) else item)
            if isinstance(item, (str, Text))
            else item
            for item in objects
        ]
        super().print(*whole, **{"crop": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment(printable_lines(text), style)


def show(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print *parts* one below the other."""
    for part in parts:
        console.print(part)


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
