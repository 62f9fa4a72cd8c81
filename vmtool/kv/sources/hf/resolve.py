"""From a Hugging Face config to a geometry, refusing whatever is not understood."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vmtool.errors import UsageError
from vmtool.kv.geometry import Layer, ModelGeometry, Source
from vmtool.kv.sources.fields import FLAGS, Fields
from vmtool.kv.sources.hf.attention import context
from vmtool.kv.sources.hf.family import NAMES, Family, layers_of
from vmtool.kv.sources.hf.quantization import cache_dtype
from vmtool.kv.sources.hf.registry import ARCHITECTURES, FAMILIES, INNER_KEYS, WRAPPERS
from vmtool.kv.sources.hf.state import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
