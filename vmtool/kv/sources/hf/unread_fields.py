"""Fields of a config that may change what is cached, but that vmtool did not read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.kv.sources.fields import Fields

# Patterns are strings here: re compiles one when it is first used, and most configs need none.

#: Keys that may change what is cached. One that is set and was not read is refused.
_SUSPECT: Final = (
    r"kv|key_value|window|sliding|swa|latent|lora_rank|compress|mamba|ssm|conv(?!ers)|recurr"
    r"|state_size|linear_(?!bias|beta)|head_dim|head_size|layer_types?|layers_block|block_type"
    r"|block_config|hybrid|chunk|cross_att|sparse|sparsity|index_|indexer|attn_type|attention_type"
    r"|attention_layers|attn_layer|full_attn|local_att|global_att|attn_config|attention_config"
    r"|attention_other|per_layer_config|rope_layer|_sinks?(?:_|$)|_cla$|multi_query"
    r"|encoder_decoder|prefix_lm|bidirectional|hidden_layers|attention_heads|attention_groups"
    r"|cache|cross_layer|(?:^|_)loops?(?:_|$)|ut_steps|recursi|reuse"
)
#: Suspect by name, but without effect on what any architecture caches.
_HARMLESS: Final = frozenset(
    {
        "activation_situ_linear_beta",
        "add_qkv_bias",
        "attention_sink_bias",
        "cache_implementation",
        "chunk_size_feed_forward",
        "cla_share_factor",
        "context_window_size",
        "decoder_sparse_step",
        "indexer_rope_interleave",
        "kv_bias",
        "layer_types_mlp",
        "learnable_sink",
        "learnable_sink_init",
        "mlp_layer_types",
        "prefill_chunk_size",
        "qkv_bias",
        "seconds_per_chunk",
        "share_encoder_decoder_embeddings",
        "shared_expert_sink",
        "tie_encoder_decoder",
        "use_cache",
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
_OTHER_PARTS: Final = (
    r"^(?:vision|image|video|audio|mm|speech|vit|projector|connector|resampler|perceiver|qformer"
    r"|encoder|num_encoder|mtp|num_mtp|talker|token2wav|code2wav|codec|vq|acoustic|semantic|depth"
    r"|latent_query)_"
    r"|_(?:vision|image|audio|speech)(?:_|$)"
)
#: What the config of a part says of it, each of which has several.
_PART_SIZES: Final = (
    r"(?:hidden|intermediate|embed\w*|model|mlp|ffn|image|patch|crop|vocab)_?(?:size|dim)|layers?$|depth"
    r"|heads$|experts|channels|mel_bins|width|^d_|kernel|act|eps|top_?k"
)
#: Keys about mixtures of experts, which cache nothing.
_EXPERTS: Final = r"(?:^|_)(?:moe|experts?|router)(?:_|$)"
#: What other programs call the fields of a config, and the usual name.
_SYNONYMS: Final = {
    name: usual
    for usual, names in {
        "head_dim": "attention_dim attn_head_dim d_head dim_head dim_per_head head_width hidden_size_per_head"
        " key_dim size_per_head",
        "v_head_dim": "d_v v_dim value_dim",
        "num_key_value_heads": "gqa_groups n_groups num_groups num_local_heads num_query_groups",
        "num_hidden_layers": "block_count depth layers n_blocks nlayers num_blocks num_layer"
        " num_decoder_layers",
        "num_attention_heads": "attn_heads nheads num_head num_q_heads",
        "hidden_size": "d_model_size dim embedding_length model_dim n_embed width",
        "sliding_window": "attention_span attn_span local_size lookback span",
        "layer_types": "kinds layer_kinds layer_pattern mixer_types pattern",
        "num_kv_shared_layers": "num_shared_layers shared_layers",
        "sliding_window_pattern": "global_every global_interval local_global_ratio",
        "full_attention_interval": "attention_interval attn_every interval",
    }.items()
    for name in names.split()
}
#: Words that may change the cache of a type that is not known: of groups, of patterns, of layers that
#: run several times, of parts of a head, and the names that known types give to such fields.
_SUSPECT_IF_UNKNOWN: Final = (
    r"(?:^|_)(?:groups?|patterns?|mixers?|loops?|ut_steps?|mla|gqa|mqa|spans?|variants?|intervals?"
    r"|every|lookback|per_head|d_head|dim_head|head_width|nope|idx|local|global|shared_layers|kinds"
    r"|recursions?|recursive|reuse|memory)(?:_|$)"
    r"|(?:^|_)(?:k|v|q|key|value)_dims?$|^d_(?:k|v|q|key|value|inner)$"
    r"|^(?:attention|attn)_(?!bias|.*_bias|dropout|probs_dropout|.*multiplier|scal|softmax_in_fp32|.*soft_?cap|norm"
    r"|implementation|factor|pdrop|output_gate|temperature)"
    r"|^cca_|^(?:expand|kda_layers|layers|shift_count|new_decoder_architecture)$"
    r"|^(?:decoder_layers|num_blocks|num_decoder_layers|num_layers_per_stack|num_transformer_layers)$"
    r"|^(?:emb_dim|embed_dim|embedding_dim|model_dim|n_input_layers|n_output_layers)$"
    r"|^(?:kimia_mimo_layers|num_adapters)$"
)
#: What a wrapper may say of how often its decoder runs.
_WRAPPER_LOOPS: Final = r"(?:^|_)(?:loops?|ut_steps?|recursions?)(?:_|$)"
#: Such words of fields about experts and positions.
_HARMLESS_IF_UNKNOWN: Final = frozenset(
    {"layer_rope_theta", "n_group", "rope_scaling_layers", "topk_group"}
)
_CAPITAL: Final = r"(?<=[a-z0-9])(?=[A-Z])"


def refuse_unread(fields: Fields, harmless: frozenset[str], *, is_known: bool = True) -> None:
    """Fail on a set field that looks like it changes what is cached and that nothing read.

    Objects and lists inside are searched too: those that were opened like the config itself, others
    whole. Of a type that is not known, more looks like it: what any known type reads, and every list
    with an entry for each layer.
    """
    for part in _parts(fields):
        absent = part.absent()
        for key in part.all_keys():
            if key in part.used:
                continue
            value = part.peek(key)
            is_part = is_named_part(key) and _describes_part(value)
            known = absent
            if is_part or key in _HARMLESS:
                known = frozenset(filter(_is_other, absent))
            paths = list(_displaced(key, value, known, known & part.true_if_absent))
            if _is_other(key) and not paths:
                continue
            if key not in harmless:
                paths += _suspects(key, value, harmless)
                if not is_known and not paths:
                    paths += _suspects_of_unknown(fields, key, value)
            if paths:
                part.fail(
                    paths[0], f"is set, and its effect on {fields.architecture} is not understood"
                )


def _snake(key: str) -> str:
    """Return *key* as most configs write it: ``headDim`` and ``head-dim`` are ``head_dim``."""
    return re.sub(r"[^a-z0-9]", "_", re.sub(_CAPITAL, "_", key).lower()).lstrip("_")


def _squash(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())


def _is_unset(value: Any) -> bool:
    return value in (None, False, 0, "", [], {})


def _displaced(
    key: str, value: Any, absent: frozenset[str], true_if_absent: frozenset[str]
) -> Iterator[str]:
    """Yield *key* if it looks like one of the *absent* keys that were read, renamed or moved.

    That it is false matters where the absent key means true.
    """
    if value is False:
        absent = true_if_absent
    elif _is_unset(value):
        return
    if isinstance(value, (dict, list)) and not _is_model(value):
        set_names, false_names = (set(map(_squash, names)) for names in (absent, true_if_absent))
        for path, inner, item in _inner(key, value):
            names = false_names if item is False else set_names
            if _squash(inner) in names and (item is False or not _is_unset(item)):
                yield path
    if isinstance(value, dict):
        return
    snake, squash = _snake(key), _squash(key)
    if (
        _SYNONYMS.get(snake) in absent
        or any(_is_inside(name, key) or _is_inside(name, snake) for name in absent)
        or any(_squash(name) == squash for name in absent)
    ):
        yield key


def _inner(key: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the path, name and value of every entry of the objects in *value*, at any depth."""
    waiting = [(key, value)]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, dict):
            for name, inner in item.items():
                path = f"{place}.{name}"
                yield path, str(name), inner
                if isinstance(inner, (dict, list)) and not _is_model(inner):
                    waiting.append((path, inner))
        elif isinstance(item, list):
            waiting += [
                (f"{place}[{i}]", inner)
                for i, inner in enumerate(item)
                if isinstance(inner, (dict, list))
            ]


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
        suspects = [*_suspects(key, value, frozenset())]
        if not isinstance(value, (dict, list)) and re.search(_WRAPPER_LOOPS, _snake(key)):
            suspects.append(key)
        if _is_unset(value) or not suspects:
            continue
        if inner.has(key):
            outer.fail(key, "differs from the decoder's own value")
        outer.fail(key, "is set beside the decoder's config, and its effect is not understood")


