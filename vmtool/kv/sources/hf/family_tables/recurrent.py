"""Architectures with layers that keep a state, instead of a row per token or beside it."""

from __future__ import annotations

from dataclasses import replace

from vmtool.kv.geometry import LayerKind
from vmtool.kv.sources.hf import attention_tensors, layer_kinds, special_layers, state_tensors
from vmtool.kv.sources.hf.family import Family
from vmtool.kv.sources.hf.family_tables.latents import MLA_HARMLESS, SPARSE_MLA

_KIMI_DELTA_NAMES = {
    "linear_heads": ("linear_num_heads",),
    "linear_dim": ("linear_head_dim",),
    "conv_kernel": ("linear_conv_kernel_dim", "short_conv_kernel_size"),
}
_INKLING = Family(
    meaning={"hybrid": LayerKind.PARALLEL, "hybrid_sliding": LayerKind.WINDOW},
    attention=attention_tensors.own_window_heads,
    plan=layer_kinds.unlisted,
    states={
        LayerKind.PARALLEL: state_tensors.inkling,
        LayerKind.WINDOW: state_tensors.inkling_window,
    },
    names={
        "swa_kv_heads": ("swa_num_key_value_heads",),
        "conv_kernel": ("conv_kernel_size",),
    },
    finish=special_layers.looped,
    harmless=frozenset({"loop_gate_rank", "swa_num_attention_heads", "number_of_conv_states"}),
)

_DELTA_MEANING = {**layer_kinds.FULL_NAMES, "linear_attention": LayerKind.GATED_DELTA}
_DELTA_STATES = {LayerKind.GATED_DELTA: state_tensors.gated_delta}
_DELTA_NAMES = {
    "linear_k_heads": ("linear_num_key_heads",),
    "linear_v_heads": ("linear_num_value_heads",),
    "linear_dim_k": ("linear_key_head_dim",),
    "linear_dim_v": ("linear_value_head_dim",),
    "conv_kernel": ("linear_conv_kernel_dim",),
    "period": ("full_attention_interval",),
}
_QWEN_DELTA = Family(
    plan=layer_kinds.unless_last_of(4, LayerKind.GATED_DELTA),
    meaning=_DELTA_MEANING,
    states=_DELTA_STATES,
    names=_DELTA_NAMES,
    defaults={
        "head_dim": 256,
        "linear_k_heads": 16,
        "linear_v_heads": 32,
        "linear_dim_k": 128,
        "linear_dim_v": 128,
        "conv_kernel": 4,
    },
    mtp_by_default=1,
)

_MAMBA_HARMLESS = frozenset(
    {"chunk_size", "expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_dt_rank"}
    | {"mamba_expand", "mamba_hidden_act", "mamba_proj_bias", "use_conv_bias", "use_mamba_kernels"}
)
_MAMBA2_MEANING = {
    **layer_kinds.FULL_NAMES,
    "mamba": LayerKind.MAMBA2,
    "linear_attention": LayerKind.MAMBA2,
    "mlp": LayerKind.NONE,
    "moe": LayerKind.NONE,
}
_MAMBA2_STATES = {LayerKind.MAMBA2: state_tensors.mamba2}
_BAMBA_NAMES = {
    "ssm_heads": ("mamba_n_heads",),
    "ssm_head_dim": ("mamba_d_head",),
    "ssm_groups": ("mamba_n_groups",),
    "ssm_state": ("mamba_d_state",),
    "ssm_expand": ("mamba_expand",),
    "ssm_inner": ("mamba_d_ssm",),
    "conv_kernel": ("mamba_d_conv",),
}
_MAMBA_NAMES = {
    "ssm_inner": ("intermediate_size", "d_inner"),
    "ssm_state": ("state_size",),
    "ssm_expand": ("expand",),
}
_NEMOTRON_H = Family(
    plan=layer_kinds.hybrid_pattern,
    meaning=_MAMBA2_MEANING,
    states=_MAMBA2_STATES,
    names={
        "head_dim": ("head_dim", "attention_head_dim"),
        "ssm_heads": ("mamba_num_heads",),
        "ssm_head_dim": ("mamba_head_dim",),
        "ssm_groups": ("n_groups",),
        "ssm_state": ("ssm_state_size", "mamba_d_state"),
        "ssm_expand": ("expand",),
    },
    defaults={"head_dim": 128},
    types_key="layers_block_type",
    harmless=_MAMBA_HARMLESS | {"mtp_hybrid_override_pattern", "mtp_layers_block_type"},
)
_LIGHTNING = Family(
    plan=layer_kinds.flagged("attn_type_list", LayerKind.FULL, LayerKind.LINEAR),
    meaning={**layer_kinds.FULL_NAMES, "linear_attention": LayerKind.LINEAR},
    states={LayerKind.LINEAR: state_tensors.lightning},
    harmless=frozenset(
        f"{prefix}_{which}"
        for prefix in ("full_attn", "linear_attn")
        for which in ("alpha_factor", "beta_factor")
    )
    | {
        f"layernorm_{which}_attention_{factor}"
        for which in ("full", "linear")
        for factor in ("alpha", "beta")
    },
)

