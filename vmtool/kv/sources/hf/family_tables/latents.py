"""Architectures whose layers keep a latent for each token (MLA, DeepSeek-V4)."""

from __future__ import annotations

from vmtool.kv.geometry import (
    LayerKind,
)
from vmtool.kv.sources.hf import attention_tensors, deepseek_v4, layer_kinds, special_layers
from vmtool.kv.sources.hf.family import Family

MLA_HARMLESS = frozenset(
    {"head_dim", "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim"}
    | {"v_head_dim"}
)
_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=attention_tensors.latent,
    meaning={"full_attention": LayerKind.MLA},
    harmless=MLA_HARMLESS,
)
SPARSE_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=attention_tensors.indexed_latent,
    meaning=dict.fromkeys(
        ("full_attention", "indexed_attention", "deepseek_sparse_attention"), LayerKind.MLA
    ),
    defaults={"index_head_dim": 128},
    finish=special_layers.shared_indexes,
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
        attention=attention_tensors.latent_or_not,
        meaning={"full_attention": LayerKind.MLA},
        harmless=MLA_HARMLESS,
    ),
    "minicpm3": Family(
        attention=attention_tensors.padded_latent, harmless=MLA_HARMLESS | {"kv_lora_rank"}
    ),
    **dict.fromkeys(
        ("longcat_flash", "longcat_flash_ngram"),
        Family(
            plan=layer_kinds.all_of(LayerKind.MLA),
            attention=attention_tensors.two_latents,
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
            attention=attention_tensors.indexed_or_windowed_latent,
            meaning={**SPARSE_MLA.meaning, "sliding_attention": LayerKind.WINDOW},
            finish=special_layers.shared_indexes,
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
