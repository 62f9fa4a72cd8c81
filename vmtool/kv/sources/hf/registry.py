"""The architectures that vmtool understands, by ``model_type``.

Defaults are those of the transformers config classes (read in transformers 5.24) for keys that
published configs leave out.
"""

from __future__ import annotations

from vmtool.kv.sources.hf.dense import DENSE
from vmtool.kv.sources.hf.hybrid import HYBRID

FAMILIES = {**DENSE, **HYBRID}

_WRAPPERS = (
    "aya_vision cohere2_vision deepseek_vl_v2 gemma3 gemma3n gemma4 gemma4_unified glm4v"
    " glm4v_moe idefics2 idefics3 internvl internvl_chat kimi_k25 kimi_vl lfm2_vl llama4 llava"
    " llava_next llava_next_video llava_onevision ministral3 mistral3 mllama paligemma"
    " qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_5_moe"
    " qwen3_omni_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe smolvlm step3_vl video_llava"
    " vipllava voxtral"
)
#: Models of several parts whose decoder is an object inside, and attends as it does on its own.
WRAPPERS = frozenset(_WRAPPERS.split())

#: Keys under which wrappers keep their decoder.
INNER_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")

#: For files without ``model_type``.
ARCHITECTURES = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GemmaForCausalLM": "gemma",
    "GptOssForCausalLM": "gpt_oss",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
