"""Fields of a config that look as if they changed what is cached, and that nothing read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vmtool.kv.sources.fields import Fields

#: Keys that may change what is cached. One that is set and was not read is refused.
_SUSPECT: Final = re.compile(
    r"kv|key_value|window|sliding|swa|latent|lora_rank|compress|mamba|ssm|conv(?!ers)|recurr"
    r"|state_size|linear_(?!bias|beta)|head_dim|head_size|layer_types?|layers_block|block_type"
    r"|block_config|hybrid|chunk|cross_att|sparse|sparsity|index_|indexer|attn_type|attention_type"
    r"|attention_layers|attn_layer|full_attn|local_att|global_att|attn_config|attention_config"
    r"|attention_other|per_layer_config|rope_layer|_sinks?(?:_|$)|_cla$|multi_query"
    r"|encoder_decoder|prefix_lm|bidirectional|hidden_layers|attention_heads|attention_groups"
)
#: Suspect by name, but without effect on what any architecture caches.
_HARMLESS: Final = frozenset(
    {
        "activation_situ_linear_beta",
        "add_qkv_bias",
        "attention_sink_bias",
        "chunk_size_feed_forward",
        "cla_share_factor",
        "context_window_size",
        "decoder_sparse_step",
        "indexer_rope_interleave",
        "kv_bias",
        "layer_types_mlp",
        "mlp_layer_types",
        "prefill_chunk_size",
        "qkv_bias",
        "seconds_per_chunk",
        "share_encoder_decoder_embeddings",
        "shared_expert_sink",
        "tie_encoder_decoder",
        "use_qkv_bias",
    }
)
#: Values that say "as usual" for fields that would otherwise be refused, also one for each layer.
_NEUTRAL: Final = {"attn_type_list": 1, "full_attn_mod": 1, "index_topk_freq": 1}
#: Objects that say nothing about the decoder's cache, whatever the names in them.
_OTHER_OBJECTS: Final = frozenset(
    {"auto_map", "id2label", "label2id", "pruned_heads", "quantization", "quantization_config"}
    | {"rope_parameters", "rope_scaling", "task_specific_params", "transformers.js_config"}
)
#: Keys of a wrapper that are about what it adds to its decoder.
_OTHER_PARTS: Final = re.compile(
    r"^(?:vision|image|video|audio|mm|speech|vit|projector|connector|resampler|perceiver|qformer"
    r"|encoder|num_encoder|mtp|num_mtp|talker|token2wav|code2wav|codec|vq|acoustic|semantic|depth"
    r"|latent_query)_"
    r"|_(?:vision|image|audio|speech)(?:_|$)"
)
#: Keys about mixtures of experts, which cache nothing.
_EXPERTS: Final = re.compile(r"(?:^|_)(?:moe|experts?|router)(?:_|$)")
_DEEPEST: Final = 4


def refuse_unread(fields: Fields, harmless: frozenset[str]) -> None:
    """Fail on a set field that looks like it changes what is cached and that nothing read.

    Objects inside are searched too: those that were opened like the config itself, others whole.
    """
    for part in _parts(fields):
        absent = part.absent()
        for key in part.all_keys():
            if key in part.used:
                continue
            known = frozenset(filter(_is_other, absent)) if _is_other(key) else absent
            paths = list(_displaced(key, part.peek(key), known))
            if _is_other(key) and not paths:
                continue
            if key not in harmless:
                paths += _suspects(key, part.peek(key), harmless)
            if paths:
                part.fail(
                    paths[0], f"is set, and its effect on {fields.architecture} is not understood"
                )


def _displaced(key: str, value: Any, absent: frozenset[str]) -> Iterator[str]:
    """Yield *key* if it looks like one of the *absent* keys that were read, renamed or moved."""
    if value in (None, False, 0, "", [], {}):
        return
    if isinstance(value, dict):
        if not _is_part(key, value):
            yield from (f"{key}.{inner}" for inner in value if inner in absent)
    elif any(_is_inside(name, key) for name in absent):
        yield key


def _is_inside(name: str, key: str) -> bool:
    """Return whether *key* is *name* with words before or after it."""
    return "_" in name and (key.startswith(f"{name}_") or key.endswith(f"_{name}"))


def _parts(fields: Fields) -> Iterator[Fields]:
    yield fields
    for part in fields.opened:
        yield from _parts(part)


def refuse_of_wrapper(outer: Fields, inner: Fields, harmless: frozenset[str]) -> None:
    """Fail if a wrapper says something about the cache that its decoder does not say as well."""
    for key in outer.all_keys():
        value = outer.peek(key)
        if (
            key in harmless
            or key == "is_encoder_decoder"
            or _is_other(key)
            or _is_part(key, value)
            or inner.peek(key) == value
        ):
            continue
        if next(_suspects(key, value, frozenset()), None) is None:
            continue
        if inner.has(key):
            outer.fail(key, "differs from the decoder's own value")
        outer.fail(key, "is set beside the decoder's config, and its effect is not understood")


def _is_other(key: str) -> bool:
    """Return whether *key* has no effect on the decoder's cache."""
    return (
        key in _HARMLESS
        or key in _OTHER_OBJECTS
        or _OTHER_PARTS.search(key) is not None
        or _EXPERTS.search(key) is not None
    )


def _is_part(key: str, value: Any) -> bool:
    """Return whether *value* is the config of another part of the model."""
    return isinstance(value, dict) and (key.endswith("_config") or "model_type" in value)


def _suspects(key: str, value: Any, harmless: frozenset[str], depth: int = 0) -> Iterator[str]:
    """Yield the paths in *key* that are suspect and set."""
    if value in (None, False, 0, "", [], {}):
        return
    if key in _NEUTRAL and all(
        item == _NEUTRAL[key] for item in (value if isinstance(value, list) else [value])
    ):
        return
    if _SUSPECT.search(key):
        yield key
    elif isinstance(value, dict) and depth < _DEEPEST:
        yield from _inside(key, value, harmless, depth)


def _inside(
    key: str, value: Mapping[str, Any], harmless: frozenset[str], depth: int
) -> Iterator[str]:
    for inner, item in value.items():
        if inner not in harmless and not _is_other(inner):
            for path in _suspects(str(inner), item, harmless, depth + 1):
                yield f"{key}.{path}"
