"""The metadata of a GGUF file, read with bounded memory and time; tensors are never touched.

The format is described in ggml's docs/gguf.md: a header, then key, type and value of each entry,
all little-endian.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO, NoReturn

from vmtool.errors import InputError
from vmtool.kv.sources.model_files import open_regular

#: The largest tokenizers make about 20 MiB of metadata.
MAX_METADATA_BYTES = 128 << 20
#: Real files have a few dozen entries.
MAX_ENTRIES = 4096
MAX_KEY_BYTES = 4096
#: Strings walked over in all lists together; the largest tokenizers have under a million.
MAX_STRINGS = 2 << 20
#: Lists and strings longer than this are walked over and not kept.
MAX_KEPT = 4096
_MAX_DEPTH = 4

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


def read_metadata(path: str) -> dict[str, Any]:
    """Return the entries of *path* by key, leaving out strings and lists too long to matter.

    Raises:
        InputError: If it cannot be read, is not GGUF 2 or 3, is truncated, or claims counts or
            lengths that no real file has.
    """
    with open_regular(path) as file:
        return _MetadataReader(path, file).entries()


class _MetadataReader:
    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0
        self._strings = 0
        self._field = "header"

    def entries(self) -> dict[str, Any]:
        if self._read(4) != b"GGUF":
            self._fail("does not start with GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big-endian" if swapped in (2, 3) else f"version {version}"
            self._fail(f"is {kind}; versions 2 and 3, little-endian, are understood")
        self._number("<Q")  # tensors, which are not read
        count = self._number("<Q")
        if count > MAX_ENTRIES:
            self._fail(f"claims {count} entries; no real file has more than {MAX_ENTRIES}")
        result: dict[str, Any] = {}
        for i in range(count):
            self._field = f"entry {i}"
            key = self._key()
            self._field = key
            if key in result:
                self._fail("is given twice")
            result[key] = self._value(self._number("<I"), 0)
        return result

    def _key(self) -> str:
        length = self._number("<Q")
        if not 0 < length <= MAX_KEY_BYTES:
            self._fail(f"has a key of {length} bytes; it must have 1 to {MAX_KEY_BYTES}")
        try:
            key = self._read(length).decode("utf-8")
        except UnicodeDecodeError:
            self._fail("has a key that is not UTF-8")
        return key if key.isprintable() else self._fail(f"has an unprintable key {key[:40]!r}")

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._list(depth)
        code = _SCALARS.get(kind)
        if code is None:
            self._fail(f"has the unknown value type {kind}")
        return self._number(code)

    def _string(self) -> str | None:
        """Return a string, or ``None`` if it is too long to matter."""
        length = self._number("<Q")
        if length > MAX_KEPT:
            self._skip(length)
            return None
        try:
            return self._read(length).decode("utf-8")
        except UnicodeDecodeError:
            self._fail("is a string that is not UTF-8")

    def _list(self, depth: int) -> list[Any] | None:
        """Return a list of numbers, or ``None`` for strings, nested lists and long lists."""
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            self._skip_strings(count)
            return None
        if kind == _ARRAY:
            if depth == _MAX_DEPTH:
                self._fail("is nested too deeply")
            self._strings += count
            self._check_strings()
            for _ in range(count):
                self._list(depth + 1)
            return None
        code = _SCALARS.get(kind)
        if code is None:
            self._fail(f"is a list of the unknown value type {kind}")
        width = struct.calcsize(code)
        if count > MAX_KEPT:
            self._skip(count * width)
            return None
        data = self._read(count * width)
        return [value for (value,) in struct.iter_unpack(code, data)]

    def _skip_strings(self, count: int) -> None:
        self._strings += count
        self._check_strings()
        for _ in range(count):
            self._skip(self._number("<Q"))

    def _check_strings(self) -> None:
        if self._strings > MAX_STRINGS:
            self._fail(f"has {self._strings} list entries; no tokenizer has {MAX_STRINGS}")

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._read(struct.calcsize(code)))[0]

    def _read(self, length: int) -> bytes:
        self._advance(length)
        try:
            data = self._file.read(length)
        except OSError as exc:
            self._fail(f"cannot be read: {exc.strerror or exc}")
        if len(data) != length:  # it shrank since it was opened
            self._fail("is truncated")
        return data

    def _skip(self, length: int) -> None:
        self._advance(length)
        if length <= 64:  # reading on is cheaper than a seek, which drops the buffer
            self._file.read(length)
        else:
            self._file.seek(length, os.SEEK_CUR)

    def _advance(self, length: int) -> None:
        if length > self._size - self._at:
            self._fail(f"is truncated: {length} bytes wanted at {self._at} of {self._size}")
        self._at += length
        if self._at > MAX_METADATA_BYTES:
            self._fail(f"has over {MAX_METADATA_BYTES} bytes of metadata, which no real file has")

    def _fail(self, message: str) -> NoReturn:
        raise InputError(self._path, message, field=self._field)
