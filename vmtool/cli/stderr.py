"""What is said on stderr: whole on a pipe, and wrapped between words on a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from vmtool.cli.streams import on_terminal
from vmtool.printable import printable


def tell(message: str) -> None:
    """Write *message*, which may have several lines, to stderr.

    A terminal would break a long line in the middle of a number; one that is read by a program
    stays one line. Where stderr takes nothing it is lost: the exit code says the same.
    """
    lines = [printable(line) for line in message.split("\n")]
    if on_terminal(sys.stderr):
        import shutil
        import textwrap

        width = max(shutil.get_terminal_size().columns, 20)
        lines = [
            textwrap.fill(
                line,
                width,
                subsequent_indent=line[: len(line) - len(line.lstrip())] + "  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in lines
        ]
    with suppress(OSError):
        click.echo("\n".join(lines), err=True)
