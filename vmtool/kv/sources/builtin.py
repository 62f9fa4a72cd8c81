"""The built-in models: the deciding fields of each model's published ``config.json``, and no more.

Facts only, named as the files name them, and resolved as the files are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.geometry import (
    Layer,
    LayerKind,
    ModelGeometry,
    Provenance,
    Source,
    pair,
)
from vmtool.kv.sources.fields import FLAGS
from vmtool.kv.sources.hf.config import resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: What the bare numbers after the model type are, in order; ``key=value`` is any further field.
_COLUMNS: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "max_position_embeddings",
)
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
_WORDS: Final = {"true": True, "false": False, "null": None}

# name, model type, the columns above, dtype, further fields; an indented line goes on.
_TABLE: Final = """
# Meta
llama-2-7b llama 32 32 32 4096 4096 fp16
llama-2-13b llama 40 40 40 5120 4096 fp16
llama-2-70b llama 80 64 8 8192 4096 fp16
codellama-7b llama 32 32 32 4096 16384 bf16
codellama-13b llama 40 40 40 5120 16384 bf16
codellama-34b llama 48 64 8 8192 16384 bf16
tinyllama-1.1b llama 22 32 4 2048 2048 bf16
llama-3-8b llama 32 32 8 4096 8192 bf16
llama-3-70b llama 80 64 8 8192 8192 bf16
llama-3.1-8b llama 32 32 8 4096 131072 bf16
llama-3.1-70b llama 80 64 8 8192 131072 bf16
llama-3.1-405b llama 126 128 8 16384 131072 bf16
llama-3.2-1b llama 16 32 8 2048 131072 bf16 head_dim=64
llama-3.2-3b llama 28 24 8 3072 131072 bf16 head_dim=128
llama-3.3-70b llama 80 64 8 8192 131072 bf16
llama-4-scout llama4_text 48 40 8 5120 10485760 bf16 attention_chunk_size=8192 head_dim=128
llama-4-maverick llama4_text 48 40 8 5120 1048576 bf16 attention_chunk_size=8192 head_dim=128
opt-6.7b opt fp16 num_hidden_layers=32 num_attention_heads=32 hidden_size=4096
    max_position_embeddings=2048
# Mistral AI
mistral-7b-v0.1 mistral 32 32 8 4096 32768 bf16 sliding_window=4096
mistral-7b-v0.2 mistral 32 32 8 4096 32768 bf16 sliding_window=null
mistral-7b-v0.3 mistral 32 32 8 4096 32768 bf16 sliding_window=null
mistral-nemo-12b mistral 40 32 8 5120 131072 bf16 sliding_window=null head_dim=128
mistral-small-24b mistral 40 32 8 5120 131072 bf16 sliding_window=null head_dim=128
mistral-large-2407 mistral 88 96 8 12288 131072 bf16 sliding_window=null head_dim=128
mistral-large-2411 mistral 88 96 8 12288 131072 bf16 sliding_window=null head_dim=128
mistral-large-3 deepseek_v3 61 128 128 7168 294912 kv_lora_rank=512 qk_rope_head_dim=64
ministral-3-3b ministral3 26 32 8 3072 262144 bf16 head_dim=128
ministral-8b mistral 36 32 8 4096 32768 bf16 sliding_window=32768 head_dim=128
codestral-22b mistral 56 48 8 6144 32768 bf16 sliding_window=null
pixtral-12b mistral 40 32 8 5120 1024000 bf16 sliding_window=null head_dim=128
pixtral-large mistral 88 96 8 12288 131072 sliding_window=null
mixtral-8x7b mixtral 32 32 8 4096 32768 bf16
mixtral-8x22b mixtral 56 48 8 6144 65536 bf16
# Alibaba
qwen1.5-7b qwen2 32 32 32 4096 32768 bf16
qwen1.5-72b qwen2 80 64 64 8192 32768 bf16
qwen1.5-moe-a2.7b qwen2_moe 24 16 16 2048 32768 bf16
qwen2-0.5b qwen2 24 14 2 896 32768 bf16
qwen2-1.5b qwen2 28 12 2 1536 32768 bf16
qwen2-7b qwen2 28 28 4 3584 32768 bf16
qwen2-72b qwen2 80 64 8 8192 32768 bf16
qwen2.5-0.5b qwen2 24 14 2 896 32768 bf16
qwen2.5-1.5b qwen2 28 12 2 1536 32768 bf16
qwen2.5-3b qwen2 36 16 2 2048 32768 bf16
qwen2.5-7b qwen2 28 28 4 3584 32768 bf16
qwen2.5-14b qwen2 48 40 8 5120 32768 bf16
qwen2.5-32b qwen2 64 40 8 5120 32768 bf16
qwen2.5-72b qwen2 80 64 8 8192 32768 bf16
qwen2.5-vl-3b qwen2_5_vl 36 16 2 2048 128000 bf16
qwen2.5-vl-7b qwen2_5_vl 28 28 4 3584 128000 bf16
qwq-32b qwen2 64 40 8 5120 131072 bf16
qwen3-0.6b qwen3 28 16 8 1024 40960 bf16 head_dim=128
qwen3-1.7b qwen3 28 16 8 2048 40960 bf16 head_dim=128
qwen3-4b qwen3 36 32 8 2560 40960 bf16 head_dim=128
qwen3-4b-2507 qwen3 36 32 8 2560 262144 bf16 head_dim=128
qwen3-8b qwen3 36 32 8 4096 40960 bf16 head_dim=128
qwen3-14b qwen3 40 40 8 5120 40960 bf16 head_dim=128
qwen3-32b qwen3 64 64 8 5120 40960 bf16 head_dim=128
qwen3-30b-a3b qwen3_moe 48 32 4 2048 40960 bf16 head_dim=128
qwen3-235b-a22b qwen3_moe 94 64 4 4096 40960 bf16 head_dim=128
qwen3-coder-30b-a3b qwen3_moe 48 32 4 2048 262144 head_dim=128
qwen3-coder-480b-a35b qwen3_moe 62 96 8 6144 262144 bf16 head_dim=128
qwen3-vl-2b qwen3_vl_text 28 16 8 2048 262144 bf16 head_dim=128
qwen3-vl-4b qwen3_vl_text 36 32 8 2560 262144 bf16 head_dim=128
qwen3-vl-8b qwen3_vl_text 36 32 8 4096 262144 bf16 head_dim=128
qwen3-vl-32b qwen3_vl_text 64 64 8 5120 262144 bf16 head_dim=128
qwen3-vl-30b-a3b qwen3_vl_moe_text 48 32 4 2048 262144 bf16 head_dim=128
qwen3-vl-235b-a22b qwen3_vl_moe_text 94 64 4 4096 262144 bf16 head_dim=128
qwen3-next-80b-a3b qwen3_next 48 16 2 2048 262144 bf16 linear_num_value_heads=32 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128
qwen3.5-4b qwen3_5_text 32 16 4 2560 262144 bf16 linear_num_value_heads=32 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
qwen3.5-27b qwen3_5_text 64 24 4 5120 262144 bf16 linear_num_value_heads=48 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
qwen3.5-35b-a3b qwen3_5_moe_text 40 16 2 2048 262144 bf16 linear_num_value_heads=32 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
qwen3.5-122b-a10b qwen3_5_moe_text 48 32 2 3072 262144 bf16 linear_num_value_heads=64
    head_dim=256 full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
