"""What llama.cpp would log for the same cache: its KV buffer lines.

Source: ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp`` and ``llama-memory-recurrent.cpp`` after
pull requests 16812 (the context is padded, not the cache) and 19067 (no V for latent attention).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.formats import FORMATS
from vmtool.kv.geometry import Extent, LayerKind, Span, TensorRole
from vmtool.units import MIB, align_up

if TYPE_CHECKING:
    from vmtool.kv.formats import Formats
    from vmtool.kv.geometry import Layer, ModelGeometry, Tensor

_PADDING: Final = 256
_STATE_ELEMENT_BYTES: Final = 4  # recurrent states are always f32
#: llama.cpp's own names of the formats that it has.
_TYPE_NAMES: Final = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    **{name: name for name in FORMATS if name.startswith(("q", "iq"))},
}
#: Models whose window it does not use: it has none for them, and switched that of Phi off (pull
#: request 13676).
_WINDOW_OFF: Final = frozenset(
    [
        "mistral",
        "mixtral",
        "ministral",
        "ministral3",
        "starcoder2",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    ]
)
#: Convolution states are R in its log, all others S.
_CONVOLUTION: Final = ("conv", "shift")


@dataclass(frozen=True, slots=True)
class LlamaCppSettings:
    """What the engine is started with.

    Attributes:
        context: Cells of a buffer.
        sequences: Sequences at once, ``-np``.
        ubatch: Tokens of one step, ``-ub``.
        unified: Whether all sequences share one buffer, ``--kv-unified``; else each has its own.
    """

    context: int
    sequences: int = 1
    ubatch: int = 512
    unified: bool = False

    @property
    def streams(self) -> int:
        """Buffers, one for each sequence unless they share one."""
        return 1 if self.unified else self.sequences

    @property
    def total_context(self) -> int:
        """What ``-c`` has to be."""
        return self.context * self.streams


@dataclass(frozen=True, slots=True)
class LlamaCppBuffer:
    """One cache that llama.cpp makes.

    Attributes:
        what: ``cache``, ``window cache`` or ``recurrent``.
        cells: Tokens for each sequence; for states, sequences.
        layers: Layers in it.
        first_bytes: Bytes of K, or of the convolution states R.
        second_bytes: Bytes of V, or of the other states S.
        first_type: The format of the first.
        second_type: The format of the second.
    """

    what: str
    cells: int
    layers: int
    first_bytes: int
    second_bytes: int
    first_type: str
    second_type: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.first_bytes + self.second_bytes


def llamacpp_buffers(
    geometry: ModelGeometry, formats: Formats, settings: LlamaCppSettings
) -> list[LlamaCppBuffer]:
    """Return the caches that llama.cpp would make for *geometry*, undivided.

    Raises:
        UsageError: If it has no such format or no such layers, or ranks divide the heads.
    """
    if geometry.tp > 1:  # as it is wherever ranks divide the tokens
        raise UsageError(
            "--as llama.cpp: it does not divide heads among ranks; drop --tp and --dcp"
        )
    for chosen in (formats.key, formats.value):
        if chosen.name not in _TYPE_NAMES:
            raise UsageError(
                f"--as llama.cpp: it has no KV type {chosen.name}",
                hint=f"use one of {', '.join(_TYPE_NAMES)}",
            )
    cells = align_up(settings.context, _PADDING)
    kept: dict[Extent, list[Layer]] = {}
    for layer in _layers(geometry):
        for extent in {tensor.extent for tensor in _cached(layer)}:
            kept.setdefault(extent, []).append(layer)
    # The cache of all tokens is made first, then that of the windows.
    buffers = [
        _attention(extent, layers, formats, cells, settings)
        for extent, layers in sorted(kept.items(), key=lambda item: not item[0].grows)
    ]
    if any(layer.states for layer in geometry.layers):
        buffers.append(_recurrent(geometry, settings))
    return buffers


def log_line(buffer: LlamaCppBuffer, settings: LlamaCppSettings) -> str:
    """Return the line that llama.cpp would log for *buffer*."""
    names = ("R", "S") if buffer.what == "recurrent" else ("K", "V")
    where = "llama_memory_recurrent" if buffer.what == "recurrent" else "llama_kv_cache"
    streams = str(settings.sequences)
    if buffer.what != "recurrent":
        streams = f"{settings.sequences}/{settings.streams}"
    return (
        f"{where}: size = {buffer.nbytes / MIB:7.2f} MiB ({buffer.cells:6d} cells,"
        f" {buffer.layers:3d} layers, {streams:>2} seqs),"
        f" {names[0]} ({buffer.first_type}): {buffer.first_bytes / MIB:7.2f} MiB,"
        f" {names[1]} ({buffer.second_type}): {buffer.second_bytes / MIB:7.2f} MiB"
    )


def _layers(geometry: ModelGeometry) -> tuple[Layer, ...]:
    """Return the layers as llama.cpp has them: some models keep all tokens there."""
    if geometry.architecture not in _WINDOW_OFF:
        return geometry.layers
    return tuple(
        replace(
            layer,
            kind=LayerKind.FULL,
            tensors=tuple(replace(tensor, extent=Extent()) for tensor in layer.tensors),
        )
        for layer in geometry.layers
    )


def _cached(layer: Layer) -> tuple[Tensor, ...]:
    """Return the tensors of *layer*, whose caches are all modelled.

    Index keys have a cache of their own since pull request 23346, and none before it.
    """
    missing = None
    if layer.kind is LayerKind.COMPRESSED:
        missing = layer.kind.value
    elif any(tensor.extent.span is Span.FIXED for tensor in layer.tensors):
        missing = LayerKind.CROSS.value
    elif any(tensor.role is TensorRole.INDEX for tensor in layer.tensors):
        missing = "index keys of sparse attention"
    if missing is not None:
        raise UsageError(f"--as llama.cpp: layers with {missing} are not modelled")
    return layer.tensors


def _attention(
    extent: Extent, layers: list[Layer], formats: Formats, cells: int, settings: LlamaCppSettings
) -> LlamaCppBuffer:
    if not extent.grows:
        sharing = settings.sequences if settings.unified else 1
        cells = min(cells, align_up(extent.size * sharing + settings.ubatch, _PADDING))
    key = value = 0
    for layer in layers:
        for tensor in _cached(layer):
            if tensor.extent != extent:
                continue
            row = formats.of(tensor).bytes_per_row(tensor)
            nbytes = settings.streams * cells * tensor.heads * row
            if tensor.role is TensorRole.VALUE:
                value += nbytes
            else:
                key += nbytes
    return LlamaCppBuffer(
        "cache" if extent.grows else "window cache",
        cells,
        len(layers),
        key,
        value,
        _TYPE_NAMES[formats.key.name],
        _TYPE_NAMES[formats.value.name],
    )


def _recurrent(geometry: ModelGeometry, settings: LlamaCppSettings) -> LlamaCppBuffer:
    sizes = {True: 0, False: 0}
    layers = 0
    for layer in geometry.layers:
        layers += bool(layer.states)
        for state in layer.states:
            nbytes = settings.sequences * state.elements * _STATE_ELEMENT_BYTES
            sizes[state.name in _CONVOLUTION] += nbytes
    return LlamaCppBuffer(
        "recurrent", settings.sequences, layers, sizes[True], sizes[False], "f32", "f32"
    )