def _is_other(key: str) -> bool:
    """Return whether *key* has no effect on the decoder's cache."""
    return key in _HARMLESS or key in _OTHER_OBJECTS or is_named_part(key)


def is_named_part(key: str) -> bool:
    """Return whether *key* is named after what is not the decoder's attention."""
    snake = _snake(key)
    return re.search(_OTHER_PARTS, snake) is not None or re.search(_EXPERTS, snake) is not None


def _is_model(value: Any) -> bool:
    """Return whether *value* is the config of another model inside."""
    return isinstance(value, dict) and "model_type" in value


def _describes_part(value: Any) -> bool:
    """Return whether *value* says enough of another part of the model to be about it.

    An object such as ``{"num_key_value_heads": 8}`` does not, whatever it is called.
    """
    if not isinstance(value, dict):
        return False
    return (
        "model_type" in value or sum(re.search(_PART_SIZES, key) is not None for key in value) > 1
    )


def _is_part(key: str, value: Any) -> bool:
    """Return whether *value* is the config of another part of the model."""
    return isinstance(value, dict) and (key.endswith("_config") or "model_type" in value)


def _suspects(key: str, value: Any, harmless: frozenset[str]) -> Iterator[str]:
    """Yield the paths in *key* that are suspect and set, in objects and lists at any depth."""
    waiting = [(key, key, value)]
    while waiting:
        path, name, item = waiting.pop()
        if _is_unset(item):
            continue
        if name in _NEUTRAL and all(
            one == _NEUTRAL[name] for one in (item if isinstance(item, list) else [item])
        ):
            continue
        if path != key and (name in harmless or _is_other(name)):
            continue
        if re.search(_SUSPECT, _snake(name)):
            yield path
        elif isinstance(item, dict):
            waiting += [(f"{path}.{inner}", str(inner), one) for inner, one in item.items()]
        elif isinstance(item, list):
            waiting += [
                (f"{path}[{i}].{inner}", str(inner), one)
                for i, entry in enumerate(item)
                if isinstance(entry, dict)
                for inner, one in entry.items()
            ]


def _suspects_of_unknown(fields: Fields, key: str, value: Any) -> Iterator[str]:
    """Yield the paths in *key* that may change the cache of a type that is not known."""
    fact = fields.facts.get("layers")
    layers = 0 if fact is None else int(fact.value)
    for path, name, item in [(key, key, value), *_inner(key, value)]:
        snake = _snake(name)
        if _is_unset(item) or _is_other(name) or snake in _HARMLESS_IF_UNKNOWN:
            continue
        is_of_layers = isinstance(item, list) and len(item) == layers > 1
        if is_of_layers or snake in _SYNONYMS or re.search(_SUSPECT_IF_UNKNOWN, snake):
            yield path