qwen3.5-397b-a17b qwen3_5_moe_text 60 32 2 4096 262144 bf16 linear_num_value_heads=64
    head_dim=256 full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
qwen3.6-27b qwen3_5_text 64 24 4 5120 262144 bf16 linear_num_value_heads=48 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
qwen3.6-35b-a3b qwen3_5_moe_text 40 16 2 2048 262144 bf16 linear_num_value_heads=32 head_dim=256
    full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128
    linear_num_key_heads=16 linear_value_head_dim=128 mamba_ssm_dtype=float32
    mtp_num_hidden_layers=1
# Google
gemma-2b gemma 18 8 1 2048 8192 bf16 head_dim=256
gemma-7b gemma 28 16 16 3072 8192 bf16 head_dim=256
gemma-2-2b gemma2 26 8 4 2304 8192 bf16 sliding_window=4096 head_dim=256
gemma-2-9b gemma2 42 16 8 3584 8192 bf16 sliding_window=4096 head_dim=256
gemma-2-27b gemma2 46 32 16 4608 8192 bf16 sliding_window=4096 head_dim=128
gemma-3-270m gemma3_text 18 4 1 640 32768 bf16 sliding_window=512 sliding_window_pattern=6
    head_dim=256
gemma-3-1b gemma3_text 26 4 1 1152 32768 bf16 sliding_window=512 sliding_window_pattern=6
    head_dim=256
gemma-3-4b gemma3_text 34 8 4 2560 131072 bf16 sliding_window=1024 sliding_window_pattern=6
    head_dim=256
gemma-3-12b gemma3_text 48 16 8 3840 131072 bf16 sliding_window=1024 sliding_window_pattern=6
    head_dim=256
gemma-3-27b gemma3_text 62 32 16 5376 131072 bf16 sliding_window=1024 sliding_window_pattern=6
    head_dim=128
gemma-3n-e2b gemma3n_text 30 8 2 2048 32768 bf16 sliding_window=512 num_kv_shared_layers=10
    head_dim=256
gemma-3n-e4b gemma3n_text 35 8 2 2048 32768 bf16 sliding_window=512 num_kv_shared_layers=15
    head_dim=256
gemma-4-e2b gemma4_text 35 8 1 1536 131072 bf16 sliding_window=512 sliding_window_pattern=5
    num_kv_shared_layers=20 head_dim=256 global_head_dim=512
