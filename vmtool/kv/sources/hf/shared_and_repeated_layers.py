"""Layers that read an earlier layer's cache, and layers that run several times with a cache each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, Span, TensorRole
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf.attention_tensors import grouped
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
