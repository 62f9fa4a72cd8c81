"""ONNX Runtime GenAI's ``genai_config.json``, read as its runtime 0.16 does.

Source: ``kv_cache.cpp``, ``windowed_kv_cache.cpp`` and ``recurrent_state.cpp`` of onnxruntime-genai. The
runtime takes heads, widths and states of each layer from the inputs of the decoder's ONNX model, and
from this file only where those do not say it; so does vmtool if the model lies beside the file.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vmtool.errors import UsageError
from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    ModelGeometry,
    Span,
    StatePart,
    StateTensor,
    Tensor,
    pair,
)
from vmtool.kv.sources import onnx
from vmtool.kv.sources.fields import FLAGS, MAX_LAYERS, MAX_TOKENS, Fields
from vmtool.kv.sources.model_files import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {
    "layers": ("num_hidden_layers",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_size",),
    "hidden": ("hidden_size",),
    "window": ("window_size",),
    "context": ("context_length",),
}
#: The types of GenAI's model_type.h whose decoders keep K and V of one shape in every layer.
_TYPES = frozenset(
    {"chatglm", "decoder", "decoder-pipeline", "ernie4_5", "fara", "gemma", "gemma2", "gemma3"}
    | {"gemma3_text", "gpt2", "gptoss", "granite", "granitemoehybrid", "hunyuandensev1"}
    | {"internlm2", "llama", "mistral", "mistral3", "nemotron", "olmo", "phi", "phi3"}
    | {"phi3small", "phi3v", "phi4mm", "phimoe", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_vl"}
    | {"smollm3", "videochat_flash_qwen", "whisper"}
)
#: Types whose layers differ in ways that only the decoder's ONNX model says.
_ONLY_IN_MODEL = {
    "gemma4": "the heads and widths of its full attention are",
    "gemma4_text": "the heads and widths of its full attention are",
    "qwen3_5": "the layers with states, and the sizes of these, are",
    "qwen3_5_moe": "the layers with states, and the sizes of these, are",
    "qwen3_5_moe_text": "the layers with states, and the sizes of these, are",
    "qwen3_5_text": "the layers with states, and the sizes of these, are",
}
#: Whisper's encoder always yields 1500 frames for its 30 seconds; the file does not say.
_WHISPER_FRAMES = 1500
#: Inputs whose sizes are in the ONNX model alone.
_STATE_INPUTS = ("past_conv_names", "past_recurrent_names", "rnn_prev_states", "past_ssm_names")
#: The execution providers that drop what left a window, and the places that they have beyond it.
_SLACK = {"cpu": 16, "cuda": 0, "nvtensorrtrtx": 0}


def build(data: dict[str, Any], path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of a parsed ``genai_config.json``.

    Raises:
        InputError: If a field is missing, malformed, or names a cache whose size the file omits.
        UsageError: If an override does not apply.
    """
    outer = Fields(data, path, overrides=overrides)
    model = outer.nested("model")
    decoder = model.nested("decoder") if model else None
    if model is None or decoder is None:
        outer.fail("model.decoder", "is missing")
    kind = model.text("type")
    if kind is None:
        model.fail("type", "is missing, so the architecture is unknown")
    model.names = decoder.names = _NAMES
    decoder.architecture = kind
    decoder.origin = "the GenAI runtime"
    declared = None if kind == "whisper" else _declared(decoder, path)
    if declared is not None:
        decoder.facts.update(declared.provenance)
        layers = declared.layers
    else:
        crossed = _inputs(decoder, kind)
        if kind in _ONLY_IN_MODEL:
            _refuse_without_model(model, "type", f"is {kind}: {_ONLY_IN_MODEL[kind]}")
        if kind not in _TYPES and kind != "lfm2":
            model.fail("type", f"{kind[:40]!r} is not an architecture that vmtool understands")
        layers = _convolved(decoder) if kind == "lfm2" else _layers(decoder, crossed)
    layers, windowed_type = _windowed(outer, decoder, layers)
    for name in set(overrides) - decoder.applied:
        where = (
            "genai_config.json has no such value"
            if declared is None
            else "the ONNX model has the value"
        )
        raise UsageError(f"{FLAGS[name]} does not apply: {where}")
    return ModelGeometry(
        name_of(path),
        kind,
        layers,
        model.optional("context", high=MAX_TOKENS),
        dtype=declared.dtype if declared else None,
        cache_dtype=windowed_type
        or _quantised(decoder)
        or (declared.cache_dtype if declared else None),
        provenance=decoder.facts,
    )


def _declared(decoder: Fields, path: str) -> ModelGeometry | None:
    """Return what the decoder's ONNX model declares, if it lies beside the file *path*."""
    name = decoder.text("filename")
    if not name or path == "-":
        return None
    file = str(Path(path).parent / name)
    return onnx.load(file, {}) if os.path.lexists(file) else None


def _refuse_without_model(fields: Fields, key: str, what: str) -> NoReturn:
    fields.fail(
        key,
        f"{what} only in the decoder's ONNX model, which is not beside this file",
        hint="put the .onnx file of model.decoder.filename there (not its weights),"
        " or give the model's config.json",
    )


