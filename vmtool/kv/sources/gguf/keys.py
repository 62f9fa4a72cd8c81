"""The keys of a GGUF file: where each value is, and which may change what is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

#: Under ``<architecture>.``, keys with these starts may change what is cached.
_SUSPECT = (
    "attention.",
    "ssm.",
    "shortconv.",
    "wkv.",
    "kda.",
    "token_shift_count",
    "full_attention_interval",
    "nextn_predict_layers",
)
#: Those of them that never do.
_HARMLESS = frozenset(
    f"attention.{name}"
    for name in (
        "causal",
        "clamp_kqv",
        "group_norm_epsilon",
        "group_norm_groups",
        "head_count",
        "compress_rope_freq_base",
        "indexer.block_size",
        "indexer.head_count",
        "indexer.local_blocks",
        "indexer.top_k",
        "output_group_count",
        "output_lora_rank",
        "relative_buckets_count",
        "value_scale",
        "key_length",
        "value_length",
        "layer_norm_epsilon",
        "layer_norm_rms_epsilon",
        "max_alibi_bias",
        "output_scale",
        "q_lora_rank",
        "scale",
        "temperature_length",
        "temperature_scale",
        "value_length_mla",
        "value_residual_mix_lora_rank",
        "decay_lora_rank",
        "iclr_lora_rank",
        "gate_lora_rank",
    )
) | {"ssm.dt_b_c_rms", "kda.gate_lower_bound"}


def key_names(architecture: str) -> dict[str, tuple[str, ...]]:
    """Return the key of each value in a file of *architecture*, by the name that `Fields` has for it."""
    keys = {
        "layers": "block_count",
        "decoder_layers": "decoder_block_count",
        "heads": "attention.head_count",
        "extra_layers": "nextn_predict_layers",
        "hidden": "embedding_length",
        "context": "context_length",
        "kv_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "head_dim_v": "attention.value_length",
        "window_dim_k": "attention.key_length_swa",
        "window_dim_v": "attention.value_length_swa",
        "mla_dim": "attention.key_length_mla",
        "kv_lora_rank": "attention.kv_lora_rank",
        "index_dim": "attention.indexer.key_length",
        "dense_layers": "leading_dense_block_count",
        "window": "attention.sliding_window",
        "shared_layers": "attention.shared_kv_layers",
        "interval": "full_attention_interval",
        "compress_ratios": "attention.compress_ratios",
        "rope_dim": "rope.dimension_count",
        "linear_heads": "attention.head_count",
        "linear_dim": "kda.head_dim",
        "linear_k_heads": "ssm.group_count",
        "linear_v_heads": "ssm.time_step_rank",
        "linear_dim_k": "ssm.state_size",
        "conv_kernel": "ssm.conv_kernel",
        "ssm_inner": "ssm.inner_size",
        "ssm_state": "ssm.state_size",
        "ssm_groups": "ssm.group_count",
        "ssm_heads": "ssm.time_step_rank",
        "ssm_head_dim": "ssm.head_dim",
        "linear_dim_v": "ssm.value_head_dim",
        "short_conv": "shortconv.l_cache",
        "wkv_head": "wkv.head_size",
        "shift_count": "token_shift_count",
    }
    return {name: (f"{architecture}.{key}",) for name, key in keys.items()}


def refuse_unread(fields: Fields, architecture: str) -> None:
    """Fail on a set key that may change what is cached and that nothing read."""
    start = f"{architecture}."
    for key in fields.all_keys():
        short = key.removeprefix(start)
        if key in fields.used or short == key or short in _HARMLESS:
            continue
        if short.startswith(_SUSPECT) and fields.peek(key) not in (None, False, 0):
            fields.fail(key, f"is set, and its effect on {architecture} is not understood")
