"""Click's context of a command: the keys of what is kept in it, and how wide its help is."""

from __future__ import annotations

from typing import Final

import click

#: Where the group keeps the arguments it was called with, in click's ``meta``.
ARGUMENTS: Final = "vmtool.arguments"
#: Where the group keeps the command after ``--`` that ``inspect`` and ``fleet`` take.
COMMAND_AFTER: Final = "vmtool.command"
#: Whether ``--markdown`` was given.
MARKDOWN: Final = "vmtool.markdown"
#: Whether a signal asked the command to stop.
INTERRUPTED: Final = "vmtool.interrupted"


class Context(click.Context):
    """A context whose help fits a narrow terminal, where click would write 50 columns."""

    def make_formatter(self) -> click.HelpFormatter:
        import shutil  # a fiftieth of a start that shows no help

        columns = shutil.get_terminal_size().columns
        width = max(columns - 2, 20) if columns < 52 else None
        return self.formatter_class(width=width, max_width=self.max_content_width)
