"""The result files of a fleet: documents from files, folders, globs or stdin, read and checked.

One document is in memory at a time.
"""

from __future__ import annotations

import gc
import glob
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from vmtool import __version__
from vmtool.errors import InputError, UsageError
from vmtool.fleet.machine_readings import MachineReading, read_document
from vmtool.input_files import open_text
from vmtool.json_documents import MAX_BYTES, DocumentError, decode, parse_quickly
from vmtool.machine.facts import MachineFacts, SystemFacts
from vmtool.results.document_versions import DOCUMENTS, from_version_1
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
#: Commands whose documents are about a machine.
KINDS: Final = (
    *("stress", "check", "granularity", "doctor", "limits"),
    *("grow", "inspect", "matrix", "guards", "reserve"),
)
_AMOUNTS: Final = ("_ns", "_per_s", "_bytes", "cycles", "samples")
_TOO_LARGE: Final = 1 << 64
#: No rate is nearer to 0.
_TOO_SMALL: Final = 2.0**-64
#: Numbers with other names are not larger, so that a floating-point number can hold their squares.
_FAR_TOO_LARGE: Final = 1 << 128


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


class WrongVersionError(ValueError):
    """A document of a version that this vmtool does not read."""


@dataclass(frozen=True, slots=True)
class _DocumentHead:
    version: int
    vmtool: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _OldFacts:
    """What has not changed in the facts since version 1."""

    system: SystemFacts


@cache
def _types() -> dict[str, tuple[int, type]]:
    """Return the version and the type of each document that describes a machine."""
    return {
        document.name: (document.version, document.load())
        for document in DOCUMENTS
        if document.name.removeprefix("vmtool.") in KINDS
    }


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return *document*, a JSON object, with the present keys.

    Raises:
        WrongVersionError: If this vmtool does not read its version.
        ValueError: If it is not a document of vmtool about a machine, or does not fit its type; the
            message names the field.
    """
    kind = document.get("schema")
    if not isinstance(kind, str) or kind not in {known.name for known in DOCUMENTS}:
        raise ValueError("is not a result of vmtool")
    if kind not in _types():
        raise ValueError(f"is a {kind}, which does not describe a machine")
    head = decode(_DocumentHead, document)
    known, type_ = _types()[kind]
    old = kind == "vmtool.stress" and head.version == 1
    if head.version != known and not old:
        raise WrongVersionError(
            f"version: {head.version} of {kind}; vmtool {__version__} reads {known}"
        )
    if old:
        document = from_version_1(document)
    decode(type_, document)
    try:
        decode(_OldFacts if old else MachineFacts, document.get("machine"))
    except DocumentError as error:
        raise DocumentError(f"machine.{error.field}".rstrip("."), error.problem) from None
    if (found := _impossible(document)) is not None:
        raise DocumentError(*found)
    return document


def _impossible(value: dict[str, Any]) -> tuple[str, str] | None:
    """Return where a number in *value* is one that cannot be, and what it must be."""
    for key, item in value.items():
        kind = type(item)
        if kind is dict:
            if (found := _impossible(item)) is not None:
                return f"{key}.{found[0]}", found[1]
        elif kind is list:
            for at, each in enumerate(item if item and type(item[0]) is dict else ()):
                if (found := _impossible(each)) is not None:
                    return f"{key}[{at}].{found[0]}", found[1]
        elif (kind is int or kind is float) and not (_TOO_SMALL <= item < _TOO_LARGE or item == 0):
            # What a limit leaves is negative where it is exceeded.
            if key.endswith(_AMOUNTS) and "headroom" not in key:
                return key, "must be 0, or at least 2^-64 and less than 2^64"
            if abs(item) >= _FAR_TOO_LARGE:
                return key, "must be between -2^128 and 2^128"
    return None
