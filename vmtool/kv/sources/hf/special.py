"""Architectures whose layers differ one by one, or keep more than K and V."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    Span,
    StatePart,
    StateTensor,
    Tensor,
    TensorRole,
    pair,
)
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf.attention import grouped, head_dim, head_dim_v, heads

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

_NONE = Layer(0, LayerKind.NONE)


def share_last(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Gemma 3n and 4: the last ``num_kv_shared_layers`` read an earlier layer's K and V.

    Each reads the last layer before them that is of its own kind.
    """
    shared = fields.optional("shared_layers", low=0, high=MAX_LAYERS) or 0
    if not shared:
        return layers
    first = len(layers) - shared
    if first < 1:
        fields.fail("num_kv_shared_layers", f"is {shared}, but there are {len(layers)} layers")
    own = {layer.kind: layer.index for layer in layers[:first]}
    result = list(layers[:first])
    for layer in layers[first:]:
        if layer.kind not in own:
            fields.fail(
                "num_kv_shared_layers",
                f"is {shared}: no earlier layer is {layer.kind.value}, as layer {layer.index} is",
            )
        result.append(Layer(layer.index, LayerKind.SHARED, shares=own[layer.kind]))
    return tuple(result)


def t5(fields: Fields) -> tuple[Layer, ...]:
    """T5: as many decoder layers as the encoder has, unless ``num_decoder_layers`` says otherwise."""
    count = fields.optional("layers", high=MAX_LAYERS)
    if count is None:
        count = fields.integer("encoder_layers", high=MAX_LAYERS)
        fields.derived("layers", count, "the decoder has as many as the encoder")
    tensors = grouped(fields, LayerKind.FULL)
    return encoder_cross(fields, tuple(Layer(i, LayerKind.FULL, tensors) for i in range(count)))


def encoder_cross(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """A decoder beside an encoder also keeps K and V of all that this was given, once per sequence.

    That is Whisper's number of frames, and in a model of text the longest input.
    """
    frames = Extent(Span.FIXED, fields.integer("frames", high=MAX_TOKENS))
    return tuple(
        replace(
            layer,
            tensors=layer.tensors
            + tuple(replace(t, name=f"cross_{t.name}", extent=frames) for t in layer.tensors),
        )
        for layer in layers
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


def mllama(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Llama 3.2 Vision: its cross layers keep K and V of one image's patches."""
    tensors = grouped(fields, kind)
    if kind is not LayerKind.CROSS:
        return tensors
    vision = fields.outer.nested("vision_config") if fields.outer else None
    if vision is None:
        fields.fail("cross_attention_layers", "needs vision_config, which gives the patches")
    size, patch, tiles = (
        vision.checked(key, vision.raw(key))
        for key in ("image_size", "patch_size", "max_num_tiles")
    )
    patches = tiles * ((size // patch) ** 2 + 1)
    fields.derived("cross_tokens", patches, "one image: tiles x ((image / patch)^2 + 1)")
    held = Extent(Span.FIXED, patches)
    return tuple(replace(t, name=f"cross_{t.name}", extent=held) for t in tensors)


def mllama_plan(fields: Fields, layers: int) -> list[LayerKind]:
    """Llama 3.2 Vision: ``cross_attention_layers`` lists the layers that see only the image."""
    cross = fields.integers("cross_attention_layers", high=layers - 1)
    if cross is None:
        fields.fail("cross_attention_layers", "is missing: it says which layers see the image")
    kinds = [LayerKind.FULL] * layers
    for i in cross:
        kinds[i] = LayerKind.CROSS
    return kinds


def deepseek_v4(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4: a window of latents in every layer, and one entry for every *ratio* tokens.

    Layers of ratio 4 pool overlapping pairs of groups and index the entries; the open groups wait
    in fp32 (vLLM's compressor state: rows of key and gate, two groups of two halves at ratio 4).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    ratios = fields.integers("compress_ratios")
    if ratios is None:
        fields.fail("compress_ratios", "is missing: it says how each layer compresses")
    # Entries past the layers belong to the extra layers that predict further tokens.
    if len(ratios) < count:
        fields.fail("compress_ratios", f"has {len(ratios)} entries for {count} layers")
    fields.stated("layer_kinds", f"{count} ratios", "compress_ratios")
    dim, rope = fields.integer("head_dim"), fields.integer("qk_rope_head_dim")
    window = Extent(Span.WINDOW, fields.integer("window", high=MAX_TOKENS))
    if fields.integer("kv_heads") != 1:
        fields.fail("num_key_value_heads", "must be 1: K and V are one row for all heads")
    recent = Tensor("window", TensorRole.LATENT, 1, dim, window, rope)
    index = fields.integer("index_head_dim")
    made = {
        0: Layer(0, LayerKind.WINDOW, (recent,)),
        4: Layer(
            0,
            LayerKind.COMPRESSED,
            (
                recent,
                Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=4), rope),
                Tensor("index", TensorRole.INDEX, 1, index, Extent(ratio=4)),
            ),
            (_open_groups("open", 8, 4 * dim), _open_groups("open_index", 8, 4 * index)),
        ),
        128: Layer(
            0,
            LayerKind.COMPRESSED,
            (recent, Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=128), rope)),
            (_open_groups("open", 128, 2 * dim),),
        ),
    }
    for i, ratio in enumerate(ratios[:count]):
        if ratio not in made:
            fields.fail(f"compress_ratios[{i}]", f"is {ratio}; known ratios are 0, 4 and 128")
    return tuple(replace(made[ratio], index=i) for i, ratio in enumerate(ratios[:count]))


def _open_groups(name: str, rows: int, width: int) -> StateTensor:
    return StateTensor(name, (StatePart(1, rows * width, replicates=True),), "fp32")
