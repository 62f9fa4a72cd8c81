"""What llama.cpp would log for the same cache: its KV buffer lines.

Source: ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``, ``llama-kv-cache-dsa.cpp``,
``llama-kv-cache-dsv4.cpp`` and ``llama-memory-recurrent.cpp`` at v0.5.0: after pull requests 16812 (the
context is padded, not the cache), 19067 (no V for latent attention) and 23346 (index keys have a
cache of their own).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.element_formats import FORMATS, choose_formats
from vmtool.kv.engines.known_engines import EngineRank  # noqa: TC001 - msgspec reads the types
from vmtool.kv.geometry import Extent, LayerKind, Span, TensorRole
from vmtool.units import MIB, align_up

if TYPE_CHECKING:
    from vmtool.kv.element_formats import ElementFormat, Formats
    from vmtool.kv.estimate import Question
    from vmtool.kv.geometry import Layer, ModelGeometry, Tensor

_PADDING: Final = 256
_UBATCH: Final = 512
_STATE_ELEMENT_BYTES: Final = 4  # recurrent states are always f32
#: llama.cpp's own names of the formats that it has.
_TYPE_NAMES: Final = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    **{name: name for name in FORMATS if name.startswith(("q", "iq", "mxfp4", "tq"))},
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
#: Models of which each layer has either attention or a state. Both caches are made and logged, even
#: if no layer is in one of them.
_HYBRID: Final = frozenset(
    [
        "bamba",
        "falcon-h1",
        "falcon_h1",
        "granitehybrid",
        "granitemoehybrid",
        "jamba",
        "kimi-k3",
        "kimi_k3",
        "kimi-linear",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen3next",
    ]
)
#: Models that it does not run, and whose caches are not those that it would make of such layers.
_NOT_RUN: Final = frozenset(
    [
        "deepseek_v41",
        "deepseek_v41_text",
        "diffusion_gemma_text",
        "moonshot_kimia",
    ]
)
#: EXAONE 4's window is used with 64 layers only (its 32B model).
_WINDOW_LAYERS: Final = {"exaone4": 64}
#: K and V of MiniCPM3 are made of the latent before they are kept, V at its own width, hidden size /
#: heads of the published model.
_VALUE_WIDTH: Final = {"minicpm3": 64}
#: Models whose states it can take back to an earlier one.
_ROLLBACK: Final = frozenset(
    [
        "bailing_hybrid",
        "bailingmoe3",
        "kimi-k3",
        "kimi_k3",
        "lfm2",
        "lfm2_moe",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
    ]
)
#: Models for which it switches flash attention off.
_NO_FLASH_ATTENTION: Final = frozenset(["grok"])
#: Models whose MTP layers it runs, in a context of their own.
_MTP: Final = frozenset(
    [
        "bailing_hybrid",
        "bailingmoe3",
        "cohere2_moe",
        "cohere2moe",
        "deepseek2",
        "deepseek32",
        "deepseek_v3",
        "deepseek_v32",
        "glm-dsa",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4moe",
        "glm_moe_dsa",
        "hy_v3",
        "kimi_k2",
        "mimo2",
        "mimo_v2_flash",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen3next",
        "step35",
        "step3p5",
    ]
)
#: The type of the cache of a draft, whatever that of the model is (``-ctkd`` and ``-ctvd``).
_DRAFT_TYPE: Final = "fp16"
#: Convolution states are R in its log, all others S.
_CONVOLUTION: Final = ("conv", "shift")


@dataclass(frozen=True, slots=True)
class LlamaCppSettings:
    """What the engine is started with.

    Attributes:
        context: Tokens that each sequence may have; of the shared buffer if it is unified.
        sequences: Sequences at once, ``-np``.
        ubatch: Tokens of one step, ``-ub``.
        unified: Whether all sequences share one buffer, ``--kv-unified``; else each has its own.
        swa_full: Whether layers with a window keep all tokens, ``--swa-full``.
        flash_attention: Whether flash attention is on. Without it V is transposed, and each layer's
            is as wide as the widest layer's.
        rollback: Snapshots of recurrent states that are kept for each sequence besides the current
            one, for draft tokens that may be taken back, of models that can do so.
    """

    context: int
    sequences: int = 1
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    flash_attention: bool = True
    rollback: int = 0

    @property
    def streams(self) -> int:
        """Buffers, one for each sequence unless they share one."""
        return 1 if self.unified else self.sequences

    @property
    def cells(self) -> int:
        """Cells of the cache of all tokens, for each stream."""
        return align_up(self.context, _PADDING)

    @property
    def total_context(self) -> int:
        """What ``-c`` has to be."""
        return self.context * self.streams


@dataclass(frozen=True, slots=True)
class LlamaCppBuffer:
    """One cache that llama.cpp makes.

    Attributes:
        what: ``cache``, ``window cache``, ``index cache``, ``compressed cache`` or ``recurrent``.
        cells: Tokens for each sequence; for states, sequences.
        layers: Layers that the log counts: of states all of the model.
        first_bytes: Bytes of K, or of the convolution states R.
        second_bytes: Bytes of V, or of the other states S.
        first_type: The format of the first.
        second_type: The format of the second.
        nbytes: Bytes of the whole buffer.
        streams: Parts of it, one for each sequence unless they share one.
        snapshots: Snapshots that are kept of each state besides the current one.
    """

    what: str
    cells: int
    layers: int
    first_bytes: int
    second_bytes: int
    first_type: str
    second_type: str
    nbytes: int
    streams: int
    snapshots: int = 0


def llamacpp_buffers(
    geometry: ModelGeometry, formats: Formats, settings: LlamaCppSettings
) -> list[LlamaCppBuffer]:
    """Return the caches that llama.cpp would make for *geometry*, undivided.

    Raises:
        UsageError: If it has no such model, format or layers, or ranks divide the heads.
    """
    if geometry.architecture in _NOT_RUN:
        raise UsageError(f"--as llama.cpp: it does not run {geometry.architecture}")
    if geometry.tp > 1:  # as it is wherever ranks divide the tokens
        raise UsageError(
            "--as llama.cpp: it does not divide heads among ranks; leave out --tp and --dcp"
        )
    if geometry.pp > 1:
        raise UsageError(
            "--as llama.cpp: its log has one line for all devices, and none for a stage; "
            "leave out --pp"
        )
    for chosen in (formats.key, formats.value):
        if chosen.name not in _TYPE_NAMES and not chosen.name.startswith("turbo"):
            raise UsageError(
                f"--as llama.cpp: it has no KV type {chosen.name}",
                hint=f"use one of {', '.join(_TYPE_NAMES)}",
            )
    if formats.key != formats.value and any(
        t.role is TensorRole.LATENT for layer in geometry.layers for t in layer.tensors
    ):
        raise UsageError(
            f"--as llama.cpp: a latent is both K and V, so K cannot be {formats.key.name} and V"
            f" {formats.value.name}",
            hint="give one --dtype for both",
        )
    if formats.value.group != 1 and geometry.architecture in _NO_FLASH_ATTENTION:
        raise UsageError(
            f"--as llama.cpp: V as {formats.value.name} needs flash attention, which it does not use for"
            f" {geometry.architecture}"
        )
    if any(t.extent.span is Span.FIXED for layer in geometry.layers for t in layer.tensors):
        raise UsageError(f"--as llama.cpp: layers with {LayerKind.CROSS.value} are not modelled")
    layers = _layers(geometry)
    if not settings.flash_attention:
        layers = _with_widest_values(layers, formats)
    if any(_is_compressed(layer) for layer in layers):  # its caches are never shared
        settings = replace(settings, unified=False)
    caches: dict[tuple[str, Extent], list[tuple[Layer, Tensor]]] = {}
    if geometry.architecture in _HYBRID or any(_is_compressed(layer) for layer in layers):
        caches["cache", Extent()] = []
    plain = {layer.index: layer for layer in geometry.layers}
    for layer in layers:
        for tensor in layer.tensors:
            kept = caches.setdefault((_cache_of(tensor), tensor.extent), [])
            kept.append((layer, tensor))
            if tensor.name == "index_k":  # its cache has a V too, as wide as a head's
                value = next(filter(_is_value, plain[layer.index].tensors))
                kept.append((layer, replace(value, heads=1)))
    order = ("cache", "window cache", "compressed cache", "index cache")
    # Layers without attention are counted all the same where no recurrent memory has them.
    idle = sum(layer.kind is LayerKind.NONE for layer in layers)
    if any(layer.states for layer in layers) or geometry.architecture in _HYBRID:
        idle = 0
    buffers = [
        _attention(what, extent, kept, formats, settings, idle=idle if what == "cache" else 0)
        for (what, extent), kept in sorted(
            caches.items(), key=lambda item: (order.index(item[0][0]), item[0][1].ratio)
        )
    ]
    if geometry.architecture in _HYBRID or any(
        layer.states and not _is_compressed(layer) for layer in layers
    ):
        if geometry.architecture not in _ROLLBACK:
            settings = replace(settings, rollback=0)
        buffers.append(_recurrent(layers, settings))
    return buffers


def mtp_buffers(
    geometry: ModelGeometry, formats: Formats, settings: LlamaCppSettings
) -> list[LlamaCppBuffer]:
    """Return the caches that llama.cpp makes for the MTP layers of *geometry*.

    They have a context of their own, with neither states nor index keys. A model with windows has
    both caches there too, even if no layer is in one of them.

    Raises:
        UsageError: If it does not run the MTP layers of this architecture.
    """
    if geometry.architecture not in _MTP:
        raise UsageError(
            f"--as llama.cpp: it does not run the MTP layers of {geometry.architecture}",
            hint="leave out --draft-tokens, or name a draft model with --draft-model",
        )
    layers = geometry.layers
    if not settings.flash_attention:
        layers = _with_widest_values(layers, formats)
    caches: dict[Extent, list[tuple[Layer, Tensor]]] = {Extent(): []}
    for layer in layers:
        for tensor in layer.tensors:
            kept = caches.setdefault(tensor.extent, [])
            if layer.draft and tensor.role is not TensorRole.INDEX:
                kept.append((layer, tensor))
    return [
        _attention(
            "cache" if extent.grows else "window cache", extent, kept, formats, settings, idle=0
        )
        for extent, kept in caches.items()
    ]


def log_line(buffer: LlamaCppBuffer, settings: LlamaCppSettings) -> str:
    """Return the line that llama.cpp would log for *buffer*."""
    first, second = buffer.first_bytes / MIB, buffer.second_bytes / MIB
    size = (
        f"size = {buffer.nbytes / MIB:7.2f} MiB ({buffer.cells:6d} cells, {buffer.layers:3d} layers"
    )
    if buffer.what == "recurrent":
        return (
            f"llama_memory_recurrent: {size}, {settings.sequences:2d} seqs {buffer.snapshots:2d}"
            f" rs_seq), R ({buffer.first_type}): {first:7.2f} MiB,"
            f" S ({buffer.second_type}): {second:7.2f} MiB, P ({buffer.first_type}): {0:7.2f} MiB"
        )
    return (
        f"llama_kv_cache: {size}, {settings.sequences:2d}/{buffer.streams} seqs),"
        f" K ({buffer.first_type}): {first:7.2f} MiB, V ({buffer.second_type}): {second:7.2f} MiB"
    )


def _layers(geometry: ModelGeometry) -> tuple[Layer, ...]:
    """Return the layers as llama.cpp has them: some models keep all tokens there."""
    name = geometry.architecture
    width = _VALUE_WIDTH.get(name)
    needed = _WINDOW_LAYERS.get(name)
    off = name in _WINDOW_OFF or (needed is not None and needed != len(geometry.layers))
    if not off and width is None:
        return geometry.layers
    return tuple(
        replace(
            layer,
            kind=LayerKind.FULL if off else layer.kind,
            tensors=tuple(
                replace(
                    tensor,
                    extent=Extent() if off else tensor.extent,
                    dim=width if width and tensor.role is TensorRole.VALUE else tensor.dim,
                )
                for tensor in layer.tensors
            ),
        )
        for layer in geometry.layers
    )


def _with_widest_values(layers: tuple[Layer, ...], formats: Formats) -> tuple[Layer, ...]:
    """Return *layers* with V of each as wide as the widest: one tensor shape is used for all."""
    if formats.value.group != 1:
        raise UsageError(f"--as llama.cpp: V as {formats.value.name} needs flash attention")
    widest = max(
        (t.elements_per_token for layer in layers for t in layer.tensors if _is_value(t)),
        default=0,
    )
    return tuple(
        replace(
            layer,
            tensors=tuple(
                replace(t, heads=1, dim=widest) if _is_value(t) else t for t in layer.tensors
            ),
        )
        for layer in layers
    )


def _is_value(tensor: Tensor) -> bool:
    return tensor.role is TensorRole.VALUE


def _is_compressed(layer: Layer) -> bool:
    """Return whether *layer* is one of DeepSeek-V4, whose open groups are not logged as states."""
    return any(tensor.name == "window" for tensor in layer.tensors)


def _cache_of(tensor: Tensor) -> str:
    """Return which cache *tensor* is in."""
    if tensor.role is TensorRole.INDEX or tensor.name == "index_k":
        return "index cache"
    if tensor.extent.ratio > 1:
        return "compressed cache"
    return "cache" if tensor.extent.grows else "window cache"


def _type_name(chosen: ElementFormat) -> str:
    return _TYPE_NAMES.get(chosen.name) or chosen.name.partition(":")[0]


def _attention(
    what: str,
    extent: Extent,
    kept: list[tuple[Layer, Tensor]],
    formats: Formats,
    settings: LlamaCppSettings,
    *,
    idle: int,
) -> LlamaCppBuffer:
    cells = settings.cells
    if extent.ratio > 1:
        cells = align_up(-(-cells // extent.ratio), _PADDING)
    elif not extent.grows and not settings.swa_full:
        sharing = settings.sequences if settings.unified else 1
        cells = min(cells, align_up(extent.size * sharing + settings.ubatch, _PADDING))
    key = value = 0
    for _, tensor in kept:
        # Index keys are kept in the type of K.
        chosen = formats.value if tensor.role is TensorRole.VALUE else formats.key
        nbytes = settings.streams * cells * tensor.heads * chosen.bytes_per_row(tensor)
        if tensor.role is TensorRole.VALUE:
            value += nbytes
        else:
            key += nbytes
    return LlamaCppBuffer(
        what,
        cells,
        len({layer.index for layer, _ in kept}) + idle,
        key,
        value,
        _type_name(formats.key),
        _type_name(formats.value),
        key + value,
        settings.streams,
    )


def _recurrent(layers: tuple[Layer, ...], settings: LlamaCppSettings) -> LlamaCppBuffer:
    rows = settings.sequences * (1 + settings.rollback)
    sizes = {True: 0, False: 0}
    for layer in layers:
        for state in layer.states:
            nbytes = rows * state.elements * _STATE_ELEMENT_BYTES
            sizes[state.name in _CONVOLUTION] += nbytes
    return LlamaCppBuffer(
        "recurrent",
        settings.sequences,
        len(layers),
        sizes[True],
        sizes[False],
        "f32",
        "f32",
        sizes[True] + sizes[False],
        settings.sequences,
        settings.rollback,
    )


@dataclass(frozen=True, slots=True)
class LlamaCppResult:
    """The caches that llama.cpp would make, and log.

    Attributes:
        model: The model's name.
        context_tokens: Tokens that each sequence may have, or the shared buffer.
        total_context_tokens: What ``-c`` has to be.
        sequences: Sequences at once.
        ubatch_tokens: Tokens of one step.
        unified: Whether all sequences share one buffer.
        swa_full: Whether layers with a window keep all tokens.
        total_bytes: Bytes of all caches.
        budget_bytes: The memory for the KV cache; ``None`` if none was given.
        buffers: The caches.
        log_lines: The lines that it would log.
        rank: What is assumed of each rank; ``None`` without a budget.
    """

    model: str
    context_tokens: int
    total_context_tokens: int
    sequences: int
    ubatch_tokens: int
    unified: bool
    swa_full: bool
    total_bytes: int
    budget_bytes: int | None
    buffers: tuple[LlamaCppBuffer, ...]
    log_lines: tuple[str, ...]
    rank: EngineRank | None = None


def as_llamacpp(
    question: Question,
    *,
    unified: bool = False,
    swa_full: bool = False,
    flash_attention: bool = True,
    rollback: int = 0,
    draft: ModelGeometry | None = None,
) -> LlamaCppResult:
    """Return the caches that llama.cpp makes for *question*, and those of what predicts draft tokens.

    That is the model *draft* or, if it is ``None``, the model's MTP layers if *question* has them.

    Raises:
        UsageError: If it could not serve the model so.
    """
    settings = LlamaCppSettings(
        context=question.length,
        sequences=question.sequences,
        ubatch=question.in_flight or _UBATCH,
        unified=unified,
        swa_full=swa_full,
        flash_attention=flash_attention,
        rollback=rollback,
    )
    geometry = question.geometry
    own = tuple(layer for layer in geometry.layers if not layer.draft)
    buffers = llamacpp_buffers(replace(geometry, layers=own), question.formats, settings)
    kept = choose_formats(None, key=_DRAFT_TYPE, value=_DRAFT_TYPE)
    if draft is not None:
        buffers += llamacpp_buffers(draft, kept, replace(settings, rollback=0))
    elif len(own) < len(geometry.layers):
        buffers += mtp_buffers(geometry, kept, settings)
    return LlamaCppResult(
        model=question.geometry.title,
        context_tokens=settings.context,
        total_context_tokens=settings.total_context,
        sequences=settings.sequences,
        ubatch_tokens=settings.ubatch,
        unified=unified,
        swa_full=swa_full,
        total_bytes=sum(buffer.nbytes for buffer in buffers),
        budget_bytes=None if question.budget is None else question.budget.kv_bytes,
        buffers=tuple(buffers),
        log_lines=tuple(log_line(buffer, settings) for buffer in buffers),
    )