gemma-4-e4b gemma4_text 42 8 2 2560 131072 bf16 sliding_window=512 num_kv_shared_layers=18
    head_dim=256 global_head_dim=512
gemma-4-12b gemma4_text 48 16 8 3840 262144 bf16 sliding_window=1024 attention_k_eq_v=true
    num_global_key_value_heads=1 head_dim=256 global_head_dim=512
gemma-4-26b-a4b gemma4_text 30 16 8 2816 262144 bf16 sliding_window=1024 attention_k_eq_v=true
    num_global_key_value_heads=2 head_dim=256 global_head_dim=512
gemma-4-31b gemma4_text 60 32 16 5376 262144 bf16 sliding_window=1024 attention_k_eq_v=true
    num_global_key_value_heads=4 head_dim=256 global_head_dim=512
# OpenAI
gpt-oss-20b gpt_oss 24 64 8 2880 131072 sliding_window=128 head_dim=64
gpt-oss-120b gpt_oss 36 64 8 2880 131072 sliding_window=128 head_dim=64
gpt2 gpt2 n_layer=12 n_head=12 n_embd=768 n_positions=1024
whisper-large-v3 whisper fp16 decoder_layers=32 decoder_attention_heads=20 d_model=1280
    max_source_positions=1500 max_target_positions=448
# DeepSeek
deepseek-llm-7b llama 30 32 32 4096 4096
deepseek-llm-67b llama 95 64 8 8192 4096 bf16
deepseek-moe-16b deepseek 28 16 16 2048 4096 bf16
deepseek-v2-lite deepseek_v2 27 16 16 2048 163840 bf16 kv_lora_rank=512 qk_rope_head_dim=64
deepseek-v2.5 deepseek_v2 60 128 128 5120 163840 kv_lora_rank=512 qk_rope_head_dim=64
deepseek-coder-v2 deepseek_v2 60 128 128 5120 163840 kv_lora_rank=512 qk_rope_head_dim=64
deepseek-coder-v2-lite deepseek_v2 27 16 16 2048 163840 bf16 kv_lora_rank=512
    qk_rope_head_dim=64
deepseek-v3 deepseek_v3 61 128 128 7168 163840 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1
deepseek-r1 deepseek_v3 61 128 128 7168 163840 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1
deepseek-v3.1 deepseek_v3 61 128 128 7168 163840 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1
deepseek-v3.2 deepseek_v32 61 128 128 7168 163840 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1 index_head_dim=128 index_n_heads=64 index_topk=2048
deepseek-v4-flash deepseek_v4 43 64 1 4096 1048576 bf16 head_dim=512 qk_rope_head_dim=64
    sliding_window=128 index_head_dim=128 num_nextn_predict_layers=1
deepseek-v4-pro deepseek_v4 61 128 1 7168 1048576 bf16 head_dim=512 qk_rope_head_dim=64
    sliding_window=128 index_head_dim=128 num_nextn_predict_layers=1
# Moonshot AI
kimi-k2 kimi_k2 61 64 64 7168 131072 bf16 kv_lora_rank=512 qk_rope_head_dim=64
kimi-k2.5 kimi_k2 61 64 64 7168 262144 bf16 kv_lora_rank=512 qk_rope_head_dim=64
kimi-k2.6 kimi_k2 61 64 64 7168 262144 bf16 kv_lora_rank=512 qk_rope_head_dim=64
kimi-k2.7-code kimi_k2 61 64 64 7168 262144 bf16 kv_lora_rank=512 qk_rope_head_dim=64
kimi-k3 kimi_k3 93 96 96 7168 1048576 bf16 kv_lora_rank=512 qk_rope_head_dim=64
kimi-linear-48b-a3b kimi_linear 27 32 32 2304 1048576 bf16 kv_lora_rank=512 qk_rope_head_dim=64
# Zhipu
glm-4-9b glm4 40 32 2 4096 32768 bf16 head_dim=128
glm-4-32b glm4 61 48 2 6144 32768 bf16 head_dim=128
glm-4.5 glm4_moe 92 96 8 5120 131072 bf16 head_dim=128 num_nextn_predict_layers=1
glm-4.5-air glm4_moe 46 96 8 4096 131072 bf16 head_dim=128 num_nextn_predict_layers=1
glm-4.7 glm4_moe 92 96 8 5120 202752 bf16 head_dim=128 num_nextn_predict_layers=1
glm-4.7-flash glm4_moe_lite 47 20 20 2048 202752 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1
glm-5 glm_moe_dsa 78 64 64 6144 202752 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1 index_head_dim=128
glm-5.1 glm_moe_dsa 78 64 64 6144 202752 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1 index_head_dim=128
glm-5.2 glm_moe_dsa 78 64 64 6144 1048576 bf16 kv_lora_rank=512 qk_rope_head_dim=64
    num_nextn_predict_layers=1 index_head_dim=128 index_topk_freq=4 index_skip_topk_offset=3
