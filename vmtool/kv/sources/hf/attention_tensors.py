"""The K and V, or the latent, of attention layers in Hugging Face configs: rows and their widths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, LayerKind, Span, Tensor, TensorRole, pair
from vmtool.kv.sources.fields import MAX_TOKENS

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def extent(fields: Fields, kind: LayerKind) -> Extent:
    """Return which tokens a layer of *kind* keeps.

    Raises:
        InputError: If it keeps a window or a chunk and none is given.
    """
    if kind is LayerKind.WINDOW:
        return Extent(Span.WINDOW, fields.integer("window", high=MAX_TOKENS))
    if kind is LayerKind.CHUNK:
        return Extent(Span.CHUNK, fields.integer("chunk", high=MAX_TOKENS))
    return Extent()


def heads(fields: Fields) -> int:
    """Return the query heads."""
    return fields.integer("heads")


def kv_heads(fields: Fields) -> int:
    """Return the KV heads; where the file gives null, every query head has its own.

    Raises:
        InputError: If the file gives none, and the architecture does not take that to mean the same.
    """
    count = fields.optional("kv_heads")
    if count is None:
        if not fields.given("kv_heads") and not fields.mha_by_default:
            fields.fail(fields.names["kv_heads"][0], "is missing")
        count = heads(fields)
        fields.derived("kv_heads", count, "every query head has its own: kv_heads = heads")
    return count


def head_dim(fields: Fields) -> int:
    """Return the width of a K head; where the file gives none or null, hidden size / heads.

    Raises:
        InputError: If that is not a whole number.
    """
    dim = fields.optional("head_dim")
    if dim is not None:
        return dim
    hidden, count = fields.integer("hidden"), heads(fields)
    if hidden < count:
        fields.fail(
            fields.names["head_dim"][0],
            f"is not given, and hidden size {hidden} / {count} heads is below 1",
        )
    rounded = ", rounded down as engines do" if hidden % count else ""
    fields.derived("head_dim", hidden // count, f"hidden / heads = {hidden} / {count}{rounded}")
    return hidden // count


def head_dim_v(fields: Fields, dim: int) -> int:
    """Return the width of a V head, which is *dim*, the K head's, unless the file says otherwise."""
    dim_v = fields.optional("head_dim_v")
    if dim_v is None:
        fields.derived("head_dim_v", dim, "as wide as K")
        return dim
    return dim_v


