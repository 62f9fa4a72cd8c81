"""An architecture by its name: its family, the file that defines it, and its class's defaults."""

from __future__ import annotations

import functools
import os
import re
from typing import Final

from vmtool.kv.sources.hf import layer_kinds
from vmtool.kv.sources.hf.family import Family
from vmtool.kv.sources.hf.family_tables.keys_and_values import KEYS_AND_VALUES

#: What an unknown architecture is taken for if it has only fields that all decoders have.
STANDARD: Final = Family(
    plan=layer_kinds.no_window,
    meaning=layer_kinds.WINDOW_NAMES,
    mha_by_default=True,
    source="standard attention",
)
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
    "LongcatFlashForCausalLM": "longcat_flash",
    "LongcatFlashNgramForCausalLM": "longcat_flash_ngram",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "UMT5ForConditionalGeneration": "umt5",
}


def families() -> dict[str, Family]:
    """Return every known architecture, by its ``model_type``."""
    from vmtool.kv.sources.hf.family_tables.encoder_decoder import ENCODER_DECODER  # noqa: PLC0415
    from vmtool.kv.sources.hf.family_tables.latents import LATENTS  # noqa: PLC0415
    from vmtool.kv.sources.hf.family_tables.recurrent import RECURRENT  # noqa: PLC0415

    return {**KEYS_AND_VALUES, **ENCODER_DECODER, **LATENTS, **RECURRENT}


def family_of(architecture: str) -> Family:
    """Return the family of *architecture*; the largest part of them is loaded only if it is needed."""
    return KEYS_AND_VALUES.get(architecture) or families().get(architecture, STANDARD)


def similar_to(architecture: str) -> str | None:
    """Return a hint with the known architectures that are spelled like *architecture*."""
    import difflib  # noqa: PLC0415  # only needed to help with a mistake

    close = difflib.get_close_matches(architecture[:60], families(), n=3)
    return f"vmtool knows these similar ones: {', '.join(close)}" if close else None


#: What types of models add to the name of their module in transformers.
_SUFFIX: Final = re.compile(r"_(?:text_model|text_module|text|module|decoder)$")
#: Types whose module has another name.
_MODULES: Final = {
    "data2vec-text": "data2vec_text",
    "deepseek_ref": "deepseek_v4",
    "hrm_text": "hrm_text",
    "kosmos_2_5_text_model": "kosmos2_5",
    "minimax_m3_text": "minimax_m3_vl",
    "kosmos_2_text_model": "kosmos2",
    "kyutai_speech_to_text": "kyutai_speech_to_text",
    "openai-gpt": "openai",
    "speech_to_text": "speech_to_text",
    "step3p5": "step3p7",
    "t5_gemma_module": "t5gemma",
}
#: Types that transformers 5.24 does not have, and the file of vLLM 0.33 that runs them.
_IN_VLLM: Final = {
    name: file
    for file, names in {
        "alice_ai": "alice_ai",
        "bailing_moe": "bailing_moe bailing_moe_v2",
        "chatglm": "chatglm",
        "deepseek_v2": "deepseek kimi_k2",
        "internlm2": "internlm2",
        "iquest_loopcoder": "iquestloopcoder",
        "k2_horizon": "k2_horizon",
        "exaone": "exaone",
        "llama": "internlm3 iquestcoder telechat3",
        "mimo": "mimo",
        "longcat_flash_ngram": "longcat_flash_ngram",
        "minicpm": "minicpm",
        "moondream3": "moondream3_text",
        "nemotron_nas": "deci nemotron-nas",
        "openpangu": "PanguEmbedded pangu_ultra_moe",
        "orion": "orion",
        "param2moe": "param2moe",
        "phi4mm": "phi4mm",
        "plamo3": "plamo3",
        "rnj1": "rnj1",
        "sarvam": "sarvam_mla sarvam_moe",
        "solar": "solar",
        "step1": "step1",
        "step3_text": "step3_text",
        "telechat2": "telechat telechat2",
        "teleflm": "TeleFLM",
    }.items()
    for name in names.split()
}
#: Types that neither has, and the file of SGLang 0.5.23 that runs them.
_IN_SGLANG: Final = {
    **dict.fromkeys(("iquest_q1", "jet_nemotron", "nanbeige", "spark2_5", "xllm"), ""),
    "gigachat3_5": "gigachat35",
    "interns2_mobius_text": "interns2_mobius",
}
#: Types that none has, and the code that came with their weights.
_WITH_WEIGHTS: Final = {
    "aquila": "modeling_aquila.py",
    "baichuan": "modeling_baichuan.py",
    "internlm": "modeling_internlm.py",
    "kimi_k3": "modeling_kimi_linear.py",
    "minimax_m3": "modeling_minimax_m3.py",
    "phi3_v": "modeling_phi3_v.py",
    "phi3small": "modeling_phi3_small.py",
    "minimax_m1": "modeling_minimax_m1.py",
    "minimax_text_01": "modeling_minimax_text_01.py",
    "moonshot_kimia": "modeling_moonshot_kimia.py",
    "nemotron_labs_diffusion": "modeling_nemotron_labs_diffusion.py",
    "openelm": "modeling_openelm.py",
    "phi-msft": "modeling_phi.py",
    "phi4flash": "modeling_phi4flash.py",
    "qwen": "modeling_qwen.py",
    "rwkv5": "modeling_rwkv5.py",
    "rwkv6": "modeling_rwkv6.py",
    "xverse": "modeling_xverse.py",
    "yi": "modeling_yi.py",
}


def source_of(architecture: str, family: Family) -> str:
    """Return the file where it is written what a model of *architecture* caches."""
    if family.source:
        return family.source
    if architecture in _IN_VLLM:
        return f"models/{_IN_VLLM[architecture]}.py of vLLM 0.33"
    if architecture in _IN_SGLANG:
        return f"models/{_IN_SGLANG[architecture] or architecture}.py of SGLang 0.5.23"
    if architecture in _WITH_WEIGHTS:
        return f"{_WITH_WEIGHTS[architecture]} beside the weights"
    name = architecture.replace("-", "_")
    module = _MODULES.get(architecture) or _SUFFIX.sub("", name)
    return f"modeling_{module}.py of transformers 5.24"


@functools.cache
def config_defaults(name: str) -> dict[str, int]:
    """Return what the config class of a type, or of ``wrapper/type``, assumes for absent fields.

    ``scripts/config_defaults.py`` writes the file, a line each.
    """
    with open(f"{os.path.dirname(__file__)}/config_defaults.txt", encoding="utf-8") as file:  # noqa: PTH120
        line = next((line for line in file if line.startswith(f"{name} ")), "")
    parts = (value.partition("=") for value in line.split()[1:])
    return {key: int(number or 1) for key, _, number in parts}