# Others
minimax-m2.5 minimax_m2 62 48 8 3072 196608 head_dim=128
minimax-m2.7 minimax_m2 62 48 8 3072 204800 bf16 head_dim=128
minimax-m3 minimax_m3_vl_text 60 64 4 6144 1048576 bf16 head_dim=128
mimo-7b mimo 36 32 8 4096 32768 bf16 num_nextn_predict_layers=1
mimo-v2-flash mimo_v2_flash 48 64 4 4096 262144 bf16 head_dim=192 v_head_dim=128
    sliding_window=128 swa_num_key_value_heads=8 swa_head_dim=192 swa_v_head_dim=128
phi-1.5 phi 24 32 32 2048 2048 fp16
phi-2 phi 32 32 32 2560 2048 fp16
phi-3-mini-4k phi3 32 32 32 3072 4096 bf16 sliding_window=2047
phi-3-medium-4k phi3 40 40 10 5120 4096 bf16 sliding_window=2047
phi-3.5-mini phi3 32 32 32 3072 131072 bf16 sliding_window=262144
phi-3.5-vision phi3_v 32 32 32 3072 131072 bf16 sliding_window=131072
phi-4 phi3 40 40 10 5120 16384 bf16
phi-4-mini phi3 32 24 8 3072 131072 bf16 sliding_window=262144
minitron-4b nemotron 32 24 8 3072 4096 bf16 head_dim=128
minitron-8b nemotron 32 48 8 4096 4096 bf16 head_dim=128
nemotron-nano-9b-v2 nemotron_h 56 40 8 4480 131072
    hybrid_override_pattern=M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-
    mamba_num_heads=128 mamba_head_dim=80 n_groups=8 ssm_state_size=128 conv_kernel=4 head_dim=128
nemotron-3-nano-30b-a3b nemotron_h 52 32 2 2688 262144 bf16
    hybrid_override_pattern=MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME
    mamba_num_heads=64 mamba_head_dim=64 n_groups=8 ssm_state_size=128 conv_kernel=4
    mamba_ssm_cache_dtype=float32 head_dim=128
nemotron-3.5-lightning-30b-a3b nemotron_h 52 32 2 2688 1048576 bf16
    hybrid_override_pattern=MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME
    mamba_num_heads=64 mamba_head_dim=64 n_groups=8 ssm_state_size=128 conv_kernel=4
    mamba_ssm_cache_dtype=float32 head_dim=128 num_nextn_predict_layers=1
nemotron-3-super-120b-a12b nemotron_h 88 32 2 4096 262144 bf16
    hybrid_override_pattern=MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME
    mamba_num_heads=128 mamba_head_dim=64 n_groups=8 ssm_state_size=128 conv_kernel=4
    mamba_ssm_cache_dtype=float32 head_dim=128 num_nextn_predict_layers=1
nemotron-3-ultra-550b-a55b nemotron_h 108 64 2 8192 262144 bf16
    mamba_num_heads=256 mamba_head_dim=64 n_groups=8 ssm_state_size=128 conv_kernel=4
    mamba_ssm_cache_dtype=float32 head_dim=128 num_nextn_predict_layers=1
nemotron-h-56b nemotron_h 118 64 8 8192 8192 bf16
    mamba_num_heads=256 mamba_head_dim=64 n_groups=8 ssm_state_size=256 conv_kernel=4
llama-3.3-nemotron-super-49b nemotron-nas 80 64 null 8192 131072 bf16
jamba-v0.1 jamba 32 32 8 4096 262144 bf16 attn_layer_period=8 attn_layer_offset=4 mamba_d_conv=4
    mamba_d_state=16 mamba_expand=2
lfm2-350m lfm2 16 16 8 1024 128000 bf16 conv_L_cache=3
lfm2-700m lfm2 16 24 8 1536 128000 bf16 conv_L_cache=3
lfm2-1.2b lfm2 16 32 8 2048 128000 bf16 conv_L_cache=3
lfm2-2.6b lfm2 30 32 8 2048 128000 bf16 conv_L_cache=3
lfm2-8b-a1b lfm2_moe 24 32 8 2048 128000 bf16 conv_L_cache=3
command-r cohere 40 64 64 8192 131072 fp16
command-r7b cohere2 32 32 8 4096 132096 fp16 sliding_window=4096 head_dim=128
command-a cohere2 64 96 8 12288 131072 bf16 sliding_window=4096 head_dim=128
exaone-4-32b exaone4 64 40 8 5120 131072 bf16 sliding_window=4096 sliding_window_pattern=LLLG
    head_dim=128
