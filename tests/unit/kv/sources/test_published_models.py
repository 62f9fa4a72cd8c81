"""Published models: the bytes that follow from the deciding fields of their config files, at 16 bits.

Each line of published_models.jsonl has the deciding fields of one real file, where that file is,
and figures that were worked out apart from this program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vmtool.kv.geometry import Span, TensorRole
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.hf.config_to_layers import resolve

PUBLISHED = [
    json.loads(line)
    for line in (Path(__file__).parent / "published_models.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["model"] for row in PUBLISHED])
def test_a_published_model_costs_what_was_worked_out_for_it(row):
    layers = [own_tensors(layer) for layer in resolve(row["config"], "config.json", "m").layers]
    keeping_all = [ts for ts in layers if ts and ts[0].extent.span is Span.ALL]
    keeping_some = [ts for ts in layers if ts and ts[0].extent.span is not Span.ALL]
    assert (len(keeping_all), len(keeping_some)) == (row["full_layers"], row["window_layers"])
    assert all(ts[0].extent.size == row["window"] for ts in keeping_some)
    assert all(bytes_per_token(ts) == row["full_tensors"] for ts in keeping_all)
    assert all(bytes_per_token(ts) == row["window_tensors"] for ts in keeping_some)
    assert sum(sum(bytes_per_token(ts)) for ts in keeping_all) == row["full_layers_bytes"]
    assert sum(sum(bytes_per_token(ts)) for ts in layers) == row["all_layers_bytes"]


@pytest.mark.parametrize(
    ("model", "builtin"),
    [
        ("Qwen3-0.6B", "qwen3-0.6b"),
        ("Qwen3-8B", "qwen3-8b"),
        ("Qwen3-32B", "qwen3-32b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3-VL-8B-Instruct", "qwen3-vl-8b"),
        ("Qwen3.5-27B", "qwen3.5-27b"),
        ("Qwen3-Next-80B-A3B-Thinking", "qwen3-next-80b-a3b"),
        ("MiMo-V2-Flash", "mimo-v2-flash"),
        ("MiniMax-M2.5", "minimax-m2.5"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-V3.2", "deepseek-v3.2"),
        ("Kimi-K2-Instruct", "kimi-k2"),
        ("GLM-4.7-Flash", "glm-4.7-flash"),
        ("deepseek_v2_lite", "deepseek-v2-lite"),
        ("gemma-4-26B-A4B", "gemma-4-26b-a4b"),
        ("gemma-2-9b-it", "gemma-2-9b"),
        ("gemma3_1b_it", "gemma-3-1b"),
        ("Llama-4-Scout", "llama-4-scout"),
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("llama2_7b", "llama-2-7b"),
        ("llama3_2_1b", "llama-3.2-1b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistral_7b_v03", "mistral-7b-v0.3"),
        ("ministral3_3b_2512", "ministral-3-3b"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("Llama-3_3-Nemotron-Super-49B-v1", "llama-3.3-nemotron-super-49b"),
        ("Jamba-v0.1", "jamba-v0.1"),
        ("whisper-large-v3-finetune", "whisper-large-v3"),
        ("bloom-7b1", "bloom-7b1"),
        ("opt-6.7b", "opt-6.7b"),
        ("GLM-4.5-Air-shape_INTELLECT-3-Base", "glm-4.5-air"),
        ("gpt2", "gpt2"),
        ("phi-2", "phi-2"),
        ("phi-4", "phi-4-mini"),
        ("qwen2_7b", "qwen2-7b"),
        ("qwen2.5_3b", "qwen2.5-3b"),
        ("MiniMax-M2.7", "minimax-m2.7"),
        ("Qwen3.5-122B-A10B", "qwen3.5-122b-a10b"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B", "nemotron-3-super-120b-a12b"),
        ("Kimi-K3", "kimi-k3"),
        ("GLM-5.2", "glm-5.2"),
        ("Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("Mistral-Large-Instruct-2407", "mistral-large-2407"),
        ("Mistral-Large-Instruct-2411", "mistral-large-2411"),
        ("gemma-7b", "gemma-7b"),
        ("LFM2-350M", "lfm2-350m"),
        ("LFM2-700M", "lfm2-700m"),
        ("LFM2-2.6B", "lfm2-2.6b"),
        ("LFM2-8B-A1B", "lfm2-8b-a1b"),
        ("SmolLM2-1.7B-Instruct", "smollm2-1.7b"),
        ("granite-3.0-1b-a400m-base", "granite-3.0-1b-a400m"),
        ("granite-3.0-3b-a800m-instruct", "granite-3.0-3b-a800m"),
        ("granite-3.0-2b-instruct", "granite-3.0-2b"),
        ("granite-3.1-1b-a400m-base", "granite-3.1-1b-a400m"),
        ("granite-3.1-3b-a800m-instruct", "granite-3.1-3b-a800m"),
        ("granite-3.1-2b-instruct", "granite-3.1-2b"),
        ("granite-3.1-8b-instruct", "granite-3.1-8b"),
        ("granite-3.2-2b-instruct", "granite-3.2-2b"),
        ("granite-3.2-8b-instruct", "granite-3.2-8b"),
        ("granite-4.0-h-350m", "granite-4.0-h-350m"),
        ("granite-4.0-h-1b", "granite-4.0-h-1b"),
        ("granite-4.0-h-micro", "granite-4.0-h-micro"),
        ("granite-4.0-h-tiny", "granite-4.0-h-tiny"),
        ("granite-4.0-micro", "granite-4.0-micro"),
        ("Qwen1.5-7B-Chat", "qwen1.5-7b"),
        ("Qwen1.5-72B-Chat", "qwen1.5-72b"),
        ("Qwen2-72B-Instruct", "qwen2-72b"),
        ("Qwen2.5-VL-3B-Instruct", "qwen2.5-vl-3b"),
        ("Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("QwQ-32B", "qwq-32b"),
        ("Qwen3-4B-Instruct-2507", "qwen3-4b-2507"),
        ("Qwen3-Coder-30B-A3B", "qwen3-coder-30b-a3b"),
        ("Qwen3.5-4B", "qwen3.5-4b"),
        ("deepseek-llm-7b-base", "deepseek-llm-7b"),
        ("deepseek-llm-67b-base", "deepseek-llm-67b"),
        ("DeepSeek-Coder-V2-Lite-Base", "deepseek-coder-v2-lite"),
        ("GLM-4-32B-0414", "glm-4-32b"),
        ("Codestral-22B-v0.1", "codestral-22b"),
        ("pixtral-12b", "pixtral-12b"),
        ("Pixtral-Large-Instruct-2411", "pixtral-large"),
        ("Minitron-4B-Base", "minitron-4b"),
        ("Minitron-8B-Base", "minitron-8b"),
        ("gemma-3-270m-it", "gemma-3-270m"),
        ("Ministral-8B-Instruct-2410", "ministral-8b"),
        ("Phi-3-medium-4k-instruct", "phi-3-medium-4k"),
    ],
)
def test_a_built_in_model_is_what_its_published_file_comes_to(model, builtin):
    row = next((row for row in PUBLISHED if row["model"] == model), None)
    assert row is not None
    assert model_lookup.load(builtin).layers == resolve(row["config"], "config.json", "m").layers


@pytest.mark.parametrize(
    ("model", "builtin"), [("gpt-oss-20b", "gpt-oss-20b"), ("MiniMax-M2.5", "minimax-m2.5")]
)
def test_a_built_in_model_states_no_type_where_its_published_file_does_not(model, builtin):
    row = next(row for row in PUBLISHED if row["model"] == model)
    assert model_lookup.load(builtin).dtype is None
    assert resolve(row["config"], "config.json", "m").dtype is None


@pytest.mark.parametrize(
    ("name", "keeping", "bytes_a_token"),
    [
        ("mistral-large-3", 61, 61 * (512 + 64) * 2),
        ("deepseek-v2.5", 60, 60 * (512 + 64) * 2),
        ("deepseek-coder-v2", 60, 60 * (512 + 64) * 2),
        ("nemotron-nano-9b-v2", 4, 4 * 2 * 8 * 128 * 2),
        ("granite-4.0-350m", 28, 28 * 2 * 4 * 64 * 2),
        ("granite-4.0-1b", 40, 40 * 2 * 4 * 128 * 2),
        ("granite-4.0-h-small", 4, 4 * 2 * 8 * 128 * 2),
        ("granite-4.1-3b", 40, 40 * 2 * 8 * 64 * 2),
        ("granite-4.1-8b", 40, 40 * 2 * 8 * 128 * 2),
        ("granite-4.1-30b", 64, 64 * 2 * 8 * 128 * 2),
    ],
)
def test_a_built_in_model_without_a_config_file_costs_what_was_worked_out_for_it(
    name, keeping, bytes_a_token
):
    kept = [sum(bytes_per_token(own_tensors(layer))) for layer in model_lookup.load(name).layers]
    assert (sum(map(bool, kept)), sum(kept)) == (keeping, bytes_a_token)


def own_tensors(layer):
    """Return the layer's tensors without index keys and cross-attention, which are apart."""
    return [
        t
        for t in layer.tensors
        if t.role is not TensorRole.INDEX and t.extent.span is not Span.FIXED
    ]


