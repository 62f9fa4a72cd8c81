"""The declared inputs of an ONNX graph, found without reading the weights around them.

An ONNX file is a protocol buffer: field 7 of the model is the graph, and field 11 of the graph an
input. Everything else is stepped over, so that a model with gigabytes of weights inside costs no
more than one without.
"""

from __future__ import annotations

import io
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    ModelGeometry,
    Provenance,
    Source,
    StatePart,
    StateTensor,
    Tensor,
    TensorRole,
)
from vmtool.kv.sources.fields import (
    FLAGS,
    MAX_LAYERS,
    MAX_SIZE,
    shown,
)
from vmtool.kv.sources.model_files import name_of, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
        reader = _ProtobufReader(path, file, os.fstat(file.fileno()).st_size)
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


class _ProtobufReader:
    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._fields = 0
        self._at = 0
        self.size = size

    def values(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and encoded value of each varint and length-delimited field."""
        while self._at < self.size:
            key = self._varint()
            kind, start = key & 7, self._at
            if kind == _VARINT:
                self._varint()
                self._file.seek(start)
                yield key >> 3, self._file.read(self._at - start)
            elif kind == _BYTES:
                length = self._varint()
                if length > self.size - self._at:
                    self.fail(f"is truncated: {length} bytes wanted at {self._at} of {self.size}")
                self._at += length
                yield key >> 3, self._file.read(length)
            elif kind in (_FIXED32, _FIXED64):
                self.skip_to(self._at + (4 if kind == _FIXED32 else 8))
            else:
                self.fail(f"is not an ONNX model: wire type {kind} at {self._at}")

    def messages(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield number and end of each length-delimited field before *end*; step over others.

        The caller must have consumed a field before it reads the next.
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
            self.fail("is not an ONNX model: a field ends after the message that it belongs to")

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


#: onnx.TensorProto's element types: floats that a model computes with, and those of K and V alone.
_DTYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
_CACHE_DTYPES = {**_DTYPES, 2: "uint8", 3: "uint8", 17: "fp8"}
#: ``past_key_values.3.key`` (optimum, GenAI), ``past_key_self_3`` (whisper exports), and the states of
#: GenAI's builders: ``past_conv.3`` (LFM2), ``past_key_values.3.conv_state`` (Qwen3.5).
_PAST = re.compile(
    r"past_(?:key_values\.(?P<a>\d{1,5})\.(?:decoder\.)?(?P<what>key|value|conv_state|recurrent_state)"
    r"|(?P<self>key|value)_(?:self_)?(?P<b>\d{1,5})|(?P<conv>conv)\.(?P<c>\d{1,5}))"
)
_ROLES = {"key": TensorRole.KEY, "value": TensorRole.VALUE}
#: Dimensions of each input: batch, heads, tokens, width of K and V; batch, channels, columns of a
#: convolution; batch, heads and a matrix of a recurrent state.
_RANKS = {"key": 4, "value": 4, "conv": 3, "recurrent": 4}
#: Fields of ValueInfoProto, TypeProto, its Tensor, TensorShapeProto and its Dimension.
_NAME, _TYPE, _TENSOR, _ELEMENT, _SHAPE, _DIM, _VALUE = 1, 2, 1, 1, 2, 1, 1


@dataclass(frozen=True, slots=True)
class _Past:
    """One input with a cache: ``heads`` rows of ``size`` elements, for each token or in all."""

    name: str
    heads: int
    size: int
    dtype: str


def load(path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry that the inputs of the ONNX model *path* show.

    Raises:
        InputError: If the file is not ONNX, has no such inputs, or they do not agree.
        UsageError: If *overrides* is not empty: shapes are what they are.
    """
    for name in overrides:
        raise UsageError(f"{FLAGS[name]} does not apply to an ONNX model, whose shapes are fixed")
    return _geometry(path, _pasts(path, read_inputs(path)))


def _pasts(path: str, inputs: list[bytes]) -> dict[tuple[int, str], _Past]:
    """Return the past inputs by layer and by ``key``, ``value``, ``conv`` or ``recurrent``."""
    found: dict[tuple[int, str], _Past] = {}
    for data in inputs:
        parts = _parts(path, data)
        try:
            name = b"".join(parts.get(_NAME, [])[-1:]).decode()
        except UnicodeDecodeError:
            _fail(path, "graph.input", "has a name that is not UTF-8")
        match = _PAST.fullmatch(name)
        if match is None:
            if name.startswith("past_"):
                _fail(path, name, "is a cache that is not understood")
            continue
        layer = int(match["a"] or match["b"] or match["c"])
        what = (match["what"] or match["self"] or match["conv"]).removesuffix("_state")
        if layer >= MAX_LAYERS or (layer, what) in found:
            _fail(path, name, "is given twice, or its number is too large")
        found[layer, what] = _past(path, name, what, b"".join(parts.get(_TYPE, [])))
    return found


def _past(path: str, name: str, what: str, data: bytes) -> _Past:
    # Parts of a message that is given twice are those of both, which is what joining them does.
    tensor = _parts(path, b"".join(_parts(path, data).get(_TENSOR, [])))
    shape = _parts(path, b"".join(tensor.get(_SHAPE, [])))
    dims = [_number(_parts(path, dim), _VALUE) for dim in shape.get(_DIM, [])]
    rank = _RANKS[what]
    is_state = what not in _ROLES
    # The states after each of the last tokens come first (recurrent_state.cpp of GenAI 0.16).
    steps = dims.pop(0) if is_state and len(dims) == rank + 1 else 1
    if len(dims) != rank:
        _fail(path, name, f"has {len(dims)} dimensions; {rank} are understood")
    sizes = [steps, *dims[1:]] if is_state else [dims[1], dims[3]]
    if not all(0 < size <= MAX_SIZE for size in sizes):
        _fail(path, name, "does not state its heads and head width as numbers")
    heads, size = (sizes[1], steps * math.prod(sizes[2:])) if is_state else sizes
    element = _number(tensor, _ELEMENT)
    dtype = (_DTYPES if is_state else _CACHE_DTYPES).get(element)
    if dtype is None:
        _fail(path, name, f"has the element type {element}, not understood")
    return _Past(name, heads, size, dtype)


def _parts(path: str, data: bytes) -> dict[int, list[bytes]]:
    """Return the encoded values of each field of a message in memory."""
    file = io.BytesIO(data)
    reader = _ProtobufReader(path, file, len(data))
    found: dict[int, list[bytes]] = {}
    for number, value in reader.values():
        found.setdefault(number, []).append(value)
    return found


def _number(parts: dict[int, list[bytes]], field: int) -> int:
    """Return the last number in *field*, or 0."""
    encoded = parts.get(field, [b"\0"])[-1]
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded))