olmo-3-7b olmo3 32 32 32 4096 65536 bf16 sliding_window=4096
seed-oss-36b seed_oss 64 80 8 5120 524288 bf16 head_dim=128
smollm-135m llama 30 9 3 576 2048 bf16
smollm-360m llama 32 15 5 960 2048 bf16
smollm-1.7b llama 24 32 32 2048 2048 bf16
smollm2-135m llama 30 9 3 576 8192 bf16
smollm2-360m llama 32 15 5 960 8192 bf16
smollm2-1.7b llama 24 32 32 2048 8192 bf16
smollm3-3b smollm3 36 16 4 2048 65536 bf16
granite-3.0-1b-a400m granitemoe 24 16 8 1024 4096
granite-3.0-3b-a800m granitemoe 32 24 8 1536 4096 bf16
granite-3.0-2b granite 40 32 8 2048 4096 bf16
granite-3.1-1b-a400m granitemoe 24 16 8 1024 131072 bf16
granite-3.1-3b-a800m granitemoe 32 24 8 1536 131072 bf16
granite-3.1-2b granite 40 32 8 2048 131072 bf16
granite-3.1-8b granite 40 32 8 4096 131072
granite-3.2-2b granite 40 32 8 2048 131072 bf16
granite-3.2-8b granite 40 32 8 4096 131072 bf16
granite-3.3-8b granite 40 32 8 4096 131072 bf16
granite-4.0-350m granite 28 16 4 1024 32768
granite-4.0-1b granite 40 16 4 2048 131072
granite-4.0-micro granite 40 40 8 2560 131072
granite-4.0-h-350m granitemoehybrid 32 12 4 768 32768 mamba_expand=2 mamba_n_groups=1
    mamba_d_conv=4 mamba_d_state=128 mamba_n_heads=48 mamba_d_head=32
granite-4.0-h-1b granitemoehybrid 40 12 4 1536 131072 mamba_expand=2 mamba_n_groups=1
    mamba_d_conv=4 mamba_d_state=128 mamba_n_heads=48 mamba_d_head=64
granite-4.0-h-micro granitemoehybrid 40 32 8 2048 131072 mamba_expand=2 mamba_n_groups=1
    mamba_d_conv=4 mamba_d_state=128 mamba_n_heads=64 mamba_d_head=64
granite-4.0-h-tiny granitemoehybrid 40 12 4 1536 131072 bf16 mamba_expand=2 mamba_n_groups=1
    mamba_d_conv=4 mamba_d_state=128 mamba_n_heads=48 mamba_d_head=64
granite-4.0-h-small granitemoehybrid 40 32 8 4096 131072 bf16 mamba_expand=2 mamba_n_groups=1
    mamba_d_conv=4 mamba_d_state=128 mamba_n_heads=128 mamba_d_head=64
granite-4.1-3b granite 40 40 8 2560 131072
granite-4.1-8b granite 40 32 8 4096 131072
granite-4.1-30b granite 64 32 8 4096 131072
starcoder2-15b starcoder2 40 48 4 6144 16384 bf16 sliding_window=4096
yi-34b llama 60 56 8 7168 4096 bf16
falcon-7b falcon bf16 num_hidden_layers=32 num_attention_heads=71 hidden_size=4544
    multi_query=true max_position_embeddings=2048
falcon-40b falcon bf16 num_hidden_layers=60 num_attention_heads=128 num_kv_heads=8
    hidden_size=8192 new_decoder_architecture=true multi_query=true max_position_embeddings=2048
bloom-7b1 bloom fp16 n_layer=30 n_head=32 hidden_size=4096
mpt-7b mpt bf16 n_layers=32 n_heads=32 d_model=4096 max_seq_len=2048
falcon-mamba-7b falcon_mamba bf16 num_hidden_layers=64 hidden_size=4096 intermediate_size=8192
    state_size=16 conv_kernel=4
rwkv-5-3b rwkv5 num_hidden_layers=32 hidden_size=2560 attention_hidden_size=2560 head_size=64
    context_length=4096