def bytes_per_token(tensors):
    return [2 * t.elements_per_token for t in tensors]


#: What a published file has besides usual fields, and elements that the layers keep of a token.
PUBLISHED_FIELDS = {
    "MiniMax-M2.7": ({"model_type": "minimax_m2", "attn_type_list": [1, 1]}, 2 * 2 * 2 * 64),
    "MiniMax-M3": (
        {
            "model_type": "minimax_m3",
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_attention_freq": [0, 1],
                "sparse_index_dim": 32,
                "sparse_disable_index_value": [0, 1],
            },
        },
        2 * 2 * 2 * 64 + 32,
    ),
    "Nemotron-3-Super-120B-A12B": (
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "*E",
            "moe_latent_size": 1024,
            "mtp_hybrid_override_pattern": "*E",
        },
        2 * 2 * 64,
    ),
    "Kimi-K3": (
        {
            "model_type": "kimi_k3",
            "text_config": {
                "model_type": "kimi_linear",
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "latent_moe_use_norm": True,
                "linear_attn_config": {
                    "full_attn_layers": [2],
                    "kda_layers": [1],
                    "head_dim": 128,
                    "num_heads": 4,
                    "short_conv_kernel_size": 4,
                },
            },
        },
        576,
    ),
    "GLM-5.2": (
        {
            "model_type": "glm_moe_dsa",
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "index_share_for_mtp_iteration": True,
            "index_topk_freq": 4,
            "indexer_types": ["full", "shared"],
        },
        2 * 576 + 128,
    ),
    "GLM-5.2-NVFP4": (
        {
            "model_type": "glm_moe_dsa",
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "layer_types": ["deepseek_sparse_attention"] * 2,
        },
        2 * (576 + 128),
    ),
    "SmolLM2-135M": (
        {"model_type": "llama", "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
        2 * 2 * 2 * 64,
    ),
    "Phi-3.5-vision": ({"model_type": "phi3_v", "sliding_window": None}, 2 * 2 * 2 * 64),
    "Qwen-1_8B": (
        {"model_type": "qwen", "num_key_value_heads": None, "kv_channels": 64, "seq_length": 8192},
        2 * 2 * 4 * 64,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED_FIELDS)
def test_fields_of_a_published_file_that_change_nothing_are_not_refused(name):
    special, elements = PUBLISHED_FIELDS[name]
    usual = {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    if name not in ("Kimi-K3", "Qwen-1_8B"):
        usual["head_dim"] = 64
    if "text_config" in special:
        usual = {}
    made = resolve({**usual, **special}, "config.json", name)
    assert sum(t.elements_per_token for layer in made.layers for t in layer.tensors) == elements
