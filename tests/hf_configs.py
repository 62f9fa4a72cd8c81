"""Configs of Hugging Face models for tests, and what is read from them."""

from vmtool.kv.sources.hf.config_to_layers import resolve

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
GEMMA3 = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 1024}
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


def model(config, **overrides):
    return resolve(config, "config.json", "m", overrides=overrides)


def shapes(geometry, index=0):
    return [(t.heads, t.dim) for t in geometry.layers[index].tensors]


def kinds(geometry):
    return "".join(
        {"full attention": "F", "sliding window": "W", "chunked local": "C"}.get(
            layer.kind.value, "?"
        )
        for layer in geometry.layers
    )
