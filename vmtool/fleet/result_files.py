"""Documents in files, folders, globs, JSON lines, gzip and stdin, with one in memory at a time."""

from __future__ import annotations

import gc
import glob
import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from vmtool.errors import InputError, UsageError
from vmtool.fleet.machine_readings import MachineReading, WrongVersionError, checked, read_document
from vmtool.input_files import open_text
from vmtool.json_documents import MAX_BYTES, parse_quickly
from vmtool.results.fleet import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader

_ENDINGS: Final = tuple(
    f".{kind}{more}" for more in ("", ".gz") for kind in ("json", "jsonl", "ndjson")
)
_CHUNK: Final = 1 << 20
#: Documents of one file that are listed because they are no results; of more, only their number is.
MOST_PROBLEMS: Final = 1000
#: Where one document ends and another begins: within one, a comma or an end follows an object, and
#: none begins at the beginning of a line, as long as it is indented or in one line.
_BETWEEN: Final = re.compile(rb"\}\s*(?=[^\s,\]}])|\n(?=\{)")


def list_files(names: Iterable[str]) -> list[str]:
    """Return the files that *names* mean: files, folders with results, globs, ``-``.

    Raises:
        UsageError: If one of them means none.
    """
    found: dict[str, None] = {}
    for name in names:
        path = Path(name)
        if name == "-" or path.is_file() or (path.exists() and not path.is_dir()):
            matches = [name]
        elif path.is_dir():
            # Not pipes: nothing may ever write to them.
            matches = sorted(
                str(file)
                for file in path.rglob("*")
                if file.name.endswith(_ENDINGS) and file.is_file()
            )
        else:
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - a pattern as given
        if not matches:
            raise UsageError(f"{name}: no results there", hint="give files, folders or globs")
        found.update(dict.fromkeys(matches))
    return list(found)


def read_files(paths: Iterable[str]) -> Iterator[MachineReading | Problem]:
    """Yield what each document in *paths* says, or what is wrong with it.

    A document that names no machine is of the one that its file is named after, or its path where
    several folders have files of that name.
    """
    paths = list(paths)
    same = Counter(_without_ending(Path(path).name) for path in paths)
    for path in paths:
        name = _without_ending(Path(path).name)
        if same[name] > 1:
            name = _without_ending(Path(path).as_posix())
        try:
            yield from _read_file(path, name)
        except InputError as error:
            source = "standard input" if path == "-" else path
            yield Problem(source, "unreadable", _without_path(error))


def _without_ending(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def _without_path(error: InputError) -> str:
    name = "standard input" if error.path == "-" else error.path
    return str(error).removeprefix(f"{name}: ")


def _read_file(path: str, name: str) -> Iterator[MachineReading | Problem]:
    source = "standard input" if path == "-" else path
    with open_text(path) as opened:
        file = _Readable(opened)
        held = None
        for found in _read_documents(file, name, source):
            if held is not None:
                yield held
            held = found if isinstance(found, Problem) else None
            if isinstance(found, MachineReading):
                yield found
        if file.error is not None:
            # What was read last is broken for the same reason.
            held = Problem(source, "unreadable", f"cannot be read: {file.error}")
        if held is not None:
            yield held


def _read_documents(file: _Readable, name: str, source: str) -> Iterator[MachineReading | Problem]:
    content = file.read(MAX_BYTES + 1)
    if not content.strip():
        yield Problem(source, "unreadable", "is empty")
        return
    whole = _read(content, name, source)
    if isinstance(whole, MachineReading):
        yield whole
        return
    documents = _documents(file, content)
    del content
    first, second = next(documents, None), next(documents, None)
    if first is None or second is None:
        yield whole
        return
    problems = 0
    for line, document in chain((first, second), documents):
        found = _read(document, f"{name}:{line}", f"{source}:{line}")
        problems += isinstance(found, Problem)
        if isinstance(found, MachineReading) or problems <= MOST_PROBLEMS:
            yield found
    if problems > MOST_PROBLEMS:
        left = problems - MOST_PROBLEMS
        yield Problem(source, "unreadable", f"{left:,} more documents in it are not results")


class _Readable:
    """What can be read of a file, also of one whose end is missing.

    Attributes:
        error: Why no more could be read, if that is not the end.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = cast("BufferedReader", file)
        self.error: str | None = None

    def read(self, size: int) -> bytes:
        """Return *size* bytes, or all that there are."""
        pieces = []
        while size and self.error is None:
            try:
                # read() would lose what it has when it fails.
                piece = self._file.read1(min(size, _CHUNK))
            except OSError as error:
                self.error = str(error.strerror or error)
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _documents(file: _Readable, rest: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each document of *file*, of which *rest* was read, and the line where it begins.

    Documents are lines, or indented, or follow each other without anything between them. At most
    three times :data:`MAX_BYTES` are in memory; of a larger document its first part is yielded.
    """
    line = 1
    whole = True  # whether *rest* begins with the beginning of a document
    while True:
        start = 0
        for end in _ends(rest):
            if whole:
                yield from _without_blank(line, rest[start:end])
            line += rest.count(b"\n", start, end)
            start, whole = end, True
        rest = rest[start:]
        if len(rest) > MAX_BYTES:
            if whole:
                yield line, rest
            line += rest.count(b"\n")
            rest, whole = b"", False
        more = file.read(max(_CHUNK, len(rest)))
        if not more:
            break
        rest += more
    if whole:
        yield from _without_blank(line, rest)


def _without_blank(line: int, text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield *text*, which begins in *line*, from its first character; nothing if it is blank."""
    document = text.lstrip()
    if document:
        yield line + text.count(b"\n", 0, len(text) - len(document)), document


def _ends(content: bytes) -> Iterator[int]:
    """Yield where documents end in *content*; the last one may go on."""
    quoted, start = False, 0
    for match in _BETWEEN.finditer(content):
        end = match.end()
        if b"\n" not in match[0]:
            # Without a line break, which no string holds, this may be within a string.
            piece = content[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
            quoted ^= bool(piece.count(b'"') % 2)
            start = end
            if quoted:
                continue
        yield end
        quoted, start = False, end


def _read(content: bytes, host: str, source: str) -> MachineReading | Problem:
    if len(content) > MAX_BYTES:
        return Problem(source, "unreadable", f"is larger than {MAX_BYTES >> 20} MiB")
    # Documents are trees of many lists, which the collector would visit again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        reading = read_document(checked(parse_quickly(source, content)), host, source)
        return replace(reading, digest=hash(content.translate(None, b" \t\r\n")))
    except InputError as error:
        return Problem(source, "unreadable", _without_path(error))
    except WrongVersionError as error:
        return Problem(source, "version", str(error))
    except ValueError as error:
        return Problem(source, "other", str(error))
    finally:
        if collecting:
            gc.enable()
