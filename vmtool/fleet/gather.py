"""Documents in files: folders, globs, JSON lines, gzip, stdin; one in memory at a time."""

from __future__ import annotations

import gc
import glob
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vmtool.errors import InputError, UsageError
from vmtool.fleet.measures import MachineReading, read_document
from vmtool.inputs import open_text
from vmtool.results.fleet import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The most bytes of one document.
_LARGEST: Final = 64 << 20
_ENDINGS: Final = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")
#: Where a document in a line of its own is looked for: the first lines may be cut off or empty.
_FIRST_LINES: Final = 8
_DECODER: Final = msgspec.json.Decoder()


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
            matches = sorted(str(file) for file in path.rglob("*") if file.name.endswith(_ENDINGS))
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
        # Documents are trees of many lists, which the collector would visit again and again.
        collecting = gc.isenabled()
        gc.disable()
        try:
            found = list(_read_file(path, name))
        except InputError as error:
            found = [Problem(path, "unreadable", str(error).removeprefix(f"{path}: "))]
        finally:
            if collecting:
                gc.enable()
        yield from found


def _without_ending(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def _read_file(path: str, name: str) -> Iterator[MachineReading | Problem]:
    with open_text(path) as file:
        try:
            content = file.read(_LARGEST + 1)
        except OSError as error:
            yield Problem(path, "unreadable", f"cannot be read: {error.strerror or error}")
            return
    if len(content) > _LARGEST:
        yield Problem(path, "unreadable", "is larger than 64 MiB")
        return
    try:
        document = _DECODER.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = f"is not JSON: {error}"
    else:
        yield _read(document, name, path)
        return
    lines = content.split(b"\n")
    if not any(map(_is_object, lines[:_FIRST_LINES])):  # no line of its own is a document
        yield Problem(path, "unreadable", problem)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            source = f"{path}:{number}"
            try:
                yield _read(_DECODER.decode(line), f"{name}:{number}", source)
            except (msgspec.DecodeError, RecursionError) as error:
                yield Problem(source, "unreadable", f"is not JSON: {error}")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(_DECODER.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _read(document: Any, host: str, source: str) -> MachineReading | Problem:
    if not isinstance(document, dict):
        return Problem(source, "other", "is not a JSON object")
    try:
        return read_document(document, host, source)
    except ValueError as error:
        return Problem(source, "other", str(error))
