"""The console that reports are printed to: it cuts nothing and obeys no control character."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from vmtool.errors import printable_lines
from vmtool.report.paragraphs import Words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


#: Where there is no terminal, nothing limits a line; rich would assume 80 columns.
WIDE: Final = 240


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


def show(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print *parts* one below the other."""
    for part in parts:
        console.print(part)
