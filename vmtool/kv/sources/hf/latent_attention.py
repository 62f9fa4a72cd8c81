"""The tensors of layers with latents (MLA), and of the index beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import LayerKind, Tensor, TensorRole, pair
from vmtool.kv.sources.hf.attention import extent, head_dim, heads, kv_heads

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def padded_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiniCPM3, which vLLM keeps for every head, with V padded to K's width.

    ``MiniCPM3Attention`` in ``models/minicpm3.py``: it makes K and V of the latent before it caches.
    """
    nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    count, dim = heads(fields), nope + rope
    fields.derived("kv_heads", count, "every query head has its own: kv_heads = heads")
    fields.derived("head_dim", dim, f"qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    return pair(count, dim, dim, extent(fields, kind))


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


def latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the one latent row of MLA: ``kv_lora_rank`` and the shared rope key."""
    del kind
    rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", low=0)
    fields.derived("latent_dim", rank + rope, f"kv_lora_rank + qk_rope_head_dim = {rank} + {rope}")
    return (Tensor("latent", TensorRole.LATENT, 1, rank + rope, rope_dim=rope),)


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