def _inputs(decoder: Fields, kind: str) -> bool:
    """Check the decoder's inputs; return whether it also has cross-attention caches."""
    inputs = decoder.nested("inputs")
    if inputs is None:
        return False
    for key in _STATE_INPUTS:
        if inputs.has(key) and not (kind == "lfm2" and key == "past_conv_names"):
            _refuse_without_model(inputs, key, "names a state, whose size is")
    crossed = inputs.has("cross_past_key_names")
    if crossed and kind != "whisper":
        inputs.fail("cross_past_key_names", f"is set, but {kind[:40]!r} is not whisper")
    return crossed


def _layers(decoder: Fields, crossed: bool) -> tuple[Layer, ...]:
    count = decoder.integer("layers", high=MAX_LAYERS)
    tensors = _tensors(decoder)
    if crossed:
        decoder.defaulted("cross_tokens", _WHISPER_FRAMES, "the frames of whisper's encoder")
        held = Extent(Span.FIXED, _WHISPER_FRAMES)
        tensors += tuple(Tensor(f"cross_{t.name}", t.role, t.heads, t.dim, held) for t in tensors)
    return tuple(Layer(i, LayerKind.FULL, tensors) for i in range(count))


def _tensors(decoder: Fields) -> tuple[Tensor, ...]:
    dim = decoder.integer("head_dim")
    return pair(decoder.integer("kv_heads"), dim, decoder.optional("head_dim_v") or dim)


def _convolved(decoder: Fields) -> tuple[Layer, ...]:
    """Return the layers of LFM2: the runtime keeps whole convolutions, one column more than needed."""
    count = decoder.integer("layers", high=MAX_LAYERS)
    kinds = decoder.items("layer_types", length=count)
    if kinds is None:
        _refuse_without_model(decoder, "layer_types", "is missing: which layers keep states is")
    hidden, columns = decoder.integer("hidden"), decoder.integer("conv_cache_size")
    state = StateTensor("conv", (StatePart(hidden, columns),))
    tensors = _tensors(decoder)
    layers = []
    for i, kind in enumerate(kinds):
        if kind == "full_attention":
            layers.append(Layer(i, LayerKind.FULL, tensors))
        elif kind == "conv":
            layers.append(Layer(i, LayerKind.SHORT_CONV, (), (state,)))
        else:
            decoder.fail(f"layer_types[{i}]", "is neither full_attention nor conv")
    return tuple(layers)


def _providers(decoder: Fields) -> list[str]:
    """Return the names of the execution providers that the session asks for, in small letters."""
    options = decoder.nested("session_options", whole=True)
    listed = (options.items("provider_options") if options else None) or []
    return [str(name).lower() for entry in listed if isinstance(entry, dict) for name in entry]


def _quantised(decoder: Fields) -> str | None:
    """Return the format of a quantised cache: a 32-bit scale and 4 or 8 bits an element.

    Provider option ``kvCacheQuantizationBits``, ``ComputeQuantizedKvCacheHeadSize`` in kv_cache.cpp.
    """
    options = decoder.nested("session_options", whole=True)
    for entry in (options.items("provider_options") if options else None) or []:
        for values in entry.values() if isinstance(entry, dict) else ():
            bits = values.get("kvCacheQuantizationBits") if isinstance(values, dict) else None
            if bits not in (None, "0", "4", "8"):
                decoder.fail("session_options", "kvCacheQuantizationBits is neither 0, 4 nor 8")
            if bits in ("4", "8"):
                return f"int{bits}_per_token_head"
    return None


def _windowed(
    outer: Fields, decoder: Fields, layers: tuple[Layer, ...]
) -> tuple[tuple[Layer, ...], str | None]:
    """Return *layers* with their windows, and the type of K and V where windows decide it.

    CPU, CUDA and TensorRT-RTX keep the window and some places more
    (``ComputeWindowedKvCacheSize``). Where the cache itself slides (``WindowedKeyValueCache``, of
    8-bit elements), what is computed and what is kept are together as long as the context.
    """
    window = decoder.nested("sliding_window")
    if window is None:
        return layers, None
    window.names = _NAMES
    size = window.integer("window", high=MAX_TOKENS, low=0)
    listed = window.integers("layers", high=max(len(layers) - 1, 0))
    slack = window.optional("cache_slack", high=MAX_TOKENS, low=0) or 0
    providers = [name for name in _providers(decoder) if name != "cpu"] or ["cpu"]
    if window.flag("slide_key_value_cache", default=True) and "nvtensorrtrtx" not in providers:
        return layers, "uint8"
    search = outer.nested("search", whole=True)
    beams = search.optional("num_beams") if search else None
    if size == 0 or providers[0] not in _SLACK or beams not in (None, 1):
        return layers, None
    if providers[0] == "nvtensorrtrtx":
        slack = 0
    else:
        chunk = (search.optional("chunk_size", high=MAX_TOKENS, low=0) if search else None) or 1
        slack = max(chunk - 1, slack or _SLACK[providers[0]])
    held = Extent(Span.WINDOW, size + slack)
    windowed = frozenset(listed or range(len(layers)))
    return tuple(
        replace(
            layer,
            kind=LayerKind.WINDOW if layer.kind is LayerKind.FULL else layer.kind,
            tensors=tuple(replace(tensor, extent=held) for tensor in layer.tensors),
        )
        if layer.tensors and layer.index in windowed
        else layer
        for layer in layers
    ), None
