"""The element type in which engines keep the KV cache of a quantised checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vmtool.errors import UsageError
from vmtool.kv.geometry import Layer, ModelGeometry, Source
from vmtool.kv.sources.fields import FLAGS, Fields
from vmtool.kv.sources.hf.attention import context
from vmtool.kv.sources.hf.dense import DENSE
from vmtool.kv.sources.hf.family import NAMES, Family, layers_of
from vmtool.kv.sources.hf.hybrid import HYBRID
from vmtool.kv.sources.hf.state import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


def cache_dtype(configs: Iterable[Fields | None]) -> str | None:
    """Return ``fp8`` if one of the *configs* of quantisation says so, and ``None`` if none does.

    vLLM's ``auto`` is fp8 for a compressed-tensors file with a ``kv_cache_scheme``
    (``Attention.__init__``; ``CompressedTensorsKVCacheMethod.validate_kv_cache_scheme`` takes only
    symmetric 8-bit floats with a scale for each tensor or head) and for a ModelOpt file with that
    scheme or a ``kv_cache_quant_algo`` of FP8, also one deeper, under ``quantization``
    (``get_kv_cache_quant_algo_string`` in ``torch_utils.py``).

    Raises:
        InputError: If a cache is to be quantised in another way.
    """
    found = None
    for part in _parts(configs):
        for key in filter(part.has, _KEYS):
            _require_fp8(part, key)
            part.stated("cache_dtype", "fp8", key)
            found = "fp8"
    return found


def _parts(configs: Iterable[Fields | None]) -> Iterator[Fields]:
    for config in configs:
        if config is not None:
            yield config
            if isinstance(config.peek("quantization"), dict):
                yield from filter(None, [config.nested("quantization")])


def _require_fp8(part: Fields, key: str) -> None:
    value = part.raw(key)
    if isinstance(value, str) and value.lower() == "fp8":
        return
    if isinstance(value, dict) and (
        (value.get("type"), value.get("num_bits")) == ("float", 8)
        and value.get("dynamic") in (None, False)
        and value.get("symmetric") in (None, True)
        and value.get("strategy") in (None, "tensor", "attn_head")
    ):
        return
    part.fail(
        key,
        "quantises the KV cache in a way that is not understood",
        hint="take it out of a copy of the file, and give the cache's format with --dtype",
    )


FAMILIES = {**DENSE, **HYBRID}

_WRAPPERS = (
    "aya_vision cohere2_vision deepseek_vl_v2 gemma3 gemma3n gemma4 gemma4_unified glm4v"
    " glm4v_moe idefics2 idefics3 internvl internvl_chat kimi_k25 kimi_vl lfm2_vl llama4 llava"
    " llava_next llava_next_video llava_onevision ministral3 mistral3 mllama paligemma"
    " qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_5_moe"
    " qwen3_omni_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe smolvlm step3_vl video_llava"
    " vipllava voxtral"
)
#: Models of several parts whose decoder is an object inside, and attends as it does on its own.
WRAPPERS = frozenset(_WRAPPERS.split())

#: Keys under which wrappers keep their decoder.
INNER_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")

#: For files without ``model_type``.
ARCHITECTURES = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GemmaForCausalLM": "gemma",
    "GptOssForCausalLM": "gpt_oss",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


#: Keys that may change what is cached. One that is set and was not read is refused.
_SUSPECT = re.compile(
    r"kv|key_value|window|sliding|swa|latent|lora_rank|compress|mamba|ssm|conv|recurr|state_size"
    r"|linear_(?!bias)|head_dim|head_size|layer_types?|layers_block|block_type|block_config|hybrid"
    r"|chunk|cross_att|sparse|sparsity|index_|indexer|attn_type|attention_type|attention_layers"
    r"|attn_layer|full_attn|local_att|global_att|attn_config|attention_config|rope_layer|_sinks?(?:_|$)|_cla$"
    r"|multi_query|encoder_decoder|prefix_lm|bidirectional"
)
#: Suspect by name, but without effect on what any architecture caches.
_HARMLESS = frozenset(
    {
        "attention_sink_bias",
        "chunk_size_feed_forward",
        "cla_share_factor",
        "context_window_size",
        "decoder_sparse_step",
        "kv_bias",
        "layer_types_mlp",
        "mlp_layer_types",
        "prefill_chunk_size",
        "qkv_bias",
        "use_qkv_bias",
    }
)
#: Values that say "as usual" for fields that would otherwise be refused.
_NEUTRAL = {"full_attn_mod": 1, "index_topk_freq": 1}


def resolve(
    data: Mapping[str, Any],
    where: str,
    name: str,
    *,
    source: Source = Source.FILE,
    overrides: Mapping[str, int] | None = None,
    beside: tuple[str, Mapping[str, Any]] | None = None,
) -> ModelGeometry:
    """Return the geometry of the config *data*.

    Args:
        data: The parsed object.
        where: The file, for errors and provenance.
        name: What to call the model.
        source: What kind of place *data* came from.
        overrides: Values by name that win over the file's: ``layers``, ``kv_heads``, ``head_dim``
            and ``head_dim_v``.
        beside: A file of its own that says how the checkpoint is quantised, and what it holds.

    Raises:
        InputError: If the architecture, a layer kind or a field is missing, malformed or unknown.
        UsageError: If an override does not apply to this architecture.
    """
    outer = Fields(data, where, source=source, overrides=overrides)
    fields, architecture = _decoder(outer)
    family = FAMILIES.get(architecture)
    if family is None:
        fields.fail(
            "model_type",
            f"{architecture[:60]!r} is not an architecture that vmtool understands",
            hint=_similar(architecture),
        )
    fields.names = {**NAMES, **family.names}
    fields.defaults = family.defaults
    fields.architecture = architecture
    fields.mha_by_default = family.mha_by_default
    layers = layers_of(fields, family)
    _refuse_unread(fields, _without_effect(family, layers))
    for flag in set(overrides or ()) - fields.applied:
        raise UsageError(f"{FLAGS[flag]} does not apply to {architecture}: it reads no such value")
    return ModelGeometry(
        name=name,
        architecture=architecture,
        layers=layers,
        context_tokens=context(fields),
        dtype=_dtype(fields, outer),
        cache_dtype=cache_dtype(_quantization(fields, outer, beside)),
        provenance=fields.facts,
    )


def _decoder(outer: Fields) -> tuple[Fields, str]:
    """Return the fields of the part that generates text, and its ``model_type``."""
    kind = _model_type(outer)
    if outer.has("model_config"):
        return _decoder_of_mlc(outer, kind)
    fields = outer
    for _ in range(len(INNER_KEYS)):  # a thinker holds a text_config; nothing nests deeper
        inner = next((key for key in INNER_KEYS if fields.has(key)), None)
        if inner is None:
            break
        if kind not in WRAPPERS:
            outer.fail(inner, f"is not expected in {kind[:60]!r}, which is not a known wrapper")
        nested = fields.nested(inner)
        if nested is None:
            break
        _refuse_disagreement(fields, nested)
        nested.outer = fields
        fields, kind = nested, _model_type(nested)
    return fields, kind


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
    return fields.fail("model_type", "is missing, so the architecture is not known")


def _refuse_disagreement(outer: Fields, inner: Fields) -> None:
    """Fail if a wrapper and its decoder both state a deciding value, differently."""
    for key in inner.all_keys():
        if not _SUSPECT.search(key) and key not in ("num_hidden_layers", "num_attention_heads"):
            continue
        if outer.has(key) and inner.has(key) and outer.peek(key) != inner.peek(key):
            outer.fail(key, "differs from the decoder's own value")


def _without_effect(family: Family, layers: tuple[Layer, ...]) -> frozenset[str]:
    """Return keys that an architecture knows, and that these layers had no use for."""
    known = {key for keys in family.names.values() for key in keys}
    if not any(layer.tensors for layer in layers):
        known.update(NAMES["kv_heads"], NAMES["head_dim"])
    return frozenset(known) | family.harmless | _HARMLESS


def _refuse_unread(fields: Fields, harmless: frozenset[str]) -> None:
    """Fail on a set field that looks like it changes what is cached and that nothing read."""
    for key in fields.all_keys():
        if key in fields.used or key in harmless:
            continue
        value = fields.peek(key)
        if value in (None, False, 0, "", [], {}, _NEUTRAL.get(key)):
            continue
        if _SUSPECT.search(key):
            fields.fail(key, f"is set, and its effect on {fields.architecture} is not understood")


def _dtype(fields: Fields, outer: Fields) -> str | None:
    """Return the model's element type; the decoder's own statement wins over its wrapper's."""
    for place in (fields, outer):
        for key in ("dtype", "torch_dtype"):
            dtype = dtype_of(place, key)
            if dtype is not None:
                place.stated("dtype", dtype, key)
                return dtype
    return None


def _quantization(
    fields: Fields, outer: Fields, beside: tuple[str, Mapping[str, Any]] | None
) -> Iterator[Fields | None]:
    """Yield what says how the checkpoint is quantised, in the file and beside it."""
    for place in dict.fromkeys((outer, fields)):
        yield place.nested("quantization_config")
    if beside is not None:
        where, data = beside
        yield Fields(data, where, facts=fields.facts)


def _similar(architecture: str) -> str | None:
    import difflib  # noqa: PLC0415  # only needed to help with a mistake

    close = difflib.get_close_matches(architecture[:60], FAMILIES, n=3)
    return f"similar ones that it does: {', '.join(close)}" if close else None