"""


def _layer_types(layers: int, attention: Collection[int], full: str, other: str) -> dict[str, Any]:
    return {"layer_types": [full if i in attention else other for i in range(layers)]}


#: Fields that are lists or objects.
_LISTS: Final[dict[str, dict[str, Any]]] = {
    "deepseek-v4-flash": {"compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]},
    "deepseek-v4-pro": {"compress_ratios": [128, *[128, 4] * 30, 0]},
    "kimi-linear-48b-a3b": {
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [i for i in range(1, 27) if i % 4],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        }
    },
    "kimi-k3": {
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93],
            "kda_layers": [i for i in range(1, 93) if i % 4],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
        }
    },
    "lfm2-700m": {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    "lfm2-1.2b": {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    **{
        name: _layer_types(layers, attention, "full_attention", "conv")
        for name, layers, attention in (
            ("lfm2-350m", 16, (2, 5, 8, 10, 12, 14)),
            ("lfm2-2.6b", 30, (2, 5, 9, 13, 17, 21, 24, 27)),
            ("lfm2-8b-a1b", 24, (2, 6, 10, 14, 18, 21)),
        )
    },
    "granite-4.0-h-350m": _layer_types(32, (10, 13, 17, 27), "attention", "mamba"),
    **dict.fromkeys(
        ("granite-4.0-h-1b", "granite-4.0-h-micro", "granite-4.0-h-tiny", "granite-4.0-h-small"),
        _layer_types(40, (5, 15, 25, 35), "attention", "mamba"),
    ),
    "llama-3.3-nemotron-super-49b": {
        "block_configs": [
            {"attention": {"no_op": False, "n_heads_in_group": 8} if attends else {"no_op": True}}
            for attends in [True] * 6
            + [False] * 2
            + [True] * 3
            + [False]
            + [True] * 30
            + [False] * 10
            + [True]
            + [False] * 18
            + [True] * 9
        ]
    },
    "minimax-m3": {
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_attention_freq": [0] * 3 + [1] * 57,
            "sparse_disable_index_value": [0] * 3 + [1] * 57,
            "sparse_index_dim": 128,
        }
    },
    "nemotron-3-ultra-550b-a55b": {
        "hybrid_override_pattern": (
            "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EM"
            "EMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
        )
    },
    "nemotron-h-56b": {
        "hybrid_override_pattern": (
            "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M"
            "-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
        )
    },
    "mimo-v2-flash": {"hybrid_layer_pattern": [0, *[1] * 4, 0, *[1, 1, 1, 1, 1, 0] * 7]},
}


def _rows() -> dict[str, list[str]]:
    """Return the words of each model's row by its name."""
    rows: dict[str, list[str]] = {}
    name = ""
    for line in _TABLE.splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if not line.startswith(" "):
            name = words.pop(0)
            rows[name] = []
        rows[name] += words
    return rows


_ROWS: Final = _rows()