RECURRENT: dict[str, Family] = {
    "glm5_next_text": Family(
        plan=layer_kinds.unlisted,
        attention=attention_tensors.pooled_indexed_latent,
        meaning={**SPARSE_MLA.meaning, "linear_attention": LayerKind.KIMI_DELTA},
        states={LayerKind.KIMI_DELTA: state_tensors.kimi_delta},
        names=_KIMI_DELTA_NAMES,
        finish=special_layers.shared_indexes,
        harmless=SPARSE_MLA.harmless
        | {"index_kpool", "index_kpool_always_select_tail", "linear_lower_bound"},
    ),
    "bailing_hybrid": Family(
        plan=layer_kinds.bailing_hybrid,
        attention=attention_tensors.latent,
        meaning={"full_attention": LayerKind.MLA, "linear_attention": LayerKind.KIMI_DELTA},
        states={
            LayerKind.KIMI_DELTA: state_tensors.kimi_delta,
            LayerKind.LINEAR: state_tensors.lightning,
        },
        names=_KIMI_DELTA_NAMES,
        harmless=MLA_HARMLESS,
    ),
    **dict.fromkeys(("inkling_text", "inkling2_text", "inkling2_loop_text"), _INKLING),
    "lara_mini": Family(
        plan=layer_kinds.unlisted,
        meaning={**layer_kinds.WINDOW_NAMES, "linear_attention": LayerKind.GATED_DELTA},
        states=_DELTA_STATES,
        names=_DELTA_NAMES,
    ),
    "qwen4_exp_text": Family(
        plan=layer_kinds.unlisted,
        attention=attention_tensors.indexed_grouped,
        meaning={
            **_DELTA_MEANING,
            "indexed_attention": LayerKind.FULL,
        },
        states=_DELTA_STATES,
        names=_DELTA_NAMES,
        harmless=frozenset(
            {"indexer_n_heads", "indexer_budget", "indexer_compress_ratio", "ple_conv_kernel_size"}
            | {"number_of_conv_states"}
        ),
    ),
    "zaya": Family(
        plan=layer_kinds.all_of(LayerKind.PARALLEL),
        meaning={"hybrid": LayerKind.PARALLEL},
        states={LayerKind.PARALLEL: state_tensors.zaya},
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN_DELTA),
    # Its banks of experts are in ``num_blocks`` blocks.
    "interns2_mobius_text": replace(
        _QWEN_DELTA, plan=layer_kinds.unlisted, harmless=frozenset({"num_blocks"})
    ),
    "gigachat3_5": Family(
        plan=layer_kinds.listed("full_attention_layers", LayerKind.GATED_DELTA, LayerKind.MLA),
        attention=attention_tensors.latent,
        meaning={
            "attention": LayerKind.MLA,
            "full_attention": LayerKind.MLA,
            "linear_attention": LayerKind.GATED_DELTA,
        },
        states=_DELTA_STATES,
        names=_DELTA_NAMES,
        harmless=MLA_HARMLESS | {"linear_attention_type", "linear_sigmoid_gate_scale"},
    ),
    "jet_nemotron": Family(
        plan=layer_kinds.unlisted,
        attention=attention_tensors.jet,
        meaning={
            "attn": LayerKind.FULL,
            "swa": LayerKind.WINDOW,
            "jet": LayerKind.GATED_DELTA,
        },
        states={LayerKind.GATED_DELTA: state_tensors.jet},
        mha_by_default=True,
    ),
    "alice_ai": Family(
        plan=layer_kinds.unlisted,
        meaning={**layer_kinds.FULL_NAMES, "linear_attention": LayerKind.KIMI_DELTA},
        states={LayerKind.KIMI_DELTA: state_tensors.kimi_delta},
        names={
            "linear_heads": ("linear_num_key_heads",),
            "linear_dim": ("linear_key_head_dim",),
            "conv_kernel": ("linear_conv_kernel_dim",),
        },
        defaults={"head_dim": 256},
        harmless=frozenset({"linear_num_value_heads", "linear_value_head_dim"}),
    ),
    "olmo_hybrid": Family(
        plan=layer_kinds.unless_last_of(4, LayerKind.GATED_DELTA),
        meaning=_DELTA_MEANING,
        states=_DELTA_STATES,
        names=_DELTA_NAMES,
        mha_by_default=True,
        harmless=frozenset(
            {"linear_a_log_max", "linear_allow_neg_eigval", "linear_dt_init_floor"}
            | {"linear_dt_max", "linear_dt_min"}
        ),
    ),
    **dict.fromkeys(
        ("kimi_linear", "kimi_k3"),
        Family(
            plan=layer_kinds.kimi_linear,
            attention=attention_tensors.latent,
            meaning={"full_attention": LayerKind.MLA, "linear_attention": LayerKind.KIMI_DELTA},
            states={LayerKind.KIMI_DELTA: state_tensors.kimi_delta},
            names={
                "linear_heads": ("linear_num_heads",),
                "linear_dim": ("linear_head_dim",),
                "conv_kernel": ("linear_conv_kernel_dim",),
            },
            harmless=MLA_HARMLESS,
        ),
    ),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), _LIGHTNING),
    "jamba": Family(
        plan=layer_kinds.offset_period(LayerKind.MAMBA1),
        meaning={
            **layer_kinds.FULL_NAMES,
            "mamba": LayerKind.MAMBA1,
            "linear_attention": LayerKind.MAMBA1,
        },
        states={LayerKind.MAMBA1: state_tensors.mamba1},
        names={
            "ssm_state": ("mamba_d_state",),
            "ssm_expand": ("mamba_expand",),
            "conv_kernel": ("mamba_d_conv",),
        },
        types_key="layers_block_type",
        harmless=_MAMBA_HARMLESS,
    ),
    "phi4flash": Family(
        plan=layer_kinds.phi4flash,
        states={LayerKind.MAMBA1: state_tensors.mamba1},
        names={
            "ssm_state": ("mamba_d_state",),
            "ssm_expand": ("mamba_expand",),
            "conv_kernel": ("mamba_d_conv",),
        },
        defaults={"ssm_state": 16, "ssm_expand": 2, "conv_kernel": 4},
        finish=special_layers.phi4flash,
        harmless=_MAMBA_HARMLESS,
    ),
    "bamba": Family(
        plan=layer_kinds.listed("attn_layer_indices", LayerKind.MAMBA2, absent=LayerKind.MAMBA2),
        meaning=_MAMBA2_MEANING,
        states=_MAMBA2_STATES,
        names=_BAMBA_NAMES,
        types_key="layers_block_type",
        harmless=_MAMBA_HARMLESS,
    ),
    "granitemoehybrid": Family(
        plan=layer_kinds.unlisted,
        meaning=_MAMBA2_MEANING,
        states=_MAMBA2_STATES,
        names=_BAMBA_NAMES,
        harmless=_MAMBA_HARMLESS,
        mha_by_default=True,
    ),
    "falcon_h1": Family(
        plan=layer_kinds.all_of(LayerKind.PARALLEL),
        states={LayerKind.PARALLEL: state_tensors.falcon_h1},
        names=_BAMBA_NAMES,
        harmless=_MAMBA_HARMLESS
        | {"mamba_norm_before_gate", "mamba_rms_norm", "mamba_use_mlp", "ssm_in_multiplier"}
        | {"ssm_multipliers", "ssm_out_multiplier"},
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_puzzle": replace(
        _NEMOTRON_H,
        blocks_key="block_configs",
        harmless=_NEMOTRON_H.harmless | {"block_type", "mtp_block_configs"},
        source="models/nemotron_h.py of vLLM 0.33",
    ),
    # The attention of all hybrid layers has the same weights, and each a cache of its own; a Mamba-2
    # layer follows it (vLLM's models/zamba2.py).
    "zamba2": Family(
        plan=layer_kinds.listed(
            "hybrid_layer_ids", LayerKind.MAMBA2, LayerKind.PARALLEL, required=True
        ),
        attention=attention_tensors.zamba2,
        meaning={
            "mamba": LayerKind.MAMBA2,
            "linear_attention": LayerKind.MAMBA2,
            "hybrid": LayerKind.PARALLEL,
        },
        states={
            LayerKind.MAMBA2: state_tensors.mamba2,
            LayerKind.PARALLEL: state_tensors.mamba2,
        },
        names={
            **_BAMBA_NAMES,
            "head_dim": ("attention_head_dim",),
            "ssm_heads": ("n_mamba_heads",),
            "ssm_head_dim": ("mamba_headdim",),
            "ssm_groups": ("mamba_ngroups",),
        },
        types_key="layers_block_type",
        mha_by_default=True,
        harmless=_MAMBA_HARMLESS
        | {"attention_hidden_size", "hybrid_layer_ids", "kv_channels", "num_query_groups"},
    ),
    # A Mamba layer follows the attention of each hybrid layer too.
    "zamba": Family(
        plan=layer_kinds.unlisted,
        attention=attention_tensors.zamba2,
        meaning={
            "mamba": LayerKind.MAMBA1,
            "linear_attention": LayerKind.MAMBA1,
            "hybrid": LayerKind.PARALLEL,
        },
        states={
            LayerKind.MAMBA1: state_tensors.mamba1,
            LayerKind.PARALLEL: state_tensors.mamba1,
        },
        names={
            **_BAMBA_NAMES,
            "head_dim": ("attention_head_dim",),
        },
        types_key="layers_block_type",
        mha_by_default=True,
        harmless=_MAMBA_HARMLESS
        | {"attention_hidden_size", "attn_layer_offset", "attn_layer_period"}
        | {"hidden_mamba_act", "n_mamba_heads"},
    ),
    **dict.fromkeys(
        ("mamba", "falcon_mamba"),
        Family(
            plan=layer_kinds.all_of(LayerKind.MAMBA1),
            states={LayerKind.MAMBA1: state_tensors.mamba1},
            names=_MAMBA_NAMES,
            defaults={"conv_kernel": 4, "ssm_expand": 2, "ssm_state": 16},
            harmless=_MAMBA_HARMLESS,
        ),
    ),
    "mamba2": Family(
        plan=layer_kinds.all_of(LayerKind.MAMBA2),
        states=_MAMBA2_STATES,
        names={
            **_MAMBA_NAMES,
            "ssm_heads": ("num_heads",),
            "ssm_head_dim": ("head_dim",),
            "ssm_groups": ("n_groups",),
        },
        harmless=_MAMBA_HARMLESS,
    ),
    "recurrent_gemma": Family(
        plan=layer_kinds.recurrent_gemma,
        states={LayerKind.GATED_LINEAR: state_tensors.gated_linear},
        names={"window": ("attention_window_size",), "conv_kernel": ("conv1d_width",)},
        defaults={"window": 2048, "conv_kernel": 4},
        mha_by_default=True,
        harmless=frozenset({"_block_types"}),  # older files repeat block_types so
    ),
    **dict.fromkeys(
        ("lfm2", "lfm2_moe", "lfm3"),
        Family(
            plan=layer_kinds.listed("full_attn_idxs", LayerKind.SHORT_CONV),
            meaning={**layer_kinds.WINDOW_NAMES, "conv": LayerKind.SHORT_CONV},
            states={LayerKind.SHORT_CONV: state_tensors.short_conv},
            names={"conv_kernel": ("conv_L_cache",)},
            harmless=frozenset({"conv_bias", "conv_dim_out", "full_attn_idxs"})
            | {"conv_use_xavier_init"},
        ),
    ),
    **dict.fromkeys(
        ("rwkv5", "rwkv6"),
        Family(
            plan=layer_kinds.all_of(LayerKind.RWKV),
            states={LayerKind.RWKV: state_tensors.rwkv},
            names={"head_dim": ("head_size",), "inner": ("attention_hidden_size",)},
            defaults={"head_dim": 64},
        ),
    ),
    "rwkv": Family(
        plan=layer_kinds.all_of(LayerKind.RWKV),
        states={LayerKind.RWKV: state_tensors.rwkv4},
        names={"inner": ("attention_hidden_size",)},
    ),
    "xlstm": Family(
        plan=layer_kinds.all_of(LayerKind.LINEAR),
        states={LayerKind.LINEAR: state_tensors.xlstm},
        names={
            "layers": ("num_hidden_layers", "num_blocks"),
            "hidden": ("hidden_size", "embedding_dim"),
        },
        harmless=frozenset({"chunk_size", "chunkwise_kernel", "max_inference_chunksize"}),
    ),
}
