"""The built-in models: the deciding fields of each model's published ``config.json``, and no more.

Facts only, named as the files name them, and resolved like the files. ``_config`` fills in the
fields that almost every model has; keyword arguments are further fields.
"""

from __future__ import annotations

from typing import Any

_K = 1024


def _config(
    model_type: str,
    layers: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
        **more,
    }


def _mla(model_type: str, layers: int, heads: int, hidden: int, context: int, **more: Any) -> Any:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return _config(model_type, layers, heads, heads, hidden, context, **latent, **more)


def _blocks(pattern: str, group: int) -> list[dict[str, Any]]:
    """Return Nemotron block configs: ``*`` attends, ``-`` does not."""
    return [
        {"attention": {"n_heads_in_group": group, "no_op": False}}
        if letter == "*"
        else {"attention": {"n_heads_in_group": None, "no_op": True}}
        for letter in pattern
    ]


_FP16 = {"torch_dtype": "float16"}
_HD64, _HD128, _HD256 = ({"head_dim": dim} for dim in (64, 128, 256))
_QWEN35 = {
    **_HD256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
}
_GEMMA3 = {"sliding_window": 1024, "sliding_window_pattern": 6}
_GEMMA4 = {**_HD256, "global_head_dim": 512}
_INDEX = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
_V4 = {"head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "index_head_dim": 128}

MODELS: dict[str, dict[str, Any]] = {
    # Meta
    "llama-2-7b": _config("llama", 32, 32, 32, 4096, 4 * _K, **_FP16),
    "llama-2-13b": _config("llama", 40, 40, 40, 5120, 4 * _K, **_FP16),
    "llama-2-70b": _config("llama", 80, 64, 8, 8192, 4 * _K, **_FP16),
    "llama-3-8b": _config("llama", 32, 32, 8, 4096, 8 * _K),
    "llama-3-70b": _config("llama", 80, 64, 8, 8192, 8 * _K),
    "llama-3.1-8b": _config("llama", 32, 32, 8, 4096, 128 * _K),
    "llama-3.1-70b": _config("llama", 80, 64, 8, 8192, 128 * _K),
    "llama-3.1-405b": _config("llama", 126, 128, 8, 16384, 128 * _K),
    "llama-3.2-1b": _config("llama", 16, 32, 8, 2048, 128 * _K, **_HD64),
    "llama-3.2-3b": _config("llama", 28, 24, 8, 3072, 128 * _K, **_HD128),
    "llama-3.3-70b": _config("llama", 80, 64, 8, 8192, 128 * _K),
    "llama-4-scout": _config(
        "llama4_text", 48, 40, 8, 5120, 10240 * _K, attention_chunk_size=8192, **_HD128
    ),
    "llama-4-maverick": _config(
        "llama4_text", 48, 40, 8, 5120, _K * _K, attention_chunk_size=8192, **_HD128
    ),
    "opt-6.7b": {
        "model_type": "opt",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "max_position_embeddings": 2048,
        **_FP16,
    },
    # Mistral AI
    "mistral-7b-v0.1": _config("mistral", 32, 32, 8, 4096, 32 * _K, sliding_window=4096),
    "mistral-7b-v0.3": _config("mistral", 32, 32, 8, 4096, 32 * _K, sliding_window=None),
    "mistral-nemo-12b": _config(
        "mistral", 40, 32, 8, 5120, 128 * _K, sliding_window=None, **_HD128
    ),
    "mistral-small-24b": _config(
        "mistral", 40, 32, 8, 5120, 128 * _K, sliding_window=None, **_HD128
    ),
    "ministral-3-3b": _config("ministral3", 26, 32, 8, 3072, 256 * _K, **_HD128),
    "mixtral-8x7b": _config("mixtral", 32, 32, 8, 4096, 32 * _K),
    "mixtral-8x22b": _config("mixtral", 56, 48, 8, 6144, 64 * _K),
    # Alibaba
    "qwen2-7b": _config("qwen2", 28, 28, 4, 3584, 32 * _K),
    "qwen2.5-0.5b": _config("qwen2", 24, 14, 2, 896, 32 * _K),
    "qwen2.5-1.5b": _config("qwen2", 28, 12, 2, 1536, 32 * _K),
    "qwen2.5-3b": _config("qwen2", 36, 16, 2, 2048, 32 * _K),
    "qwen2.5-7b": _config("qwen2", 28, 28, 4, 3584, 32 * _K),
    "qwen2.5-14b": _config("qwen2", 48, 40, 8, 5120, 32 * _K),
    "qwen2.5-32b": _config("qwen2", 64, 40, 8, 5120, 32 * _K),
    "qwen2.5-72b": _config("qwen2", 80, 64, 8, 8192, 32 * _K),
    "qwen3-0.6b": _config("qwen3", 28, 16, 8, 1024, 40 * _K, **_HD128),
    "qwen3-1.7b": _config("qwen3", 28, 16, 8, 2048, 40 * _K, **_HD128),
    "qwen3-4b": _config("qwen3", 36, 32, 8, 2560, 40 * _K, **_HD128),
    "qwen3-8b": _config("qwen3", 36, 32, 8, 4096, 40 * _K, **_HD128),
    "qwen3-14b": _config("qwen3", 40, 40, 8, 5120, 40 * _K, **_HD128),
    "qwen3-32b": _config("qwen3", 64, 64, 8, 5120, 40 * _K, **_HD128),
    "qwen3-30b-a3b": _config("qwen3_moe", 48, 32, 4, 2048, 40 * _K, **_HD128),
    "qwen3-235b-a22b": _config("qwen3_moe", 94, 64, 4, 4096, 40 * _K, **_HD128),
    "qwen3-coder-480b-a35b": _config("qwen3_moe", 62, 96, 8, 6144, 256 * _K, **_HD128),
    "qwen3-vl-8b": _config("qwen3_vl_text", 36, 32, 8, 4096, 256 * _K, **_HD128),
    "qwen3-vl-235b-a22b": _config("qwen3_vl_moe_text", 94, 64, 4, 4096, 256 * _K, **_HD128),
    "qwen3-next-80b-a3b": _config(
        "qwen3_next",
        48,
        16,
        2,
        2048,
        256 * _K,
        linear_num_value_heads=32,
        **{key: value for key, value in _QWEN35.items() if key != "mamba_ssm_dtype"},
    ),
    "qwen3.5-27b": _config(
        "qwen3_5_text", 64, 24, 4, 5120, 256 * _K, linear_num_value_heads=48, **_QWEN35
    ),
    "qwen3.5-397b-a17b": _config(
        "qwen3_5_moe_text", 60, 32, 2, 4096, 256 * _K, linear_num_value_heads=64, **_QWEN35
    ),
    "qwen3.6-35b-a3b": _config(
        "qwen3_5_moe_text", 40, 16, 2, 2048, 256 * _K, linear_num_value_heads=32, **_QWEN35
    ),
    # Google
    "gemma-2-2b": _config("gemma2", 26, 8, 4, 2304, 8 * _K, sliding_window=4096, **_HD256),
    "gemma-2-9b": _config("gemma2", 42, 16, 8, 3584, 8 * _K, sliding_window=4096, **_HD256),
    "gemma-2-27b": _config("gemma2", 46, 32, 16, 4608, 8 * _K, sliding_window=4096, **_HD128),
    "gemma-3-1b": _config(
        "gemma3_text",
        26,
        4,
        1,
        1152,
        32 * _K,
        sliding_window=512,
        sliding_window_pattern=6,
        **_HD256,
    ),
    "gemma-3-4b": _config("gemma3_text", 34, 8, 4, 2560, 128 * _K, **_GEMMA3, **_HD256),
    "gemma-3-12b": _config("gemma3_text", 48, 16, 8, 3840, 128 * _K, **_GEMMA3, **_HD256),
    "gemma-3-27b": _config("gemma3_text", 62, 32, 16, 5376, 128 * _K, **_GEMMA3, **_HD128),
    "gemma-3n-e2b": _config(
        "gemma3n_text",
        30,
        8,
        2,
        2048,
        32 * _K,
        sliding_window=512,
        num_kv_shared_layers=10,
        **_HD256,
    ),
    "gemma-3n-e4b": _config(
        "gemma3n_text",
        35,
        8,
        2,
        2048,
        32 * _K,
        sliding_window=512,
        num_kv_shared_layers=15,
        **_HD256,
    ),
    "gemma-4-e2b": _config(
        "gemma4_text",
        35,
        8,
        1,
        1536,
        128 * _K,
        sliding_window=512,
        sliding_window_pattern=5,
        num_kv_shared_layers=20,
        **_GEMMA4,
    ),
    "gemma-4-e4b": _config(
        "gemma4_text",
        42,
        8,
        2,
        2560,
        128 * _K,
        sliding_window=512,
        num_kv_shared_layers=18,
        **_GEMMA4,
    ),
    "gemma-4-12b": _config(
        "gemma4_text",
        48,
        16,
        8,
        3840,
        256 * _K,
        sliding_window=1024,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        **_GEMMA4,
    ),
    "gemma-4-26b-a4b": _config(
        "gemma4_text",
        30,
        16,
        8,
        2816,
        256 * _K,
        sliding_window=1024,
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
        **_GEMMA4,
    ),
    "gemma-4-31b": _config(
        "gemma4_text",
        60,
        32,
        16,
        5376,
        256 * _K,
        sliding_window=1024,
        attention_k_eq_v=True,
        num_global_key_value_heads=4,
        **_GEMMA4,
    ),
    # OpenAI
    "gpt-oss-20b": _config("gpt_oss", 24, 64, 8, 2880, 128 * _K, sliding_window=128, **_HD64),
    "gpt-oss-120b": _config("gpt_oss", 36, 64, 8, 2880, 128 * _K, sliding_window=128, **_HD64),
    "gpt2": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "whisper-large-v3": {
        "model_type": "whisper",
        "decoder_layers": 32,
        "decoder_attention_heads": 20,
        "d_model": 1280,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        **_FP16,
    },
    # DeepSeek
    "deepseek-v2-lite": _mla("deepseek_v2", 27, 16, 2048, 160 * _K),
    "deepseek-v3": _mla("deepseek_v3", 61, 128, 7168, 160 * _K),
    "deepseek-r1": _mla("deepseek_v3", 61, 128, 7168, 160 * _K),
    "deepseek-v3.2": _mla("deepseek_v32", 61, 128, 7168, 160 * _K, **_INDEX),
    "deepseek-v4-flash": _config(
        "deepseek_v4",
        43,
        64,
        1,
        4096,
        _K * _K,
        compress_ratios=[0, 0] + [4, 128] * 20 + [4],
        **_V4,
    ),
    "deepseek-v4-pro": _config(
        "deepseek_v4", 61, 128, 1, 7168, _K * _K, compress_ratios=[128] + [128, 4] * 30, **_V4
    ),
    # Moonshot AI
    "kimi-k2": _mla("kimi_k2", 61, 64, 7168, 128 * _K),
    "kimi-k2.5": _mla("kimi_k2", 61, 64, 7168, 256 * _K),
    "kimi-linear-48b-a3b": _mla(
        "kimi_linear",
        27,
        32,
        2304,
        1024 * _K,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [i for i in range(1, 27) if i % 4],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    ),
    # Zhipu
    "glm-4-9b": _config("glm4", 40, 32, 2, 4096, 32 * _K, **_HD128),
    "glm-4.5": _config("glm4_moe", 92, 96, 8, 5120, 128 * _K, **_HD128),
    "glm-4.5-air": _config("glm4_moe", 46, 96, 8, 4096, 128 * _K, **_HD128),
    "glm-4.7": _config("glm4_moe", 92, 96, 8, 5120, 198 * _K, **_HD128),
    "glm-4.7-flash": _mla("glm4_moe_lite", 47, 20, 2048, 198 * _K),
    "glm-5": _mla("glm_moe_dsa", 78, 64, 6144, 198 * _K, index_head_dim=128),
    # Others
    "minimax-m2.5": _config("minimax_m2", 62, 48, 8, 3072, 192 * _K, **_HD128),
    "mimo-v2-flash": _config(
        "mimo_v2_flash",
        48,
        64,
        4,
        4096,
        256 * _K,
        head_dim=192,
        v_head_dim=128,
        sliding_window=128,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        hybrid_layer_pattern=[0, *[1] * 4, 0, *[1, 1, 1, 1, 1, 0] * 7],
    ),
    "phi-2": _config("phi", 32, 32, 32, 2560, 2 * _K, **_FP16),
    "phi-3-mini-4k": _config("phi3", 32, 32, 32, 3072, 4 * _K, sliding_window=2047),
    "phi-4": _config("phi3", 40, 40, 10, 5120, 16 * _K),
    "phi-4-mini": _config("phi3", 32, 24, 8, 3072, 128 * _K, sliding_window=262144),
    "nemotron-3-nano-30b-a3b": _config(
        "nemotron_h",
        52,
        32,
        2,
        2688,
        256 * _K,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        mamba_num_heads=64,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
        mamba_ssm_cache_dtype="float32",
        **_HD128,
    ),
    "llama-3.3-nemotron-super-49b": {
        **_config("nemotron-nas", 80, 64, 8, 8192, 128 * _K),
        "num_key_value_heads": None,
        "block_configs": _blocks(
            "******--***-******************************----------*------------------*********", 8
        ),
    },
    "jamba-v0.1": _config(
        "jamba",
        32,
        32,
        8,
        4096,
        256 * _K,
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_expand=2,
    ),
    "lfm2-1.2b": _config(
        "lfm2", 16, 32, 8, 2048, 128000, full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3
    ),
    "command-r": _config("cohere", 40, 64, 64, 8192, 128 * _K, **_FP16),
    "command-r7b": _config(
        "cohere2", 32, 32, 8, 4096, 132096, sliding_window=4096, **_HD128, **_FP16
    ),
    "command-a": _config("cohere2", 64, 96, 8, 12288, 128 * _K, sliding_window=4096, **_HD128),
    "exaone-4-32b": _config(
        "exaone4",
        64,
        40,
        8,
        5120,
        128 * _K,
        sliding_window=4096,
        sliding_window_pattern="LLLG",
        **_HD128,
    ),
    "olmo-3-7b": _config("olmo3", 32, 32, 32, 4096, 64 * _K, sliding_window=4096),
    "seed-oss-36b": _config("seed_oss", 64, 80, 8, 5120, 512 * _K, **_HD128),
    "smollm-1.7b": _config("llama", 24, 32, 32, 2048, 2 * _K),
    "smollm3-3b": _config("smollm3", 36, 16, 4, 2048, 64 * _K),
    "granite-3.3-8b": _config("granite", 40, 32, 8, 4096, 128 * _K),
    "starcoder2-15b": _config("starcoder2", 40, 48, 4, 6144, 16 * _K, sliding_window=4096),
    "yi-34b": _config("llama", 60, 56, 8, 7168, 4 * _K),
    "falcon-7b": {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "hidden_size": 4544,
        "multi_query": True,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    },
    "falcon-40b": {
        "model_type": "falcon",
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "hidden_size": 8192,
        "new_decoder_architecture": True,
        "multi_query": True,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    },
    "bloom-7b1": {
        "model_type": "bloom",
        "n_layer": 30,
        "n_head": 32,
        "hidden_size": 4096,
        **_FP16,
    },
    "mpt-7b": {
        "model_type": "mpt",
        "n_layers": 32,
        "n_heads": 32,
        "d_model": 4096,
        "max_seq_len": 2048,
        "torch_dtype": "bfloat16",
    },
    "falcon-mamba-7b": {
        "model_type": "falcon_mamba",
        "num_hidden_layers": 64,
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "state_size": 16,
        "conv_kernel": 4,
        "torch_dtype": "bfloat16",
    },
    "rwkv-5-3b": {
        "model_type": "rwkv5",
        "num_hidden_layers": 32,
        "hidden_size": 2560,
        "attention_hidden_size": 2560,
        "head_size": 64,
        "context_length": 4096,
    },
}
