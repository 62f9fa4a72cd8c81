"""Where the fields of each built-in model were read."""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    "github.com/ai-dynamo/aiconfigurator: model_configs": """
        deepseek-v3 deepseek-v3.2 deepseek-v4-flash deepseek-v4-pro gemma-4-26b-a4b glm-4.7
        glm-4.7-flash glm-5 gpt-oss-20b kimi-k2 kimi-k2.5 llama-3.1-70b llama-3.1-8b llama-3.3-70b
        llama-3.3-nemotron-super-49b llama-4-maverick llama-4-scout mimo-v2-flash minimax-m2.5
        mixtral-8x7b nemotron-3-nano-30b-a3b qwen3-0.6b qwen3-30b-a3b qwen3-32b qwen3-8b
        qwen3-next-80b-a3b qwen3-vl-235b-a22b qwen3-vl-8b qwen3.5-27b qwen3.5-397b-a17b""",
    "github.com/mlc-ai/mlc-llm: model_preset.py": """
        deepseek-v2-lite gemma-2-27b gemma-2-2b gemma-3-1b gpt2 llama-2-13b llama-2-70b llama-2-7b
        llama-3-70b llama-3-8b llama-3.2-1b llama-3.2-3b ministral-3-3b mistral-7b-v0.1
        mistral-7b-v0.3 phi-2 phi-3-mini-4k phi-4-mini qwen2-7b qwen2.5-0.5b qwen2.5-1.5b
        qwen2.5-3b qwen3-1.7b qwen3-4b rwkv-5-3b""",
    "config.json on huggingface.co, its own or a finetune's": """
        bloom-7b1 command-r7b gemma-2-9b glm-4.5-air jamba-v0.1 opt-6.7b whisper-large-v3""",
    "copies of config.json in public source code": """
        command-a deepseek-r1 exaone-4-32b falcon-40b falcon-7b falcon-mamba-7b gemma-3-12b
        gemma-3-27b gemma-3-4b gemma-3n-e2b gemma-3n-e4b gemma-4-12b gemma-4-31b gemma-4-e2b
        gemma-4-e4b glm-4-9b glm-4.5 granite-3.3-8b kimi-linear-48b-a3b lfm2-1.2b llama-3.1-405b
        mixtral-8x22b olmo-3-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b qwen2.5-7b qwen3-14b
        qwen3-235b-a22b qwen3-coder-480b-a35b qwen3.6-35b-a3b seed-oss-36b smollm3-3b""",
    "cache sizes in public logs agree; layers and heads from the model card": """
        command-r gpt-oss-120b mistral-small-24b smollm-1.7b yi-34b""",
    "model card or paper; no config.json was seen": """
        mistral-nemo-12b mpt-7b phi-4 starcoder2-15b""",
}
#: The origin of each built-in model.
ORIGINS: Final = {name: origin for origin, names in _NAMES.items() for name in names.split()}
