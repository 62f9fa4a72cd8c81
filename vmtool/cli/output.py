"""What a command writes: its result, notices, and files, which are checked before the work."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import StringIO
from typing import IO, TYPE_CHECKING, Any, Final

import click

from vmtool.cli.app import ARGUMENTS, MARKDOWN
from vmtool.cli.interrupt import INTERRUPTED
from vmtool.cli.streams import UTF_8, drop_unwritten, reader_is_gone, result_encoding, tell
from vmtool.errors import UsageError, VmtoolError, printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


#: As wide as a code block is on the sites where people report bugs.
_MARKDOWN_WIDTH: Final = 100
#: Where a run keeps, in click's ``meta``, the option that writes a file, by the file's real path.
_RESULTS: Final = "vmtool.results"
#: What is wrong with a name, and not with what the platform has or allows.
_WRONG_NAMES: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_BLOCK: Final = bytes(4096)


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

        _write_result(self.path, print_text)

    def write(self, text: str) -> None:
        """Write *text* in place of a report."""
        _write_result(self.path, lambda file: file.write(text))

    def save(self, path: str | None, make: Callable[[], str], *, whole: bool = False) -> None:
        """Write a file beside the result, if requested.

        Args:
            path: The file.
            make: Returns its content.
            whole: Whether others may read it at any time, so that it is replaced as a whole.
        """
        if path is not None:
            text = make()
            _write_result(path, lambda file: file.write(text), whole=text if whole else None)

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


def _write_result(
    path: str, write: Callable[[IO[str]], object], *, whole: str | None = None
) -> None:
    """Write a file or stdout. If that fails, say so; the command goes on, and its exit code is 1.

    Args:
        path: The file, or ``-``.
        write: Writes to it.
        whole: What *write* writes, where it should replace the file as a whole.
    """
    encoding, errors = result_encoding() if path == "-" else UTF_8
    context = click.get_current_context(silent=True)
    interrupted = context is not None and context.meta.get(INTERRUPTED)
    try:
        if whole is not None and path != "-" and replace_whole(path, whole):
            return
        with (
            _without_waiting(path) if interrupted else nullcontext(),
            click.open_file(path, "w", encoding=encoding, errors=errors) as file,
        ):
            write(file)
            file.flush()  # a command that goes on, such as one that holds, must reach its reader
    except OSError as error:
        if path == "-" and reader_is_gone(error):
            drop_unwritten()
            return
        click.get_current_context().ensure_object(list).append(path)
        where = "stdout" if path == "-" else path
        tell(f"vmtool: error: cannot write {where}: {error.strerror or error}")
        if error.errno == errno.ENXIO:
            return
        cause, hint = _explain_full(error, path)
        if path != "-" and error.errno in {errno.ENOENT, errno.ENOTDIR}:
            hint = "its folder no longer exists: create it, and run again"
        if cause is not None:
            tell(f"  cause: {cause}")
        tell(f"  hint: {hint}")


@contextmanager
def _without_waiting(path: str) -> Iterator[None]:
    """Hold a pipe open in the block, so that opening it once more does not wait for a reader.

    Raises:
        OSError: If it has none.
    """
    from pathlib import Path

    if sys.platform == "win32" or path == "-" or not Path(path).is_fifo():
        yield
        return
    else:
        try:
            held = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise OSError(errno.ENXIO, "nothing reads this pipe") from error
            raise
        try:
            yield
        finally:
            os.close(held)


def replace_whole(path: str, text: str) -> bool:
    """Replace the content of a file as a whole, so that nobody reads half of it.

    Returns:
        Whether that is done: not for a pipe or a device, nor where a new file may not take its
        place.

    Raises:
        OSError: If it cannot be written; the file is as it was.
    """
    import tempfile
    from pathlib import Path

    file = Path(os.path.realpath(path))  # a link stays
    if file.exists() and not file.is_file():
        return False
    if file.exists():
        mode = file.stat().st_mode & 0o777
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    try:
        number, name = tempfile.mkstemp(prefix=".vmtool-", dir=file.parent)
    except PermissionError:
        return False
    fresh = Path(name)
    try:
        encoding, errors = UTF_8
        with open(number, "w", encoding=encoding, errors=errors, newline="\n") as whole:
            whole.write(text)
        fresh.chmod(mode)  # others could not read it otherwise
        fresh.replace(file)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, PermissionError):  # Windows: somebody reads it now
            return False
        raise
    return True


def claim(path: str) -> str | None:
    """Make sure that *path* can be written, before work that would be lost otherwise.

    What is in the file stays, and one that is not there is not left behind.

    Returns:
        The file's real path, or ``None`` if it is a pipe or a device, which take whatever comes.

    Raises:
        UsageError: If it can name no file, such as one in a folder that does not exist.
        VmtoolError: If the platform refuses to write it.
    """
    from pathlib import Path

    try:
        file = Path(path)
        if not file.exists():
            file = Path(os.path.realpath(path))  # a link to what is not there stays
            if file.is_symlink():
                file.stat()  # a loop of links: the system says so
            new = file.open("xb", buffering=0)
            try:
                with new:
                    new.write(_BLOCK)  # a full disk takes a name, and no contents
            finally:
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
        if isinstance(error, OSError) and code in _FULL:
            cause, hint = _explain_full(error, path)
            raise VmtoolError(message, cause=cause, hint=hint) from error
        if code not in _WRONG_NAMES:
            raise VmtoolError(
                message, hint="write to another path, or make this one writable"
            ) from error
        hint = "create its folder first" if code == errno.ENOENT else "give another file"
        raise UsageError(message, hint=hint) from error
    return os.path.realpath(path)


def note_result(real: str, param: click.Parameter, ctx: click.Context) -> None:
    """Remember a file that will be written; refuse one that another option of the run writes."""
    option = param.opts[0]
    other = ctx.meta.setdefault(_RESULTS, {}).setdefault(real, option)
    if other != option:
        raise UsageError(
            f"{other} and {option} would write the same file, {real}",
            hint="give each a file of its own",
        )


def keep_inputs(*paths: str | None) -> None:
    """Refuse to write a result over one of *paths*, files that the command reads.

    Raises:
        UsageError: If a result's option names one of them.
    """
    results = click.get_current_context().meta.get(_RESULTS)
    if not results:
        return
    from pathlib import Path

    for path in filter(None, paths):
        option = results.get(os.path.realpath(path))
        if option is not None and Path(path).exists():
            raise UsageError(
                f"{option} would overwrite {path}, which is an input", hint="give another file"
            )


def _explain_full(error: OSError, path: str) -> tuple[str | None, str]:
    """Return why a disk takes no more, if it is not full, and what to do."""
    option = "use -o FILE" if path == "-" else "give a file"
    cause, hint = None, f"{option} on another disk, and run again"
    if error.errno == errno.EFBIG:
        from vmtool.memory.rlimits_and_privileges import how_to_raise, read_resource_limit
        from vmtool.units import format_size

        limit = read_resource_limit("RLIMIT_FSIZE")
        if limit is not None and limit.soft is not None:
            cause = f"RLIMIT_FSIZE is {format_size(limit.soft)}"
            hint = how_to_raise("RLIMIT_FSIZE", limit=limit)
    return cause, hint
