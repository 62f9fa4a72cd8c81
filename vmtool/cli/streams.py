"""The standard streams: encoding, messages and progress on stderr, help on stdout, closed streams."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from contextlib import contextmanager, suppress
from time import monotonic_ns
from typing import IO, TYPE_CHECKING, Final

import click

from vmtool.errors import VmtoolError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# What the reports use beyond ASCII: units, bars, pictures.
_NEAREST: Final = str.maketrans("µ█▉▊▋▌▍▎▏▒░·±\u2013", "u###==--.+..~-")
_ERRORS: Final = "vmtool.nearest"
#: UTF-8 has no code for half a surrogate pair, which stands for a byte that is not text, such as
#: one in the name of a file. It is written as the text ``\\udcff``.
UTF_8: Final = ("utf-8", "backslashreplace")
# The narrowest terminal that is worth a thought; a wrapped line could not be removed.
_LINE_WIDTH: Final = 39


def tell(*lines: str) -> None:
    """Write *lines* to stderr; a line break in one, such as that of a file's name, is escaped.

    A terminal would break a long line in the middle of a number; one that is read by a program
    stays one line. Where stderr takes nothing it is lost: the exit code says the same.
    """
    shown = [printable(line) for line in lines]
    if _on_terminal(sys.stderr):
        import shutil
        import textwrap

        width = max(shutil.get_terminal_size().columns, 20)
        shown = [
            textwrap.fill(
                line,
                width,
                subsequent_indent=line[: len(line) - len(line.lstrip())] + "  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in shown
        ]
    with suppress(OSError):
        click.echo("\n".join(shown), err=True)


def _on_terminal(stream: IO[str] | None) -> bool:
    """Return whether *stream* is shown to a person; ``None``, a closed one, is not."""
    return stream is not None and stream.isatty()


@contextmanager
def progress_line(
    *, quiet: bool, every_ns: int = 200 * 10**6
) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Yield a function that shows a text, which it makes only when it is time for a new one.

    Args:
        quiet: Show none.
        every_ns: The time from one to the next; 0 shows each, for a run with few.
    """
    if quiet or not _on_terminal(sys.stderr):
        yield lambda _make_text: None
        return
    due = monotonic_ns() + every_ns  # what is done at once needs no progress

    def show(make_text: Callable[[], str]) -> None:
        nonlocal due
        now = monotonic_ns()
        if now >= due:
            due = now + every_ns
            _overwrite_line(make_text())

    try:
        yield show
    finally:
        _overwrite_line("")
        click.echo("\r", nl=False, err=True)


def _overwrite_line(text: str) -> None:
    text = fitting(text)
    click.echo(f"\r{text[:_LINE_WIDTH].ljust(_LINE_WIDTH)}", nl=False, err=True)


def fitting(text: str) -> str:
    """Return the parts of *text* that fit in the line, whole: a unit that is cut misleads."""
    while len(text) > _LINE_WIDTH and ", " in text:
        text = text.rpartition(", ")[0]
    return text


def print_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print the help of the command that is being parsed, as the callback of ``--help``."""
    if value and not ctx.resilient_parsing:
        print_and_exit(ctx, ctx.get_help())


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


def result_encoding() -> tuple[str, str]:
    """Return the encoding of results on stdout and what happens to other characters.

    UTF-8, as in files, whatever the code page of Windows is. ``PYTHONIOENCODING`` names another
    where stdout is not a terminal, for readers that know only theirs.
    """
    wanted = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    if not wanted or sys.stdout is None or sys.stdout.isatty():
        return UTF_8
    try:
        return codecs.lookup(wanted).name, _ERRORS
    except LookupError:
        return UTF_8


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace each character that has no code by one of ASCII that looks like it, or by ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_NEAREST)
    return "".join(char if char.isascii() else "?" for char in text), error.end


codecs.register_error(_ERRORS, _nearest)
