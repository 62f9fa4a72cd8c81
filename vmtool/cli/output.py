"""What a command writes: its result as text, Markdown or JSON, files beside it, and notices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import StringIO
from typing import IO, TYPE_CHECKING, Any, Final

import click

from vmtool.cli.click_context import ARGUMENTS, MARKDOWN
from vmtool.cli.output_files import write_result
from vmtool.cli.streams import tell
from vmtool.errors import printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

#: As wide as a code block is on the sites where people report bugs.
_MARKDOWN_WIDTH: Final = 100


def command_line() -> list[str]:
    """Return the command line of the running command, as results record it."""
    return ["vmtool", *click.get_current_context().meta[ARGUMENTS]]


@dataclass(frozen=True, slots=True)
class Output:
    """The settings of ``--json``, ``-o`` and ``-q``.

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
        result: Any,
        to_text: Callable[[Console], None],
        to_markdown: Callable[[], str] | None = None,
    ) -> None:
        """Write the result, as JSON, as Markdown or as text.

        Args:
            result: Of a type that :data:`vmtool.results.document_versions.DOCUMENTS` lists.
            to_text: Prints the report.
            to_markdown: Makes the Markdown; without it, it is the text as it stands.
        """
        if self.as_json:
            # Made before the file is opened: what fails here leaves an earlier result alone.
            self.write(_document(result))
            return
        if self.path.lower().endswith(".json"):
            self.notice(f"{self.path} will contain text; use --json for a JSON document")
        from vmtool.report.console import result_console

        if click.get_current_context().meta.get(MARKDOWN):
            if to_markdown is not None:
                self.write(printable_lines(to_markdown()))
                return
            text = StringIO()
            to_text(result_console(text, width=_MARKDOWN_WIDTH))
            body = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
            command = printable(" ".join(command_line()))
            self.write(f"`{command}`\n\n```text\n{body}\n```\n")
            return

        def print_text(file: IO[str]) -> None:
            if file.isatty():
                to_text(result_console(file))
                return
            # Tables are padded to their width, which only a terminal has a use for.
            lines = StringIO()
            to_text(result_console(lines))
            file.writelines(f"{line.rstrip()}\n" for line in lines.getvalue().splitlines())

        write_result(self.path, print_text)

    def write(self, text: str) -> None:
        """Write *text* in place of a report."""
        write_result(self.path, lambda file: file.write(text))

    def save(self, path: str | None, make: Callable[[], str], *, whole: bool = False) -> None:
        """Write a file beside the result, if requested.

        Args:
            path: The file.
            make: Returns its content.
            whole: Whether others may read it at any time, so that it is replaced as a whole.
        """
        if path is not None:
            text = make()
            write_result(path, lambda file: file.write(text), whole=text if whole else None)

    @property
    def unwritten(self) -> bool:
        """Whether a result could not be written; the error was printed."""
        return bool(click.get_current_context().ensure_object(list))

    def announce(self, backing: str) -> None:
        """Say that a device is being opened, which may take seconds; the host needs no words."""
        name, colon, number = backing.partition(":")
        device = number if colon else os.environ.get("VMTOOL_DEVICE") or "0"
        # What is no number is refused later, and no device is opened.
        if name == "cuda" and device.isascii() and device.isdigit():
            self.notice(f"opening CUDA device {device}...")

    def notice(self, message: str, *lines: str) -> None:
        """Print a notice for the user, and more lines of it, on stderr."""
        if not self.quiet:
            tell(f"vmtool: {message}", *lines)


def _document(result: Any) -> str:
    from vmtool.json_documents import encode
    from vmtool.results.document_versions import document_of

    return encode(result, document_of(result).head(command_line()))
