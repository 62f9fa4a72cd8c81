"""The decoder in the config of a model of several parts: where it is, and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.sources.hf.family import NAMES
from vmtool.kv.sources.hf.registry import (
    ARCHITECTURES,
    STANDARD,
    family_of,
)
from vmtool.kv.sources.hf.unread_fields import is_named_part, refuse_of_wrapper

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


#: Models of an encoder and a decoder that have a config each, and where the decoder's is.
DECODER_KEYS = {
    **dict.fromkeys(
        (
            "encoder-decoder",
            "speech-encoder-decoder",
            "vision-encoder-decoder",
            "t5gemma",
            "t5gemma2",
        ),
        "decoder",
    ),
    **dict.fromkeys(("canary", "dia"), "decoder_config"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "decoder"),
}
#: Keys under which a model of several parts keeps its decoder, the outermost first.
INNER_KEYS: Final = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "lm_config",
    "vlm_config",
)
#: Decoders that are another one than their config says, by the model around them.
_INNER_TYPES: Final = {
    "kimi_k3": "kimi_k3",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
}
#: Decoders of models whose config may leave their type out, as transformers' config classes do.
_DEFAULT_INNER_TYPES: Final = {
    **dict.fromkeys(
        ("aria", "janus", "llava", "llava_next", "llava_next_video", "video_llava", "vipllava"),
        "llama",
    ),
    "aya_vision": "cohere2",
    "deepseek_v41": "deepseek_v41_text",
    "deepseek_vl_v2": "deepseek_v2",
    "gemma3": "gemma3_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_audio": "qwen2",
}
#: Wrappers that repeat a deciding field of their decoder for a purpose of their own.
_WRAPPER_HARMLESS: Final = {
    "bagel": frozenset({"latent_patch_size", "max_latent_size"}),
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), frozenset({"window_size"})),
    "musicflamingo": frozenset({"head_dim"}),
    "pi0": frozenset({"chunk_size"}),
}


def decoder_of(outer: Fields) -> tuple[Fields, str]:
    """Return the fields of the part that generates text, and its ``model_type``.

    A wrapper is resolved as its decoder if it says nothing of its own about a cache.
    """
    if outer.has("model_config"):
        return _decoder_of_mlc(outer, _model_type(outer))
    fields = outer
    kind = outer.text("model_type")
    for _ in range(len(INNER_KEYS)):  # a thinker holds a text_config; nothing nests deeper
        keys = (DECODER_KEYS[kind],) if kind in DECODER_KEYS else INNER_KEYS
        inner = next((key for key in keys if fields.has(key)), None) or _only_decoder(fields, kind)
        if inner is None:
            if kind in _DEFAULT_INNER_TYPES:
                fields.fail(
                    keys[-1] if len(keys) == 1 else "text_config", "is missing: it is the decoder"
                )
            break
        nested = fields.nested(inner, whole=True)
        if nested is None:
            break
        for key in keys:
            if fields.has(key) and fields.peek(key) != fields.peek(inner):
                fields.fail(
                    key, f"is a second language model beside {inner}; give the config of one"
                )
        refuse_of_wrapper(fields, nested, _WRAPPER_HARMLESS.get(kind or "", frozenset()) | {inner})
        nested.outer = fields
        fields, kind = nested, _inner_type(kind, nested)
    return fields, kind or _model_type(fields)


def _only_decoder(fields: Fields, kind: str | None) -> str | None:
    """Return the key of the one object that is the config of a known decoder, whatever it is called.

    A config that is known itself or states layers is no wrapper.
    """
    if kind is None or family_of(kind) is not STANDARD or any(map(fields.has, NAMES["layers"])):
        return None
    found = [
        key for key in fields.all_keys() if _is_known(fields.peek(key)) and not is_named_part(key)
    ]
    if len(found) > 1:
        fields.fail(
            found[1], f"is a second language model beside {found[0]}; give the config of one"
        )
    return found[0] if found else None


def _is_known(value: Any) -> bool:
    kind = value.get("model_type") if isinstance(value, dict) else None
    return isinstance(kind, str) and family_of(kind) is not STANDARD


def _inner_type(wrapper: str | None, nested: Fields) -> str | None:
    """Return the ``model_type`` of the decoder *nested* of *wrapper*; ``None`` if nothing says it."""
    if wrapper in _INNER_TYPES:
        nested.text("model_type")
        return _INNER_TYPES[wrapper]
    kind = nested.text("model_type")
    if kind is None and wrapper is not None:
        kind = _DEFAULT_INNER_TYPES.get(wrapper)
    return kind


def _decoder_of_mlc(outer: Fields, kind: str) -> tuple[Fields, str]:
    """Return the ``model_config`` of an mlc-chat-config.json with the outer window applied."""
    config = outer.raw("model_config")
    if not isinstance(config, dict):
        outer.fail("model_config", "must be an object")
    merged = dict(config)
    for key in ("sliding_window_size", "attention_sink_size", "context_window_size"):
        value = outer.raw(key)
        if value is not None:
            merged[key] = value
        if merged.get(key) == -1:  # MLC's "none"
            merged[key] = None
    if merged.get("sliding_window_size") is None and "sliding_window_size" in merged:
        merged["sliding_window"] = None
    fields = outer.wrap(merged, "model_config.")
    fields.outer = outer
    return fields, kind


def _model_type(fields: Fields) -> str:
    text = fields.text("model_type")
    if text is not None:
        return text
    names = fields.items("architectures") or []
    known = next((name for name in names if isinstance(name, str) and name in ARCHITECTURES), None)
    if known is not None:
        return ARCHITECTURES[known]
    if names:
        fields.fail("architectures", f"{str(names[0])[:60]!r} is not understood")
    return fields.fail("model_type", "is missing, so the architecture is unknown")
