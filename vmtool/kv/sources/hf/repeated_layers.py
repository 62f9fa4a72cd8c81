"""Architectures that run some layers several times: each run has a cache of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, Span
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf.attention import grouped
from vmtool.kv.sources.hf.layer_kinds import named

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


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