def names() -> tuple[str, ...]:
    """Return every built-in name, sorted."""
    return tuple(sorted(_ROWS))


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the built-in model *name*, as its file has it.

    Raises:
        KeyError: If there is none of that name.
    """
    model_type, *words = _ROWS[name]
    config: dict[str, Any] = {"model_type": model_type}
    columns = iter(_COLUMNS)
    for word in words:
        key, is_field, text = word.partition("=")
        if is_field:
            config[key] = _value(text)
        elif word in _DTYPES:
            config["torch_dtype"] = _DTYPES[word]
        else:
            config[next(columns)] = _value(word)
    return {**config, **_LISTS.get(name, {})}


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if text.isdecimal() else text


_NAMES: Final = {
    "github.com/ai-dynamo/aiconfigurator: model_configs": """
        deepseek-v3 deepseek-v3.1 deepseek-v3.2 deepseek-v4-flash deepseek-v4-pro gemma-4-26b-a4b
        glm-4.7 glm-4.7-flash glm-5 glm-5.1 glm-5.2 gpt-oss-20b kimi-k2 kimi-k2.5 kimi-k2.6
        kimi-k2.7-code kimi-k3 llama-3.1-70b llama-3.1-8b llama-3.3-70b llama-3.3-nemotron-super-49b
        llama-4-maverick llama-4-scout mimo-7b mimo-v2-flash minimax-m2.5 minimax-m2.7 minimax-m3
        mixtral-8x7b nemotron-3-nano-30b-a3b nemotron-3-super-120b-a12b nemotron-3-ultra-550b-a55b
        nemotron-3.5-lightning-30b-a3b nemotron-h-56b qwen3-0.6b qwen3-30b-a3b qwen3-32b qwen3-8b
        qwen3-next-80b-a3b qwen3-vl-235b-a22b qwen3-vl-2b qwen3-vl-30b-a3b qwen3-vl-32b qwen3-vl-4b
        qwen3-vl-8b qwen3.5-122b-a10b qwen3.5-27b
        qwen3.5-35b-a3b qwen3.5-397b-a17b qwen3.6-27b""",
    "github.com/mlc-ai/mlc-llm: model_preset.py": """
        codellama-13b codellama-34b codellama-7b deepseek-moe-16b deepseek-v2-lite gemma-2-27b
        gemma-2-2b gemma-2b gemma-3-1b gpt2 llama-2-13b llama-2-70b llama-2-7b llama-3-70b
        llama-3-8b llama-3.2-1b llama-3.2-3b ministral-3-3b mistral-7b-v0.1 mistral-7b-v0.3 phi-1.5
        phi-2 phi-3-mini-4k phi-3.5-mini phi-3.5-vision phi-4-mini qwen1.5-moe-a2.7b qwen2-0.5b
        qwen2-1.5b qwen2-7b qwen2.5-0.5b qwen2.5-1.5b qwen2.5-3b qwen3-1.7b qwen3-4b rwkv-5-3b
        smollm-135m smollm-360m smollm2-135m smollm2-360m tinyllama-1.1b""",
    "config.json on huggingface.co, its own or a finetune's": """
        bloom-7b1 codestral-22b command-r7b deepseek-coder-v2-lite deepseek-llm-67b
        deepseek-llm-7b gemma-2-9b gemma-3-270m gemma-7b glm-4-32b glm-4.5-air
        granite-3.0-1b-a400m granite-3.0-2b granite-3.0-3b-a800m granite-3.1-1b-a400m
        granite-3.1-2b granite-3.1-3b-a800m granite-3.1-8b granite-3.2-2b granite-3.2-8b
        granite-4.0-h-micro jamba-v0.1 lfm2-2.6b lfm2-350m lfm2-700m lfm2-8b-a1b ministral-8b
        minitron-4b minitron-8b mistral-7b-v0.2 mistral-large-2407 mistral-large-2411 opt-6.7b
        phi-3-medium-4k pixtral-12b pixtral-large qwen1.5-72b qwen1.5-7b qwen2-72b qwen2.5-vl-3b
        qwen2.5-vl-7b qwen3-4b-2507 qwen3-coder-30b-a3b qwen3.5-4b qwq-32b smollm2-1.7b
        whisper-large-v3""",
    "a copy of params.json in public source code": "mistral-large-3",
    "metadata of a GGUF file in Ollama's library": """
        granite-4.0-1b granite-4.0-350m granite-4.0-micro granite-4.1-30b granite-4.1-3b
        granite-4.1-8b""",
    "llama.cpp's log of its GGUF file, and DeepSeek's config_236B.json": """
        deepseek-coder-v2 deepseek-v2.5""",
    "copies of config.json in public source code": """
        command-a deepseek-r1 exaone-4-32b falcon-40b falcon-7b falcon-mamba-7b gemma-3-12b
        gemma-3-27b gemma-3-4b gemma-3n-e2b gemma-3n-e4b gemma-4-12b gemma-4-31b gemma-4-e2b
        gemma-4-e4b glm-4-9b glm-4.5 granite-3.3-8b granite-4.0-h-1b granite-4.0-h-350m
        granite-4.0-h-small granite-4.0-h-tiny kimi-linear-48b-a3b lfm2-1.2b llama-3.1-405b
        mixtral-8x22b nemotron-nano-9b-v2 olmo-3-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b
        qwen2.5-7b qwen3-14b qwen3-235b-a22b qwen3-coder-480b-a35b qwen3.6-35b-a3b seed-oss-36b
        smollm3-3b""",
    "cache sizes in public logs agree; layers and heads from the model card": """
        command-r gpt-oss-120b mistral-small-24b smollm-1.7b yi-34b""",
    "model card or paper; no config.json was seen": """
        mistral-nemo-12b mpt-7b phi-4 starcoder2-15b""",
}
#: The origin of each built-in model.
ORIGINS: Final = {name: origin for origin, names in _NAMES.items() for name in names.split()}

#: Bytes of the weights of the built-in models as they are published, in GB (10^9 bytes), from their
#: parameter counts (of the model cards or the hub's listing, where these are rounded counted for the
#: published config) and the element types of their checkpoints; at most three digits. What is missing
#: was not found.
_PUBLISHED_GB: Final = """
llama-2-7b 13.5 llama-2-13b 26.0 llama-2-70b 138 llama-3-8b 16.1 llama-3-70b 141 llama-3.1-8b 16.1
llama-3.1-70b 141 llama-3.1-405b 812 llama-3.2-1b 2.47 llama-3.2-3b 6.43 llama-3.3-70b 141
llama-4-scout 217 llama-4-maverick 803 opt-6.7b 13.3 mistral-7b-v0.1 14.5 mistral-7b-v0.3 14.5
mistral-nemo-12b 24.5 mistral-small-24b 47.1 mixtral-8x7b 93.4 mixtral-8x22b 281 qwen2-7b 15.2
qwen2.5-0.5b 0.988 qwen2.5-1.5b 3.09 qwen2.5-3b 6.17 qwen2.5-7b 15.2 qwen2.5-14b 29.5
qwen2.5-32b 65.5 qwen2.5-72b 145 qwen3-0.6b 1.19 qwen3-1.7b 3.44 qwen3-4b 8.04 qwen3-8b 16.4
qwen3-14b 29.5 qwen3-32b 65.5 qwen3-30b-a3b 61.1 qwen3-235b-a22b 470 qwen3-coder-480b-a35b 960
qwen3-next-80b-a3b 163 gemma-2-2b 5.23 gemma-2-9b 18.5 gemma-2-27b 54.5 gemma-3-1b 2.00
gemma-3-4b 8.60 gemma-3-12b 24.4 gemma-3-27b 54.9 gpt-oss-20b 13.8 gpt-oss-120b 65.2 gpt2 0.548
whisper-large-v3 3.09 deepseek-v2-lite 31.4 deepseek-v3 689 deepseek-r1 689 deepseek-v3.2 689
kimi-k2 1030 glm-4-9b 18.8 glm-4.5 717 glm-4.5-air 221 phi-2 5.56 phi-3-mini-4k 7.64 phi-4 29.3
phi-4-mini 7.67 jamba-v0.1 103 lfm2-1.2b 2.34 command-r 70.0 command-r7b 16.1 command-a 222
exaone-4-32b 64.0 olmo-3-7b 14.6 seed-oss-36b 72.3 smollm-1.7b 3.42 smollm3-3b 6.15
granite-3.3-8b 16.3 starcoder2-15b 31.9 yi-34b 68.8 falcon-7b 14.4 falcon-40b 83.7 bloom-7b1 14.1
mpt-7b 13.3 falcon-mamba-7b 14.5 llama-3.3-nemotron-super-49b 99.7 nemotron-3-nano-30b-a3b 63.2
deepseek-v4-flash 160 deepseek-v4-pro 865 gemma-3n-e2b 10.9 gemma-3n-e4b 15.7 gemma-4-e2b 10.2
gemma-4-e4b 16.0 gemma-4-26b-a4b 51.6 gemma-4-31b 61.4 glm-4.7 717 glm-4.7-flash 62.4 glm-5 1510
kimi-k2.5 595 kimi-linear-48b-a3b 98.2 mimo-v2-flash 310 minimax-m2.5 230 ministral-3-3b 7.70
qwen3-vl-8b 17.5 qwen3-vl-235b-a22b 471 qwen3.5-27b 55.6 qwen3.5-397b-a17b 807 qwen3.6-35b-a3b 71.9
rwkv-5-3b 6.12 minimax-m2.7 230 deepseek-v3.1 689 glm-5.1 1510 glm-5.2 1510 qwen3.5-35b-a3b 71.9
qwen3.6-27b 55.6 smollm-135m 0.269 smollm-360m 0.724 smollm2-135m 0.269 smollm2-360m 0.724
qwen2-0.5b 0.988 qwen2-1.5b 3.09 codellama-7b 13.5 codellama-13b 26.0 codellama-34b 67.5
tinyllama-1.1b 2.20 phi-3.5-mini 7.64 gemma-2b 5.01 gemma-7b 17.1 mistral-7b-v0.2 14.5
mistral-large-2407 245 mistral-large-2411 245 smollm2-1.7b 3.42 lfm2-350m 0.709 lfm2-700m 1.48
lfm2-2.6b 5.14 lfm2-8b-a1b 16.7 granite-3.0-1b-a400m 2.67 granite-3.1-1b-a400m 2.67
granite-3.0-2b 5.07 granite-3.1-2b 5.07 granite-3.2-2b 5.07 granite-3.1-8b 16.3
granite-3.2-8b 16.3 granite-4.0-1b 3.26 granite-4.0-micro 6.81 granite-4.0-h-micro 6.38
granite-4.0-h-tiny 13.9 granite-4.0-h-small 64.4 deepseek-v2.5 472 deepseek-coder-v2 472
deepseek-coder-v2-lite 31.4 qwq-32b 65.5 qwen3-4b-2507 8.04 qwen3-coder-30b-a3b 61.1
"""


def published_bytes(name: str) -> int | None:
    """Return about how large the published weights of the built-in model *name* are, if known."""
    words = _PUBLISHED_GB.split()
    sizes = dict(zip(words[::2], words[1::2], strict=True))
    return int(float(sizes[name]) * 1e9) if name in sizes else None


def build(values: Mapping[str, int]) -> ModelGeometry:
    """Return equal full-attention layers; V is as wide as K unless ``head_dim_v`` is given."""
    facts = {name: Provenance(value, Source.FLAG, FLAGS[name]) for name, value in values.items()}
    dim = values["head_dim"]
    if "head_dim_v" not in values:
        facts["head_dim_v"] = Provenance(dim, Source.DERIVED, "flags", "as wide as K")
    tensors = pair(values["kv_heads"], dim, values.get("head_dim_v", dim))
    layers = tuple(Layer(i, LayerKind.FULL, tensors) for i in range(values["layers"]))
    return ModelGeometry("flags", "flags", layers, provenance=facts)


def known(name: str) -> bool:
    """Return whether *name* is a built-in model; upper and lower case are the same."""
    return name.lower() in names()


def load(name: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the built-in model *name*, which must be `known`."""
    key = name.lower()
    geometry = resolve(
        config_of(key), f"built-in {key}", key, source=Source.BUILTIN, overrides=overrides
    )
    read_in = Provenance(key, Source.BUILTIN, ORIGINS[key])
    return replace(geometry, provenance={"model": read_in, **geometry.provenance})


def suggestion(name: str) -> str:
    """Return what the user may have meant by *name*: first names that contain it, then close ones."""
    import difflib  # noqa: PLC0415  # only needed to help with a mistake

    wanted = name[:80].lower().rpartition("/")[2]
    containing = sorted((known for known in names() if wanted and wanted in known), key=len)
    close = difflib.get_close_matches(wanted, names(), n=3)
    found = list(dict.fromkeys([*containing, *close]))[:3]
    did_you_mean = f"did you mean {', '.join(found)}? " if found else ""
    return (
        f"{did_you_mean}give a path, OWNER/NAME, or a name that `vmtool kv-estimate --list` shows"
    )
