"""Layers that their kind alone does not describe: shared, repeated, or stated one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, Span, TensorRole, pair
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf.attention_tensors import (
    grouped,
    head_dim,
    head_dim_v,
    heads,
    unpacked_index,
)
from vmtool.kv.sources.hf.layer_kinds import named

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def share_last(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Gemma 3n and 4: the last ``num_kv_shared_layers`` read an earlier layer's K and V.

    Each reads the last layer before them that is of its own kind.
    """
    shared = fields.optional("shared_layers", low=0, high=MAX_LAYERS) or 0
    if not shared:
        return layers
    first = len(layers) - shared
    if first == 0:
        fields.fail(
            "num_kv_shared_layers",
            f"is {shared}, all layers: the model reads the cache of another one and keeps none",
        )
    if first < 0:
        fields.fail("num_kv_shared_layers", f"is {shared}, but there are {len(layers)} layers")
    own = {layer.kind: layer.index for layer in layers[:first]}
    result = list(layers[:first])
    for layer in layers[first:]:
        if layer.kind not in own:
            fields.fail(
                "num_kv_shared_layers",
                f"is {shared}: layer {layer.index} is {layer.kind.value}, and no earlier layer is",
            )
        result.append(Layer(layer.index, LayerKind.SHARED, shares=own[layer.kind]))
    return tuple(result)


