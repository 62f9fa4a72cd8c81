"""Architectures whose file says, layer by layer, which heads a layer has or what it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Layer, LayerKind, pair
from vmtool.kv.sources.fields import MAX_LAYERS
from vmtool.kv.sources.hf.attention import grouped, head_dim, head_dim_v, heads, unpacked_index

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

_NONE = Layer(0, LayerKind.NONE)


def step3p5(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Step 3.5: ``attention_other_setting`` gives the heads of the layers with a window."""
    other = fields.nested("attention_other_setting")
    if other is None:
        return layers
    other.raw("attention_type")
    other.raw("num_attention_heads")
    count, dim = other.optional("num_attention_groups"), other.optional("head_dim")
    if other.has("true_head_dim") or other.text("attention_type") not in (
        None,
        "sliding_attention",
    ):
        fields.fail("attention_other_setting", "does not apply to layers with a window")
    return tuple(
        replace(
            layer,
            tensors=tuple(
                replace(t, heads=count or t.heads, dim=dim or t.dim) for t in layer.tensors
            ),
        )
        if layer.kind is LayerKind.WINDOW
        else layer
        for layer in layers
    )


def minimax_m3(fields: Fields) -> tuple[Layer, ...]:
    """MiniMax-M3: K and V in every layer, and an index key in those with sparse attention.

    Its published file has ``sparse_attention_config``, and transformers writes ``layer_types``.
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    tensors = grouped(fields, LayerKind.FULL)
    config = fields.nested("sparse_attention_config", whole=True)
    if config is not None and config.flag("use_sparse_attention", default=True):
        sparse = config.integers("sparse_attention_freq", length=count, high=1)
        values = config.integers("sparse_disable_index_value", length=count, high=1)
        if sparse is None:
            config.fail("sparse_attention_freq", "is missing: it says which layers are sparse")
        dim = config.checked("sparse_index_dim", config.raw("sparse_index_dim"))
    else:
        listed = fields.items("layer_types", length=count) or []
        for i, name in enumerate(listed):
            if name not in ("full_attention", "minimax_m3_sparse"):
                fields.fail(f"layer_types[{i}]", f"{str(name)[:40]!r} is not understood")
        sparse, values = [int(name == "minimax_m3_sparse") for name in listed], None
        dim = fields.optional("index_dim") or 0
    if sparse and any(sparse) and not dim:
        fields.fail("index_head_dim", "is missing: it gives the keys of the sparse layers")
    if values and any(is_sparse and not off for is_sparse, off in zip(sparse, values, strict=True)):
        fields.fail("sparse_attention_config", "keeps index values, which are not understood")
    key = unpacked_index(dim) if dim else None
    return tuple(
        Layer(
            i,
            LayerKind.FULL,
            (*tensors, key) if key is not None and i < len(sparse) and sparse[i] else tensors,
        )
        for i in range(count)
    )


def block_configs(fields: Fields) -> tuple[Layer, ...]:
    """Nemotron NAS: each block says how many query heads share a KV head, or that it has none."""
    count = fields.integer("layers", high=MAX_LAYERS)
    blocks = fields.items("block_configs", length=count)
    if blocks is None:
        fields.fail("block_configs", "is missing: it says which layers attend")
    query, dim = heads(fields), head_dim(fields)
    dim_v = head_dim_v(fields, dim)
    if fields.has("num_key_value_heads"):
        fields.fail("num_key_value_heads", "must be null where block_configs gives the heads")
    fields.raw("num_key_value_heads")
    layers = []
    for i, block in enumerate(blocks):
        if not isinstance(block, dict):
            fields.fail(f"block_configs[{i}]", "must be an object")
        attention = fields.wrap(block, f"block_configs[{i}].").nested("attention")
        if attention is None:
            fields.fail(f"block_configs[{i}].attention", "is missing")
        layers.append(_block_layer(attention, i, query, dim, dim_v))
    fields.stated("layer_kinds", f"{count} blocks", "block_configs")
    fields.derived(
        "kv_heads", "per layer", f"heads / n_heads_in_group = {query} / n_heads_in_group"
    )
    return tuple(layers)


def _block_layer(attention: Fields, index: int, query: int, dim: int, dim_v: int) -> Layer:
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return replace(_NONE, index=index)
    for key in ("num_sink_tokens", "sparsify", "window_length"):
        if attention.has(key):
            attention.fail(key, "is not null, and what it keeps is not understood")
    if attention.flag("unshifted_sink"):
        attention.fail("unshifted_sink", "is true, and what it keeps is not understood")
    group = attention.checked("n_heads_in_group", attention.raw("n_heads_in_group"))
    if query % group:
        attention.fail("n_heads_in_group", f"is {group}, which does not divide {query} heads")
    return Layer(index, LayerKind.FULL, pair(query // group, dim, dim_v))


def heads_per_layer(fields: Fields) -> tuple[Layer, ...]:
    """OpenELM and DeciLM: a list gives the KV heads of each layer."""
    key = fields.names["kv_heads"][0]
    dim = head_dim(fields)
    count = fields.integer("layers", high=MAX_LAYERS)
    per_layer = fields.integers(key, length=count, low=1)
    if per_layer is None:
        fields.fail(key, "is missing: it gives the KV heads of each layer")
    fields.stated("kv_heads", "per layer", key)
    dim_v = head_dim_v(fields, dim)
    return tuple(Layer(i, LayerKind.FULL, pair(kv, dim, dim_v)) for i, kv in enumerate(per_layer))
