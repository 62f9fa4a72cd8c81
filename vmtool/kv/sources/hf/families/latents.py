"""Architectures whose layers keep a latent for each token (MLA, DeepSeek-V4), and its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import (
    LayerKind,
    Tensor,
    TensorRole,
    pair,
)
from vmtool.kv.sources.hf import deepseek_v4, layer_kinds, shared_and_repeated_layers
from vmtool.kv.sources.hf.attention_tensors import extent, head_dim, heads, kv_heads
from vmtool.kv.sources.hf.family import Family

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the one latent row of MLA: ``kv_lora_rank`` and the shared rope key."""
    del kind
    rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", low=0)
    fields.derived("latent_dim", rank + rope, f"kv_lora_rank + qk_rope_head_dim = {rank} + {rope}")
    return (Tensor("latent", TensorRole.LATENT, 1, rank + rope, rope_dim=rope),)


def _latent_or_not(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
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


def _padded_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiniCPM3, which vLLM keeps for every head, with V padded to K's width.

    ``MiniCPM3Attention`` in ``models/minicpm3.py``: it makes K and V of the latent before it caches.
    """
    nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    count, dim = heads(fields), nope + rope
    fields.derived("kv_heads", count, "every query head has its own: kv_heads = heads")
    fields.derived("head_dim", dim, f"qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    return pair(count, dim, dim, extent(fields, kind))


def _two_latents(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the two latents of a LongCat layer, which has two attention blocks."""
    (row,) = latent(fields, kind)
    return tuple(
        Tensor(name, row.role, row.heads, row.dim, row.extent, row.rope_dim)
        for name in ("latent_0", "latent_1")
    )


def _indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row and the indexer's key of DeepSeek sparse attention."""
    dim = fields.integer("index_head_dim")
    return (*latent(fields, kind), Tensor("index", TensorRole.INDEX, 1, dim))


def pooled_indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row of GLM-5 Next, and the indexer's key, its gate and a mark.

    ``Glm5NextIndexer`` of transformers keeps them side by side in the model's type, and pools them when
    it selects.
    """
    row, index = _indexed_latent(fields, kind)
    if not fields.optional("index_kpool"):
        return row, index
    width = 2 * index.dim + 1
    fields.derived("index_dim", width, f"2 x index_head_dim + 1 = 2 x {index.dim} + 1")
    return row, replace(index, dim=width, own_type=True)


def _indexed_or_windowed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the tensors of dots3 Note: a latent with an index, or one of a window without."""
    if kind is not LayerKind.WINDOW:
        return _indexed_latent(fields, kind)
    (row,) = latent(fields, kind)
    return (replace(row, extent=extent(fields, kind)),)


MLA_HARMLESS = frozenset(
    {"head_dim", "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim"}
    | {"v_head_dim"}
)
_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=latent,
    meaning={"full_attention": LayerKind.MLA},
    harmless=MLA_HARMLESS,
)
SPARSE_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=_indexed_latent,
    meaning=dict.fromkeys(
        ("full_attention", "indexed_attention", "deepseek_sparse_attention"), LayerKind.MLA
    ),
    defaults={"index_head_dim": 128},
    finish=shared_and_repeated_layers.shared_indexes,
    harmless=MLA_HARMLESS
    | {"index_n_heads", "index_topk", "index_topk_freq", "index_topk_pattern"}
    | {"index_skip_topk_offset", "index_share_for_mtp_iteration"},
)
_DEEPSEEK_V4_HARMLESS = frozenset(
    {"compress_rope_theta", "index_n_heads", "index_topk", "o_lora_rank", "q_lora_rank"}
)
_MLA_MODELS = (
    "pangu_ultra_moe axk1 deepseek_v3 glm4_moe_lite kimi_k2 kimi_k25 mistral4 sarvam_mla youtu"
)
LATENTS: dict[str, Family] = {
    **dict.fromkeys(_MLA_MODELS.split(), _MLA),
    "deepseek_v2": Family(
        plan=layer_kinds.latent_unless_off,
        attention=_latent_or_not,
        meaning={"full_attention": LayerKind.MLA},
        harmless=MLA_HARMLESS,
    ),
    "minicpm3": Family(attention=_padded_latent, harmless=MLA_HARMLESS | {"kv_lora_rank"}),
    **dict.fromkeys(
        ("longcat_flash", "longcat_flash_ngram"),
        Family(
            plan=layer_kinds.all_of(LayerKind.MLA),
            attention=_two_latents,
            harmless=MLA_HARMLESS,
        ),
    ),
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text"),
        SPARSE_MLA,
    ),
    **dict.fromkeys(
        ("dots3_note", "dots3_note_text"),
        Family(
            plan=layer_kinds.unlisted,
            attention=_indexed_or_windowed_latent,
            meaning={**SPARSE_MLA.meaning, "sliding_attention": LayerKind.WINDOW},
            finish=shared_and_repeated_layers.shared_indexes,
            harmless=SPARSE_MLA.harmless,
        ),
    ),
    # SGLang's copies of its files have the second name.
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_ref"),
        Family(
            build=deepseek_v4.deepseek_v4,
            mtp=deepseek_v4.deepseek_v4_mtp,
            harmless=_DEEPSEEK_V4_HARMLESS,
        ),
    ),
    **dict.fromkeys(
        ("deepseek_v41", "deepseek_v41_text"),
        Family(
            build=deepseek_v4.deepseek_v41,
            mtp=deepseek_v4.deepseek_v41_mtp,
            harmless=_DEEPSEEK_V4_HARMLESS
            | {"engram_compressed_vocab_size", "engram_head_dim", "index_source_layer_ids"},
            source="models/deepseek_v4_1/attention.py of vLLM 0.33",
        ),
    ),
}
