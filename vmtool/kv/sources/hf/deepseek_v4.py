"""DeepSeek-V4 and V4.1: windows, compressed entries, index keys, open groups and draft layers."""

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
)
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def deepseek_v4(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4: a window of latents in every layer, and one entry for every *ratio* tokens.

    Layers of ratio 4 pool overlapping pairs of groups and index the entries; the open groups wait
    in fp32 (vLLM's compressor state: rows of key and gate, two groups of two halves at ratio 4).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    ratios = _ratios(fields)
    if len(ratios) < count:
        fields.fail("compress_ratios", f"has {len(ratios)} entries for {count} layers")
    fields.stated("layer_kinds", f"{count} ratios", "compress_ratios")
    if fields.integer("kv_heads") != 1:
        fields.fail("num_key_value_heads", "must be 1: K and V are one row for all heads")
    rope = fields.integer("qk_rope_head_dim", high=fields.integer("head_dim"))
    return deepseek_v4_layers(fields, ratios[:count], rope)


def deepseek_v4_mtp(fields: Fields, count: int) -> tuple[Layer, ...] | None:
    """Return the *count* layers that only predict further tokens: their ratios follow the others'.

    DSpark has as many as it reads layers of the model, whatever *count* is. Source:
    ``deepseek_v4/nvidia/mtp.py`` of vLLM 0.33, whose layers go on counting, and
    ``deepseek_v4_dspark.py`` of SGLang 0.5.23.
    """
    read = fields.integers("dspark_target_layer_ids")
    if read:
        count = len(read)
        fields.stated("mtp_layers", count, "dspark_target_layer_ids")
    ratios = _ratios(fields)[fields.integer("layers", high=MAX_LAYERS) :]
    if len(ratios) < count:
        return None
    return deepseek_v4_layers(fields, ratios[:count], fields.integer("qk_rope_head_dim"))


def deepseek_v41(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4.1: a window of latents in every layer; some keep entries that later ones read too.

    Those of ``kv_source_layer_ids`` compress 1 or 2 tokens into an entry, and index the entries; each
    other one reads those of the last before it. Of 2 tokens, the open ones wait in fp32 (vLLM's
    compressor state: eight rows of key and gate).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    ratios = fields.integers("compress_ratios", high=2)
    sources = fields.integers("kv_source_layer_ids", high=count - 1)
    if ratios is None or sources is None:
        missing = "compress_ratios" if ratios is None else "kv_source_layer_ids"
        fields.fail(missing, "is missing: it says what each layer keeps")
    if len(ratios) < count:
        fields.fail("compress_ratios", f"has {len(ratios)} entries for {count} layers")
    if fields.integer("kv_heads") != 1:
        fields.fail("num_key_value_heads", "must be 1: K and V are one row for all heads")
    dim = fields.integer("head_dim")
    rope = fields.integer("qk_rope_head_dim", high=dim)
    index = fields.integer("index_head_dim")
    recent = _window(fields, dim, rope)
    made = []
    for i, ratio in enumerate(ratios[:count]):
        source = max((source for source in sources if source <= i), default=None)
        if ratio and source is None:
            fields.fail(
                f"compress_ratios[{i}]",
                f"is {ratio}, but kv_source_layer_ids has no layer up to this one",
            )
        if source != i:
            shares = source if ratio else None
            made.append(Layer(i, LayerKind.WINDOW, (recent,), shares=shares))
            continue
        if not ratio:
            fields.fail("kv_source_layer_ids", f"holds {i}, but compress_ratios[{i}] is 0")
        tensors = (
            recent,
            Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=ratio), rope),
            Tensor("index", TensorRole.INDEX, 1, index, Extent(ratio=ratio)),
        )
        states = (_open_groups("open", 8, 2 * dim),) if ratio > 1 else ()
        made.append(Layer(i, LayerKind.COMPRESSED, tensors, states))
    fields.stated(
        "layer_kinds", f"{len(sources)} of {count} layers keep entries", "kv_source_layer_ids"
    )
    return tuple(made)


def deepseek_v41_mtp(fields: Fields, count: int) -> tuple[Layer, ...]:
    """Return the *count* layers that predict draft tokens (DSpark), which have a window alone."""
    recent = _window(fields, fields.integer("head_dim"), fields.integer("qk_rope_head_dim"))
    return tuple(Layer(i, LayerKind.WINDOW, (recent,)) for i in range(count))


def _window(fields: Fields, dim: int, rope: int) -> Tensor:
    extent = Extent(Span.WINDOW, fields.integer("window", high=MAX_TOKENS))
    return Tensor("window", TensorRole.LATENT, 1, dim, extent, rope)


def _ratios(fields: Fields) -> list[int]:
    found = fields.integers("compress_ratios")
    return _ratios_of_types(fields) if found is None else found


def deepseek_v4_layers(fields: Fields, ratios: list[int], rope: int) -> tuple[Layer, ...]:
    """Return the layers of DeepSeek-V4 with the given *ratios* and positions of *rope* elements."""
    dim = fields.integer("head_dim")
    recent = _window(fields, dim, rope)
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
    for i, ratio in enumerate(ratios):
        if ratio not in made:
            fields.fail(f"compress_ratios[{i}]", f"is {ratio}; known ratios are 0, 4 and 128")
    return tuple(replace(made[ratio], index=i) for i, ratio in enumerate(ratios))


def _ratios_of_types(fields: Fields) -> list[int]:
    """Return the ratios that transformers' names of layers mean, with its ``compress_rates``."""
    rates = fields.nested("compress_rates")
    sparse = rates.optional("compressed_sparse_attention") if rates else None
    heavy = rates.optional("heavily_compressed_attention") if rates else None
    meaning = {
        "sliding_attention": 0,
        "compressed_sparse_attention": sparse or 4,
        "heavily_compressed_attention": heavy or 128,
    }
    ratios = []
    for i, name in enumerate(fields.items("layer_types") or []):
        if name not in meaning:
            fields.fail(f"layer_types[{i}]", f"{str(name)[:40]!r} is not understood")
        ratios.append(meaning[name])
    if not ratios:
        fields.fail("compress_ratios", "is missing: it says how each layer compresses")
    return ratios


def _open_groups(name: str, rows: int, width: int) -> StateTensor:
    return StateTensor(name, (StatePart(1, rows * width, replicates=True),), "fp32")