def grouped(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MHA, GQA or MQA."""
    count = kv_heads(fields)
    dim = head_dim(fields)
    return pair(count, dim, head_dim_v(fields, dim), extent(fields, kind))


def half_window(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of ModernBERT's decoder: its class takes half of ``local_attention`` as window."""
    if kind is not LayerKind.WINDOW:
        return grouped(fields, kind)
    fields.raw("sliding_window")
    window = fields.integer("local_attention", high=MAX_TOKENS, low=2) // 2
    fields.derived("window", window, "local_attention / 2")
    count, dim = kv_heads(fields), head_dim(fields)
    return pair(count, dim, head_dim_v(fields, dim), Extent(Span.WINDOW, window))


def jet_config(fields: Fields, block: str) -> Fields:
    """Return what Jet-Nemotron says of its layers of the kind *block*."""
    config = fields.nested("efficient_attention_config")
    inner = None if config is None else config.nested(block, whole=True)
    if inner is None:
        fields.fail("efficient_attention_config", f"has no {block!r}")
    return inner


def jet(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of Jet-Nemotron, whose window is in ``efficient_attention_config``."""
    if kind is not LayerKind.WINDOW:
        return grouped(fields, kind)
    window = jet_config(fields, "swa").integer("window_size", high=MAX_TOKENS)
    count, dim = kv_heads(fields), head_dim(fields)
    return pair(count, dim, head_dim_v(fields, dim), Extent(Span.WINDOW, window))


def multi_query(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V where ``multi_query`` (true by default) means one KV head."""
    if not fields.flag("multi_query", default=True):
        return grouped(fields, kind)
    fields.raw("num_key_value_heads")  # transformers does not read it then
    return _single_head(fields, "multi_query", kind)


def falcon(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of Falcon: ``num_kv_heads`` counts only in the new decoder architecture."""
    if not fields.flag("new_decoder_architecture") and fields.flag("multi_query", default=True):
        fields.raw("num_kv_heads")
        return _single_head(fields, "multi_query", kind)
    fields.flag("multi_query", default=True)
    return grouped(fields, kind)


def chatglm(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of ChatGLM: grouped only where ``multi_query_attention`` says so."""
    if fields.flag("multi_query_attention"):
        return grouped(fields, kind)
    fields.raw("multi_query_group_num")
    count, dim = heads(fields), head_dim(fields)
    fields.derived("kv_heads", count, "multi_query_attention is not set: kv_heads = heads")
    return pair(count, dim, head_dim_v(fields, dim), extent(fields, kind))


def _single_head(fields: Fields, key: str, kind: LayerKind) -> tuple[Tensor, ...]:
    dim = head_dim(fields)
    if fields.has(key):
        fields.stated("kv_heads", 1, key)
    else:
        fields.defaulted("kv_heads", 1, f"{key} is true by default")
    return pair(1, dim, head_dim_v(fields, dim), extent(fields, kind))


def mpt(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MPT and DBRX, whose ``attn_config`` says how heads are grouped."""
    config = fields.nested("attn_config")
    count = heads(fields)
    dim = head_dim(fields)
    kv, why = count, "multihead_attention"
    if config is not None:
        grouping = config.text("attn_type")
        stated = config.raw("kv_n_heads")
        window = config.raw("sliding_window_size")
        if window not in (None, -1):
            config.fail("sliding_window_size", f"is {window!r}; only -1 is understood")
        if grouping == "multiquery_attention":
            kv, why = 1, grouping
        elif grouping == "grouped_query_attention" or (grouping is None and stated is not None):
            kv, why = config.checked("kv_n_heads", stated), "attn_config.kv_n_heads"
        elif grouping not in (None, "multihead_attention"):
            config.fail("attn_type", f"{grouping!r} is not understood")
    # Some files also have num_key_value_heads, which neither transformers nor vLLM reads.
    fields.raw("num_key_value_heads")
    fields.derived("kv_heads", kv, why)
    return pair(kv, dim, head_dim_v(fields, dim), extent(fields, kind))


def zamba2(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of Zamba2, whose attention sees two hidden states side by side."""
    count, dim = kv_heads(fields), fields.optional("head_dim")
    if dim is None:
        hidden, query = fields.integer("hidden"), heads(fields)
        dim = 2 * hidden // query
        fields.derived("head_dim", dim, f"2 x hidden / heads = 2 x {hidden} / {query}")
    return pair(count, dim, dim, extent(fields, kind))


def indexed_grouped(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K, V and the indexer's keys of Qwen4-Exp, which are kept in the model's type.

    ``Qwen4ExpTextConfig``: ``indexer_head_dim`` alone switches the indexer on.
    """
    tensors = grouped(fields, kind)
    dim = fields.optional("indexer_head_dim")
    heads_ = fields.optional("indexer_kv_heads")
    if dim is None:
        return tensors
    return (*tensors, unpacked_index(dim, heads_ or 1))


def unpacked_index(dim: int, heads: int = 1) -> Tensor:
    """Return index keys beside K and V: those of layers without a latent stay in the model's type.

    llama.cpp alone keeps them in the type of K.
    """
    return Tensor("index_k", TensorRole.KEY, heads, dim, replicated=True, own_type=True)


def own_window_heads(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiMo-V2 and Inkling, whose window layers have heads and widths of their own."""
    if kind is not LayerKind.WINDOW or not fields.given("swa_kv_heads"):
        return grouped(fields, kind)
    count = fields.integer("swa_kv_heads")
    dim = fields.integer("swa_head_dim")
    dim_v = fields.optional("swa_head_dim_v") or dim
    return pair(count, dim, dim_v, extent(fields, kind))


def mimo_v2(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiMo-V2.

    Files of transformers do not give the heads of its window layers: ``MiMoV2FlashAttention`` has
    twice as many there.
    """
    if kind is not LayerKind.WINDOW or fields.given("swa_kv_heads"):
        return own_window_heads(fields, kind)
    count = kv_heads(fields)
    fields.derived("swa_kv_heads", 2 * count, f"2 x kv_heads = 2 x {count}")
    return tuple(replace(tensor, heads=2 * count) for tensor in grouped(fields, kind))


def gemma4(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of Gemma 4, whose full layers have heads and widths of their own.

    ``attention_k_eq_v`` shares the projection, not the cache: K and V are both kept, because K is
    normalised and rotated and V is not. DiffusionGemma's projection is always shared.
    """
    same = fields.flag("attention_k_eq_v") or fields.architecture == "diffusion_gemma_text"
    if kind is LayerKind.WINDOW or fields.has("per_layer_config"):
        return grouped(fields, kind)
    dim = fields.optional("global_head_dim") or head_dim(fields)
    count = fields.optional("global_kv_heads") if same else None
    fields.raw("num_global_key_value_heads")
    count = count or kv_heads(fields)
    return pair(count, dim, dim, extent(fields, kind))


def mllama(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Llama 3.2 Vision: its cross layers keep K and V of one image's patches."""
    tensors = grouped(fields, kind)
    if kind is not LayerKind.CROSS:
        return tensors
    vision = fields.outer.nested("vision_config", whole=True) if fields.outer else None
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


def latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the one latent row of MLA: ``kv_lora_rank`` and the shared rope key."""
    del kind
    rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", low=0)
    fields.derived("latent_dim", rank + rope, f"kv_lora_rank + qk_rope_head_dim = {rank} + {rope}")
    return (Tensor("latent", TensorRole.LATENT, 1, rank + rope, rope_dim=rope),)


def latent_or_not(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row of MLA, or K and V where a DeepSeek-V2 file says ``use_mla: false``.

    Their heads are as wide as in Llama (vLLM's ``DeepseekAttention`` in ``models/deepseek_v2.py``).
    """
    if kind is LayerKind.MLA:
        return latent(fields, kind)
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"):
        if fields.raw(key):
            fields.fail(key, "is set, but use_mla is false")
    count, dim = kv_heads(fields), head_dim(fields)
    return pair(count, dim, dim, extent(fields, kind))


def padded_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiniCPM3, which vLLM keeps for every head, with V padded to K's width.

    ``MiniCPM3Attention`` in ``models/minicpm3.py``: it makes K and V of the latent before it caches.
    """
    nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    count, dim = heads(fields), nope + rope
    fields.derived("kv_heads", count, "every query head has its own: kv_heads = heads")
    fields.derived("head_dim", dim, f"qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    return pair(count, dim, dim, extent(fields, kind))


def two_latents(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the two latents of a LongCat layer, which has two attention blocks."""
    (row,) = latent(fields, kind)
    return tuple(
        Tensor(name, row.role, row.heads, row.dim, row.extent, row.rope_dim)
        for name in ("latent_0", "latent_1")
    )


def indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row and the indexer's key of DeepSeek sparse attention."""
    dim = fields.integer("index_head_dim")
    return (*latent(fields, kind), Tensor("index", TensorRole.INDEX, 1, dim))


def pooled_indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row of GLM-5 Next, and the indexer's key, its gate and a mark.

    ``Glm5NextIndexer`` of transformers keeps them side by side in the model's type, and pools them when
    it selects.
    """
    row, index = indexed_latent(fields, kind)
    if not fields.optional("index_kpool"):
        return row, index
    width = 2 * index.dim + 1
    fields.derived("index_dim", width, f"2 x index_head_dim + 1 = 2 x {index.dim} + 1")
    return row, replace(index, dim=width, own_type=True)


def indexed_or_windowed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the tensors of dots3 Note: a latent with an index, or one of a window without."""
    if kind is not LayerKind.WINDOW:
        return indexed_latent(fields, kind)
    (row,) = latent(fields, kind)
    return (replace(row, extent=extent(fields, kind)),)
