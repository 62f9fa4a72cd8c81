"""Where a command's result goes: text or one JSON document, to stdout or a file."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import IO, TYPE_CHECKING, Any

import click

from vmtool.cli import ARGUMENTS
from vmtool.cli.stderr import tell
from vmtool.errors import UsageError
from vmtool.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console


def command_line() -> list[str]:
    """Return the command line of the running command, as results record it."""
    return ["vmtool", *click.get_current_context().meta[ARGUMENTS]]


@contextmanager
def opened(path: str, encoding: tuple[str, str]) -> Iterator[IO[str]]:
    """Open *path* for a result; ``-`` is stdout.

    Args:
        path: The file.
        encoding: Its encoding, and what happens to characters that it does not have.

    Raises:
        UsageError: If it cannot be written.
    """
    if path == "-" and sys.stdout is None:
        raise UsageError("cannot write stdout: it is closed", hint="use -o FILE")
    name, errors = encoding
    try:
        with click.open_file(path, "w", encoding=name, errors=errors) as file:
            yield file
            file.flush()  # a command that goes on, such as one that holds, must be heard
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "stdout" if path == "-" else path
        raise UsageError(f"cannot write {where}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Output:
    """What ``--json``, ``-o`` and ``-q`` asked for.

    Attributes:
        as_json: Print one JSON document instead of text.
        path: A file for the result; ``None`` or ``-`` is stdout.
        quiet: No notices on stderr.
    """

    as_json: bool = False
    path: str | None = None
    quiet: bool = False

    def emit(
        self,
        document: Callable[[], dict[str, Any]],
        text: Callable[[Console], None],
    ) -> None:
        """Write the result; only the form that was asked for is made.

        Raises:
            UsageError: If the file cannot be written.
        """

        def rich_text(file: IO[str]) -> None:
            from vmtool.report.console import result_console

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

        Raises:
            UsageError: If the file cannot be written.
        """

        def plain_text(file: IO[str]) -> None:
            from vmtool.report.columns import text_width

            file.writelines(f"{printable(line)}\n" for line in lines(text_width(file)))

        self._write(document, plain_text)

    def _write(
        self, document: Callable[[], dict[str, Any]], text: Callable[[IO[str]], None]
    ) -> None:
        from vmtool.report.codepage import UTF_8, result_encoding

        path = "-" if self.path is None else self.path
        with opened(path, UTF_8 if self.as_json or path != "-" else result_encoding()) as file:
            if self.as_json:
                from vmtool.report.document import dump

                dump(document(), file)
            else:
                text(file)

    def announce(self, backing: str) -> None:
        """Say that a device is being opened, which may take seconds; the host needs no words."""
        if backing == "cuda" or backing.startswith("cuda:"):
            device = backing.partition(":")[2] or os.environ.get("VMTOOL_DEVICE") or 0
            self.notice(f"opening CUDA device {device}...")

    def notice(self, message: str) -> None:
        """Tell the user something that is not the result."""
        if not self.quiet:
            tell(f"vmtool: {message}")
