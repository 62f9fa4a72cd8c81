"""Files that are written when the work is done: made sure of before it."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from vmtool.cli.app import ARGUMENTS
from vmtool.errors import UsageError, VmtoolError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

#: What is wrong with a name, and not with what the platform has or allows.
_WRONG_NAMES: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


def claim(path: str) -> str | None:
    """Make sure that *path* can be written, before work that would be lost otherwise.

    What is in the file stays, and one that is not there is not left behind.

    Returns:
        The file's real path, or ``None`` if it is a pipe or a device, which take whatever comes.

    Raises:
        UsageError: If it can name no file, such as one in a folder that does not exist.
        VmtoolError: If the platform refuses to write it.
    """
    try:
        file = Path(path)
        if not file.exists():
            file = Path(os.path.realpath(path))  # a link to what is not there stays
            file.open("xb").close()
            file.unlink()
        elif file.is_dir():  # Windows would say that it is denied
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif file.is_file():
            file.open("ab").close()
        else:  # a pipe or a device. A pipe's reader would take closing it for the end
            return None
    except (OSError, ValueError) as error:
        # A ValueError is a NUL in the path.
        code = getattr(error, "errno", errno.EINVAL)
        message = f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}"
        if code not in _WRONG_NAMES:
            raise VmtoolError(message, hint="write elsewhere, or make that possible") from error
        hint = "make its folder first" if code == errno.ENOENT else "give another file"
        raise UsageError(message, hint=hint) from error
    return os.path.realpath(path)


def save(path: str, text: str) -> None:
    """Write *text* to *path*, in place of what was there.

    Raises:
        OSError: If the file cannot be written.
    """
    # Half a character, as in the name of a file that is no text, has no code in UTF-8.
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def on_terminal(stream: IO[str] | None) -> bool:
    """Tell whether *stream* is shown to a person; ``None``, a closed one, is not."""
    return stream is not None and stream.isatty()


def drop_unwritten() -> None:
    """Drop what stdout and stderr hold and do not take.

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


def command_line() -> list[str]:
    """Return the command line of the running command, as results record it."""
    return ["vmtool", *click.get_current_context().meta[ARGUMENTS]]


@contextmanager
def opened(path: str, encoding: tuple[str, str]) -> Iterator[IO[str]]:
    """Open *path* for a result; ``-`` is stdout.

    Args:
        path: The file.
        encoding: Its encoding, and what happens to characters that it does not have.
    """
    name, errors = encoding
    with click.open_file(path, "w", encoding=name, errors=errors) as file:
        yield file
        file.flush()  # a command that goes on, such as one that holds, must be heard


def put(path: str, write: Callable[[str], None], suffix: str, *, or_stdout: bool = False) -> None:
    """Write what the work came to; if that fails, tell it and write it where it is not lost.

    The command goes on, so that all it has to say is said. Its exit code is then 1.

    Args:
        path: The file; ``-`` is stdout.
        write: Writes it to the file of that name.
        suffix: Of a file that it is put into instead.
        or_stdout: Whether it may be put on stdout instead.
    """
    try:
        write(path)
    except BrokenPipeError:  # whoever reads it has enough
        drop_unwritten()
    except OSError as error:
        click.get_current_context().ensure_object(list).append(path)
        where = "stdout" if path == "-" else path
        tell(f"vmtool: error: cannot write {where}: {error.strerror or error}")
        tell(f"  hint: {_put_elsewhere(write, suffix, or_stdout=or_stdout and path != '-')}")


def _put_elsewhere(write: Callable[[str], None], suffix: str, *, or_stdout: bool) -> str:
    """Write to stdout or else to a new file in the folder for such; return where it is."""
    if or_stdout and sys.stdout is not None:
        with suppress(OSError):
            write("-")
            return "the whole is on stdout instead"
    import tempfile

    try:
        number, place = tempfile.mkstemp(suffix, "vmtool-")
        os.close(number)
        try:
            write(place)
        except OSError:
            Path(place).unlink()
            raise
    except OSError as error:
        where = tempfile.tempdir or "a folder for such files"
        return f"it is lost, as {where} did not take it ({error.strerror or error}): run it again"
    return f"the whole is in {place} instead"


@dataclass(frozen=True, slots=True)
class Output:
    """What ``--json``, ``-o`` and ``-q`` asked for.

    Attributes:
        as_json: Print one JSON document instead of text.
        path: A file for the result; ``-`` is stdout.
        quiet: No notices on stderr.
    """

    as_json: bool = False
    path: str = "-"
    quiet: bool = False

    def emit(
        self,
        document: Callable[[], dict[str, Any]],
        text: Callable[[Console], None],
    ) -> None:
        """Write the result; only the form that was asked for is made."""

        def rich_text(file: IO[str]) -> None:
            from vmtool.report.table import result_console

            if file.isatty():
                text(result_console(file))
                return
            # Tables are padded to their width, which only a terminal has a use for.
            lines = StringIO()
            text(result_console(lines))
            file.writelines(f"{line.rstrip()}\n" for line in lines.getvalue().splitlines())

        self._write(document, rich_text)

    def emit_lines(
        self, document: Callable[[], dict[str, Any]], lines: Callable[[int], Iterable[str]]
    ) -> None:
        """Write the result as plain lines, without rich: it takes longer to load than to answer.

        Args:
            document: Makes the JSON document.
            lines: Makes the text for a width in columns.
        """

        def plain_text(file: IO[str]) -> None:
            from vmtool.report.table import text_width

            file.writelines(f"{printable(line)}\n" for line in lines(text_width(file)))

        self._write(document, plain_text)

    def _write(
        self, document: Callable[[], dict[str, Any]], text: Callable[[IO[str]], None]
    ) -> None:
        from vmtool.report.table import UTF_8, result_encoding

        # Made before the file is opened: what fails here leaves an earlier result alone.
        body = document() if self.as_json else {}

        def write(path: str) -> None:
            with opened(path, UTF_8 if self.as_json or path != "-" else result_encoding()) as file:
                if self.as_json:
                    from vmtool.report.document import dump

                    dump(body, file)
                else:
                    text(file)

        put(self.path, write, ".json" if self.as_json else ".txt", or_stdout=True)

    def save(self, path: str | None, make: Callable[[], str]) -> None:
        """Write a file beside the result, if it was asked for."""
        if path is None:
            return

        text = make()
        put(path, lambda place: save(place, text), Path(path).suffix)

    def announce(self, backing: str) -> None:
        """Say that a device is being opened, which may take seconds; the host needs no words."""
        name, colon, number = backing.partition(":")
        device = number if colon else os.environ.get("VMTOOL_DEVICE") or "0"
        # What is no number is refused later, and no device is opened.
        if name == "cuda" and device.isascii() and device.isdigit():
            self.notice(f"opening CUDA device {device}...")

    def notice(self, message: str) -> None:
        """Tell the user something that is not the result."""
        if not self.quiet:
            tell(f"vmtool: {message}")
