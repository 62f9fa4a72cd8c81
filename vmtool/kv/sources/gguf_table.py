"""The GGUF architectures that vmtool understands, as llama.cpp lays out their caches."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.Enum):
    """Which state the layers without attention keep."""

    NONE = "none"
    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    DELTA = "delta"
    SHORT_CONV = "short conv"
    RWKV = "rwkv"


@dataclass(frozen=True, slots=True)
class Rule:
    """What llama.cpp knows about an architecture besides the file's keys.

    Attributes:
        period: Every *period*-th layer is full and the others windowed, unless the file says.
        listed: Whether the file itself must say which layers are windowed.
        window: Tokens in the window where the file does not say.
        window_off: Whether llama.cpp keeps everything although the file names a window.
        chunk: Whether windows are chunks.
        state: What layers without attention keep.
        interval: Every *interval*-th layer attends, unless the file says; the others have a state.
        parallel: Whether every layer has both attention and a state.
        own_layers: Layers with KV of their own; the rest share.
    """

    period: int | None = None
    listed: bool = False
    window: int | None = None
    window_off: bool = False
    chunk: bool = False
    state: State = State.NONE
    interval: int | None = None
    parallel: bool = False
    own_layers: int | None = None


_FULL = (
    "llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder bloom stablelm qwen2 qwen2moe"
    " qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 orion internlm2 minicpm minicpm3 gemma"
    " starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 glm-dsa chatglm"
    " glm4 glm4moe bitnet nemotron exaone granite granitemoe smollm3 arcee ernie4_5 ernie4_5-moe"
    " hunyuan-moe hunyuan-dense seed_oss dots1 bailingmoe bailingmoe2 minimax-m2 mistral3 apertus"
    " codeshell jais2 mistral4 pangu-embedded qwen refact"
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_FULL.split(), Rule()),
    **dict.fromkeys(("phi3", "phimoe"), Rule(window_off=True)),
    "gemma2": Rule(period=2, window=4096),
    "gemma3": Rule(period=6),
    "gemma3n": Rule(period=5, own_layers=20),
    "gemma4": Rule(listed=True),
    "cohere2": Rule(period=4),
    "exaone4": Rule(period=4),
    "olmo2": Rule(period=4),
    "afmoe": Rule(period=4),
    "gpt-oss": Rule(period=2),
    "mimo2": Rule(listed=True),
    "llama4": Rule(period=4, window=8192, chunk=True),
    "mamba": Rule(state=State.MAMBA1),
    "jamba": Rule(state=State.MAMBA1),
    **dict.fromkeys(
        ("mamba2", "nemotron_h", "nemotron_h_moe", "granitehybrid"), Rule(state=State.MAMBA2)
    ),
    "falcon-h1": Rule(state=State.MAMBA2, parallel=True),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), Rule(state=State.DELTA, interval=4)),
    **dict.fromkeys(("lfm2", "lfm2moe"), Rule(state=State.SHORT_CONV)),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2", "rwkv7"), Rule(state=State.RWKV)),
}

#: Under ``<architecture>.``, keys with these starts may change what is cached.
SUSPECT = (
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
HARMLESS = frozenset(
    f"attention.{name}"
    for name in (
        "causal",
        "clamp_kqv",
        "group_norm_epsilon",
        "group_norm_groups",
        "head_count",
        "indexer.head_count",
        "indexer.top_k",
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
) | {"ssm.dt_b_c_rms"}