def phi4flash(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Phi-4-mini-flash: later layers that attend read K and V of the one after the middle."""
    if len(layers) % 4:
        fields.fail("num_hidden_layers", f"is {len(layers)}; it must be a multiple of 4")
    source = len(layers) // 2 + 1
    return tuple(
        Layer(layer.index, LayerKind.SHARED, shares=source)
        if layer.index > source and layer.kind is LayerKind.FULL
        else layer
        for layer in layers
    )


def shared_indexes(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Sparse attention: layers that take an earlier layer's choice keep no index of their own.

    ``indexer_types``, or else ``index_topk_pattern`` or the frequency from which transformers'
    ``GlmMoeDsaConfig`` and vLLM's ``DeepseekV2MLAAttention`` derive it. Mistral Large 4 also has
    layers without positions, and layers that read an earlier layer's latent.
    """
    count = len(layers)
    shared = _shared_choice(fields, count)
    rope = fields.integers("no_rope_layers", length=count, high=1) or [1] * count
    sources = fields.integers("kv_source_layers", length=count, high=count - 1) or list(
        range(count)
    )
    result = []
    for layer, is_shared, has_rope, source in zip(layers, shared, rope, sources, strict=True):
        if source != layer.index:
            result.append(Layer(layer.index, LayerKind.SHARED, shares=source))
            continue
        tensors = tuple(
            replace(t, dim=t.dim - t.rope_dim, rope_dim=0) if not has_rope else t
            for t in layer.tensors
            if not (is_shared and t.role is TensorRole.INDEX)
        )
        result.append(replace(layer, tensors=tensors))
    return tuple(result)


def _shared_choice(fields: Fields, count: int) -> list[bool]:
    kinds = fields.items("indexer_types", length=count)
    pattern = fields.raw("index_topk_pattern")
    frequency = fields.optional("index_topk_freq") or 1
    offset = fields.optional("index_skip_topk_offset", low=0)
    if kinds is None and pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - {"F", "S"}:
            fields.fail("index_topk_pattern", f"must say F or S for each of {count} layers")
        kinds = ["shared" if letter == "S" else "full" for letter in pattern]
    if kinds is None:
        first = 2 if offset is None else offset
        return [max(i - first + 1, 0) % frequency != 0 for i in range(count)]
    for i, kind in enumerate(kinds):
        if kind not in ("full", "shared"):
            fields.fail(f"indexer_types[{i}]", f"{str(kind)[:40]!r} is not understood")
    return [kind == "shared" for kind in kinds]


def looped(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Inkling 2 Loop: layers in the middle run several times, and each run has its own cache."""
    passes = fields.optional("loop_num_passes")
    if passes is None:
        return layers
    start = fields.integer("loop_layer_index_start", high=len(layers))
    end = fields.integer("loop_layer_index_end", high=len(layers))
    if start > end or len(layers) + (passes - 1) * (end - start) > MAX_LAYERS:
        fields.fail("loop_num_passes", f"is {passes} over layers {start} to {end}")
    again = layers[start:end] * (passes - 1)
    return tuple(replace(layer, index=i) for i, layer in enumerate((*layers, *again)))


def nanbeige(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Nanbeige: all layers run ``num_loops`` times, each with K and V of its own."""
    loops = fields.optional("num_loops", high=64) or 2
    if len(layers) * loops > MAX_LAYERS:
        fields.fail("num_loops", f"is {loops} over {len(layers)} layers")
    return tuple(replace(layer, index=i) for i, layer in enumerate(layers * loops))


def loopcoder(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """IQuest LoopCoder: all layers run ``loop_num`` times, after the first with a window.

    ``LoopCoderAttention`` in vLLM's ``iquest_loopcoder.py``.
    """
    loops = fields.optional("loop_num", high=64) or 2
    window = Extent(Span.WINDOW, fields.optional("loop_window_size", high=MAX_TOKENS) or 64)
    again = tuple(
        replace(
            layer,
            kind=LayerKind.WINDOW,
            tensors=tuple(replace(tensor, extent=window) for tensor in layer.tensors),
        )
        for layer in layers
    )
    return tuple(replace(layer, index=i) for i, layer in enumerate(layers + again * (loops - 1)))


def dory(fields: Fields) -> tuple[Layer, ...]:
    """Dory: attention and MLP are layers of their own, and those in the middle run several times.

    Each run keeps K and V of its own (``recurrent_kv_cache_mode``).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    kinds = named(
        fields,
        "layer_types",
        count,
        {
            "full_attention": LayerKind.FULL,
            "sliding_attention": LayerKind.WINDOW,
            "mlp": LayerKind.NONE,
        },
    )
    if not kinds:
        fields.fail("layer_types", "is missing: it says which layers attend")
    mode = fields.text("recurrent_kv_cache_mode")
    if mode not in (None, "per_loop"):
        fields.fail("recurrent_kv_cache_mode", f"{mode[:40]!r} is not understood; known: per_loop")
    first = fields.optional("n_input_layers", low=0, high=count) or 0
    last = fields.optional("n_output_layers", low=0, high=count) or 0
    loops = fields.optional("n_recurrent_loops") or 1
    fields.raw("n_recurrent_layers")
    if first + last > count:
        fields.fail("n_output_layers", f"and n_input_layers are more than the {count} layers")
    if loops * count > MAX_LAYERS:
        fields.fail("n_recurrent_loops", f"is {loops}: no model runs {loops * count} layers")
    order = kinds[:first] + kinds[first : count - last] * loops + kinds[count - last :]
    made = {
        kind: grouped(fields, kind) if kind is not LayerKind.NONE else () for kind in set(kinds)
    }
    fields.stated("layer_kinds", f"{len(order)} with repeated runs", "layer_types")
    return tuple(Layer(i, kind, made[kind]) for i, kind in enumerate(order))


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
        return Layer(index, LayerKind.NONE)
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


def granite_switch(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Granite Switch: the first layers choose the adapter of each token, with one KV head each.

    Its first switch is one layer. The later one has a layer that counts adapters' tokens and one
    whose keys are words of a code; only files with it state ``ms_code_m``.
    """
    fields.raw("switch_head_dim")  # for tests of the switch alone
    fields.raw("projection_head_dim")
    if not fields.optional("adapters", low=0):
        return layers
    dim = fields.optional("projection_head_dim") or head_dim(fields)
    code = fields.optional("ms_code_m", high=20)
    kind = fields.text("switch_type") or ("single" if code is None else "multi")
    if kind not in ("single", "multi"):
        fields.fail("switch_type", f"{kind[:40]!r} is not understood; known: single, multi")
    counting = fields.optional("ms_counting_head_dim") or 32
    word = max(dim, 2 ** (code or 6), 32)
    dims = [dim] if kind == "single" else [max(counting, 32), word]
    if len(layers) <= len(dims):
        fields.fail(
            "num_hidden_layers", f"is {len(layers)}, but the switch alone takes {len(dims)}"
        )
    fields.derived(
        "switch_layers", len(dims), f"switch_type is {kind}: one KV head each, head_dim {dims}"
    )
    switch = tuple(Layer(i, LayerKind.FULL, pair(1, dim, dim)) for i, dim in enumerate(dims))
    return switch + layers[len(dims) :]


def kimi_audio(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Kimi-Audio: the layers of its branch for audio follow those for text, and keep as much."""
    branch = fields.optional("audio_layers", low=0, high=MAX_LAYERS) or 0
    again = tuple(replace(layers[0], index=len(layers) + i) for i in range(branch))
    return layers + again
