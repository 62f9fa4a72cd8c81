"""The declared inputs of an ONNX graph, found without reading the weights around them.

An ONNX file is a protocol buffer: field 7 of the model is the graph, and field 11 of the graph an
input. Everything else is stepped over, so that a model with gigabytes of weights inside costs no
more than one without.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from vmtool.errors import InputError
from vmtool.kv.sources.reading import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_GRAPH, _INPUT = 7, 11
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: A decoder has a few inputs a layer, of some hundred bytes each.
_MAX_INPUTS = 1 << 15
_MAX_INPUT_BYTES = 1 << 14
#: Large graphs have some ten thousand nodes and weights.
_MAX_FIELDS = 1 << 21


def read_inputs(path: str) -> list[bytes]:
    """Return each input of the graph in *path*, still encoded.

    Raises:
        InputError: If it cannot be read, or is not an ONNX model of credible make.
    """
    with open_regular(path) as file:
        reader = _Reader(path, file)
        found: list[bytes] = []
        for number, end in reader.messages(reader.size):
            if number != _GRAPH:
                reader.skip_to(end)
                continue
            for inner, inner_end in reader.messages(end):
                if inner == _INPUT:
                    found.append(reader.take(inner_end))
                    if len(found) > _MAX_INPUTS:
                        reader.fail(f"has over {_MAX_INPUTS} inputs")
                else:
                    reader.skip_to(inner_end)
        return found


class _Reader:
    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._fields = 0
        self._at = 0
        self.size = os.fstat(file.fileno()).st_size

    def messages(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield number and end of each length-delimited field before *end*; step over others.

        The caller must have consumed a field before it asks for the next.
        """
        while self._at < end:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                self.fail(f"has over {_MAX_FIELDS} parts")
            key = self._varint()
            kind = key & 7
            if kind == _VARINT:
                self._varint()
            elif kind in (_FIXED32, _FIXED64):
                self.skip_to(self._at + (4 if kind == _FIXED32 else 8))
            elif kind == _BYTES:
                length = self._varint()
                if length > end - self._at:
                    self.fail(f"is truncated: {length} bytes wanted at {self._at} of {end}")
                yield key >> 3, self._at + length
            else:
                self.fail(f"is not an ONNX model: wire type {kind} at {self._at}")
        if self._at != end:
            self.fail("is not an ONNX model: a part ends beyond its whole")

    def take(self, end: int) -> bytes:
        length = end - self._at
        if length > _MAX_INPUT_BYTES:
            self.fail(f"describes one input in {length} bytes")
        self._at = end
        return self._file.read(length)

    def skip_to(self, end: int) -> None:
        if end > self.size:
            self.fail("is truncated")
        self._file.seek(end)
        self._at = end

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            data = self._file.read(1)
            if not data:
                self.fail("is truncated")
            self._at += 1
            value |= (data[0] & 0x7F) << shift
            if data[0] < 0x80:
                return value
        return self.fail(f"is not an ONNX model: a number of over 64 bits at {self._at}")

    def fail(self, message: str) -> NoReturn:
        raise InputError(self._path, message)