def _geometry(path: str, pasts: dict[tuple[int, str], _Past]) -> ModelGeometry:
    if not any(what in _ROLES for _, what in pasts):
        _fail(path, "graph.input", "has no past_key_values inputs, so no cache is described")
    dtypes = {past.dtype for (_, what), past in pasts.items() if what in _ROLES}
    if len(dtypes) != 1:
        _fail(path, "graph.input", f"mixes the element types {', '.join(sorted(dtypes))}")
    count = max(layer for layer, _ in pasts) + 1
    layers = tuple(_layer(path, i, pasts) for i in range(count))
    facts = {
        f"layer {i} {what}": Provenance(f"{past.heads} x {past.size}", Source.FILE, path, past.name)
        for (i, what), past in sorted(pasts.items())
    }
    facts["layers"] = Provenance(count, Source.DERIVED, path, "the highest number of a past input")
    stored = dtypes.pop()
    floats = stored in _DTYPES.values()
    return ModelGeometry(
        name_of(path),
        "onnx",
        layers,
        dtype=stored if floats else None,
        cache_dtype=None if stored in ("fp16", "bf16") else stored,
        provenance=facts,
    )


def _layer(path: str, index: int, pasts: dict[tuple[int, str], _Past]) -> Layer:
    """Return layer *index*; one without any input keeps nothing, as those that share their K and V."""
    found = {what: pasts[index, what] for what in _RANKS if (index, what) in pasts}
    if ("key" in found) != ("value" in found):
        _fail(path, "graph.input", f"has only one of past key and value for layer {index}")
    tensors = tuple(
        Tensor(role.value, role, found[what].heads, found[what].size, Extent())
        for what, role in _ROLES.items()
        if what in found
    )
    states = tuple(
        StateTensor(what, (StatePart(past.heads, past.size),), past.dtype)
        for what, past in found.items()
        if what not in _ROLES
    )
    kind = LayerKind.FULL if tensors else LayerKind.NONE
    if states:
        kind = LayerKind.LINEAR if "recurrent" in found else LayerKind.SHORT_CONV
    return Layer(index, LayerKind.PARALLEL if tensors and states else kind, tensors, states)


def _fail(path: str, field: str, message: str) -> NoReturn:
    raise InputError(path, message, field=shown(field))
