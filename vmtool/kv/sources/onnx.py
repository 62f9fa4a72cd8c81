"""The declared inputs of an ONNX graph, found without reading the weights around them.

An ONNX file is a protocol buffer: field 7 of the model is the graph, and field 11 of the graph an
input. Everything else is stepped over, so that a model with gigabytes of weights inside costs no
more than one without.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from vmtool.errors import InputError, UnavailableError, UsageError
from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    ModelGeometry,
    Provenance,
    Source,
    Tensor,
    TensorRole,
)
from vmtool.kv.sources.fields import (
    FLAGS,
    MAX_LAYERS,
    MAX_SIZE,
    shown,
)
from vmtool.kv.sources.reading import name_of, open_regular

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


#: onnx.TensorProto's element types.
_DTYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
#: ``past_key_values.3.key`` (optimum, GenAI) and ``past_key_self_3`` (whisper exports).
_INPUT_onnx_model = re.compile(
    r"past_(?:key_values\.(?P<a>\d{1,5})\.(?:decoder\.)?(?P<what>key|value)"
    r"|(?P<self>key|value)_(?:self_)?(?P<b>\d{1,5}))"
)
_RANK = 4  # batch, heads, tokens, head width


@dataclass(frozen=True, slots=True)
class _Past:
    name: str
    heads: int
    dim: int
    dtype: str


def load(path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry that the inputs of the ONNX model *path* show.

    Raises:
        InputError: If the file is not ONNX, has no such inputs, or they do not agree.
        UnavailableError: If the ``onnx`` package is not installed.
        UsageError: If *overrides* is not empty: shapes are what they are.
    """
    try:
        import onnx  # noqa: PLC0415
    except ImportError as exc:
        raise UnavailableError(
            "reading an ONNX model needs the onnx package, which is not installed",
            hint="pip install 'vmtool[onnx]', or give the model's config.json",
        ) from exc
    for name in overrides:
        raise UsageError(f"{FLAGS[name]} does not apply to an ONNX model, whose shapes are fixed")
    encoded = read_inputs(path)
    try:
        inputs = [onnx.ValueInfoProto.FromString(data) for data in encoded]
    except Exception as exc:  # protobuf's own error class depends on its implementation
        raise InputError(path, f"is not an ONNX model: {exc}", field="graph.input") from exc
    return _geometry(path, _pasts(path, inputs))


def _pasts(path: str, inputs: list[Any]) -> dict[tuple[int, str], _Past]:
    """Return the past inputs by layer and by ``key`` or ``value``."""
    found: dict[tuple[int, str], _Past] = {}
    for value in inputs:
        if not isinstance(value.name, str):  # protobuf hands out bytes that are not UTF-8 as such
            _fail(path, "graph.input", "has a name that is not UTF-8")
        match = _INPUT_onnx_model.fullmatch(value.name)
        if match is None:
            if value.name.startswith("past_"):
                _fail(path, value.name, "is a cache that is not understood")
            continue
        layer = int(match["a"] or match["b"])
        what = match["what"] or match["self"]
        if layer >= MAX_LAYERS or (layer, what) in found:
            _fail(path, value.name, "is given twice, or its number is too large")
        found[layer, what] = _past(path, value)
    return found


def _past(path: str, value: Any) -> _Past:
    kind = value.type.tensor_type
    dims = list(kind.shape.dim)
    if len(dims) != _RANK:
        _fail(path, value.name, f"has {len(dims)} dimensions; 4 are understood")
    heads, dim = dims[1].dim_value, dims[3].dim_value
    if not (0 < heads <= MAX_SIZE and 0 < dim <= MAX_SIZE):
        _fail(path, value.name, "does not state its heads and head width as numbers")
    dtype = _DTYPES.get(kind.elem_type)
    if dtype is None:
        _fail(path, value.name, f"has the element type {kind.elem_type}, not understood")
    return _Past(value.name, heads, dim, dtype)


def _geometry(path: str, pasts: dict[tuple[int, str], _Past]) -> ModelGeometry:
    if not pasts:
        _fail(path, "graph.input", "has no past_key_values inputs, so no cache is described")
    count = max(layer for layer, _ in pasts) + 1
    if len(pasts) != 2 * count:
        _fail(path, "graph.input", f"has {len(pasts)} past inputs for {count} layers, not 2 each")
    dtypes = {past.dtype for past in pasts.values()}
    if len(dtypes) != 1:
        _fail(path, "graph.input", f"mixes the element types {', '.join(sorted(dtypes))}")
    layers, facts = [], {}
    for i in range(count):
        tensors = []
        for what, role in (("key", TensorRole.KEY), ("value", TensorRole.VALUE)):
            past = pasts.get((i, what))
            if past is None:
                _fail(path, "graph.input", f"has no past {what} for layer {i}")
            tensors.append(Tensor(role.value, role, past.heads, past.dim, Extent()))
            facts[f"layer {i} {what}"] = Provenance(
                f"{past.heads} x {past.dim}", Source.FILE, path, past.name
            )
        layers.append(Layer(i, LayerKind.FULL, tuple(tensors)))
    facts["layers"] = Provenance(count, Source.DERIVED, path, "number of past key inputs")
    return ModelGeometry(name_of(path), "onnx", tuple(layers), dtype=dtypes.pop(), provenance=facts)


def _fail(path: str, field: str, message: str) -> NoReturn:
    raise InputError(path, message, field=shown(field))
