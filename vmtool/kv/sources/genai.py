"""ONNX Runtime GenAI's ``genai_config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.errors import UsageError
from vmtool.kv.geometry import Extent, Layer, LayerKind, ModelGeometry, Span, Tensor, pair
from vmtool.kv.sources.fields import FLAGS, MAX_LAYERS, MAX_TOKENS, Fields
from vmtool.kv.sources.reading import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {
    "layers": ("num_hidden_layers",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_size",),
    "window": ("window_size",),
    "context": ("context_length",),
}
#: The types of GenAI's model_type.h whose decoders keep K and V in every layer.
_TYPES = frozenset(
    {"chatglm", "decoder", "decoder-pipeline", "ernie4_5", "fara", "gemma", "gemma2", "gemma3"}
    | {"gemma3_text", "gpt2", "gptoss", "granite", "internlm2", "llama", "mistral", "nemotron"}
    | {"olmo", "phi", "phi3", "phi3small", "phi3v", "phi4mm", "phimoe", "qwen2", "qwen2_5_vl"}
    | {"qwen3", "qwen3_vl", "smollm3", "whisper"}
)
#: Whisper's encoder always yields 1500 frames for its 30 seconds; the file does not say.
_WHISPER_FRAMES = 1500
#: Inputs whose sizes are in the ONNX model alone.
_STATE_INPUTS = ("past_conv_names", "past_recurrent_names", "rnn_prev_states", "past_ssm_names")


def build(data: dict[str, Any], path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of a parsed ``genai_config.json``.

    Raises:
        InputError: If a field is missing, malformed, or names a cache whose size the file omits.
        UsageError: If an override does not apply.
    """
    model = Fields(data, path, overrides=overrides).nested("model")
    decoder = model.nested("decoder") if model else None
    if model is None or decoder is None:
        return Fields(data, path).fail("model.decoder", "is missing")
    kind = model.text("type")
    if kind is None:
        model.fail("type", "is missing, so the architecture is unknown")
    model.names = decoder.names = _NAMES
    decoder.architecture = kind
    decoder.origin = "the GenAI runtime"
    crossed = _inputs(decoder, kind)
    if kind not in _TYPES:
        model.fail("type", f"{kind[:40]!r} is not an architecture that vmtool understands")
    layers = _layers(decoder, crossed)
    for name in set(overrides) - decoder.applied:
        raise UsageError(f"{FLAGS[name]} does not apply: genai_config.json has no such value")
    context = model.optional("context", high=MAX_TOKENS)
    return ModelGeometry(name_of(path), kind, layers, context, provenance=decoder.facts)


def _inputs(decoder: Fields, kind: str) -> bool:
    """Check the decoder's inputs; return whether it also has cross-attention caches."""
    inputs = decoder.nested("inputs")
    if inputs is None:
        return False
    for key in _STATE_INPUTS:
        if inputs.has(key):
            inputs.fail(
                key,
                "names a state whose size is only in the ONNX model",
                hint="give the decoder's .onnx file, or the model's config.json",
            )
    crossed = inputs.has("cross_past_key_names")
    if crossed and kind != "whisper":
        inputs.fail("cross_past_key_names", f"is set, and {kind[:40]!r} is not whisper")
    return crossed


def _layers(decoder: Fields, crossed: bool) -> tuple[Layer, ...]:
    count = decoder.integer("layers", high=MAX_LAYERS)
    dim = decoder.integer("head_dim")
    dim_v = decoder.optional("head_dim_v") or dim
    kv_heads = decoder.integer("kv_heads")
    tensors = pair(kv_heads, dim, dim_v)
    if crossed:
        decoder.defaulted("cross_tokens", _WHISPER_FRAMES, "the frames of whisper's encoder")
        held = Extent(Span.FIXED, _WHISPER_FRAMES)
        tensors += tuple(Tensor(f"cross_{t.name}", t.role, t.heads, t.dim, held) for t in tensors)
    window, windowed = _window(decoder, count)
    if window is None:
        return tuple(Layer(i, LayerKind.FULL, tensors) for i in range(count))
    short = pair(kv_heads, dim, dim_v, Extent(Span.WINDOW, window))
    return tuple(
        Layer(i, LayerKind.WINDOW, short) if i in windowed else Layer(i, LayerKind.FULL, tensors)
        for i in range(count)
    )


def _window(decoder: Fields, count: int) -> tuple[int | None, frozenset[int]]:
    """Return the window and the layers that slide; all of them where the file lists none."""
    window = decoder.nested("sliding_window")
    if window is None or not window.flag("slide_key_value_cache", default=True):
        return None, frozenset()
    window.names = _NAMES
    size = window.integer("window", high=MAX_TOKENS)
    listed = window.integers("layers", high=count - 1)
    return size, frozenset(range(count) if listed is None else listed)
