"""The standard output of the command line, and settings of click."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Final

import click

from vmtool.errors import VmtoolError

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


def print_and_exit(ctx: click.Context, text: str) -> None:
    """Write *text* to stdout and end the command; click itself would ignore a closed stdout.

    Raises:
        VmtoolError: If stdout is closed, or does not take it although somebody reads it.
    """
    if sys.stdout is None:
        raise VmtoolError("cannot write stdout: it is closed")
    try:
        click.echo(text, color=ctx.color)
        sys.stdout.flush()
    except OSError as error:
        if not reader_is_gone(error):
            raise VmtoolError(f"cannot write stdout: {error.strerror or error}") from error
    ctx.exit()


def print_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print the help of the command that is being parsed, as the callback of ``--help``."""
    if value and not ctx.resilient_parsing:
        print_and_exit(ctx, ctx.get_help())


def reader_is_gone(error: OSError, system: str = sys.platform) -> bool:
    """Return whether *error* says that the program which reads the output has closed the pipe."""
    if isinstance(error, BrokenPipeError):
        return True
    # Windows' C library: https://bugs.python.org/issue35754
    return system == "win32" and error.errno == errno.EINVAL


def drop_unwritten() -> None:
    """Discard buffered output that stdout and stderr do not accept.

    Python would try again at exit, and then end with code 120 whatever the command had to say.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
