"""The GGUF architectures: what llama.cpp knows of each, and which keys may change the cache."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


class RecurrentState(enum.Enum):
    """Which state the layers without attention keep."""

    NONE = "none"
    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    DELTA = "delta"
    KIMI = "kimi"
    LIGHTNING = "lightning"
    SHORT_CONV = "short conv"
    RWKV = "rwkv"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What llama.cpp has about an architecture besides the file's keys.

    Attributes:
        period: One layer in *period* is full and the others windowed, unless the file says.
        dense_first: Whether that is the first of every *period*, and not the last.
        listed: Whether the file itself must say which layers are windowed.
        window: Tokens in the window where the file does not say.
        window_off: Whether llama.cpp keeps everything although the file names a window.
        window_layers: The only number of layers with which llama.cpp uses the window.
        chunk: Whether windows are chunks.
        state: What layers without attention keep.
        interval: Every *interval*-th layer attends, unless the file says; the others have a state.
        parallel: Whether every layer has both attention and a state.
        own_layers: Layers with KV of their own; the rest share.
        sparse: Whether all layers but the first dense ones also keep an index key in the type of K.
    """

    period: int | None = None
    dense_first: bool = False
    listed: bool = False
    window: int | None = None
    window_off: bool = False
    window_layers: int | None = None
    chunk: bool = False
    state: RecurrentState = RecurrentState.NONE
    interval: int | None = None
    parallel: bool = False
    own_layers: int | None = None
    sparse: bool = False


_FULL = (
    "llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder bloom stablelm qwen2 qwen2moe"
    " qwen2vl qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe phi2 orion internlm2 minicpm minicpm3 gemma"
    " starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 deepseek2-ocr"
    " deepseek32 glm-dsa chatglm glm4 glm4moe bitnet nemotron exaone granite granitemoe smollm3 arcee"
    " ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 hy_v4 seed_oss dots1"
    " bailingmoe bailingmoe2 minimax-m2 mistral3 apertus codeshell jais jais2 mistral4"
    " pangu-embedded qwen refact grovemoe maincoder plamo plm chameleon cogvlm hrm_text paddleocr pockettts"
    " t5"
)
# Their files say layer by layer which have the window.
_LISTED = "gemma4 mimo2 cohere2moe exaone-moe granite_swa maple mellum spark2_5 step35"
_CACHELESS = (
    "dream llada llada-moe rnd1 bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2"
    " jina-bert-v3 clef eurobert gemma-embedding t5encoder wavtokenizer-dec"
)
#: Architectures for which llama.cpp makes no cache: text diffusion, and encoders.
WITHOUT_CACHE = frozenset(_CACHELESS.split())
#: Architectures with caches of their own that are not read: those of several pools, Granite Switch,
#: which has a router layer besides, and a draft model that reads what another model keeps.
NOT_READ = frozenset(("dots3note", "gemma4-assistant", "glm5-next", "graniteswitch", "qwen4exp"))
#: The architectures that llama.cpp has, by the names in its llama-arch.cpp; what each reads is in
#: ``load_arch_hparams`` of the file of its name in src/models.
ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(_FULL.split(), Architecture()),
    **dict.fromkeys(_LISTED.split(), Architecture(listed=True)),
    **dict.fromkeys(("nanbeige", "phi3", "phimoe", "talkie"), Architecture(window_off=True)),
    "gemma2": Architecture(period=2, window=4096),
    "gemma3": Architecture(period=6),
    "gemma3n": Architecture(period=5, own_layers=20),
    "cohere2": Architecture(period=4),
    "minimax-m3": Architecture(sparse=True),
    "plamo3": Architecture(period=8),
    "exaone4": Architecture(period=4, window_layers=64),
    "olmo2": Architecture(period=4),
    "afmoe": Architecture(period=4),
    "muse-glimmer": Architecture(period=4),
    "laguna": Architecture(period=4, dense_first=True),
    "smallthinker": Architecture(period=4, dense_first=True, window=4096),
    "gpt-oss": Architecture(period=2),
    "llama4": Architecture(period=4, window=8192, chunk=True),
    "deepseek4": Architecture(),
    "mamba": Architecture(state=RecurrentState.MAMBA1),
    "jamba": Architecture(state=RecurrentState.MAMBA1),
    **dict.fromkeys(
        ("mamba2", "nemotron_h", "nemotron_h_moe", "granitehybrid"),
        Architecture(state=RecurrentState.MAMBA2),
    ),
    "falcon-h1": Architecture(state=RecurrentState.MAMBA2, parallel=True),
    "plamo2": Architecture(state=RecurrentState.MAMBA1),
    **dict.fromkeys(
        ("qwen3next", "qwen35", "qwen35moe"), Architecture(state=RecurrentState.DELTA, interval=4)
    ),
    **dict.fromkeys(
        ("bailingmoe3", "kimi-linear", "kimi-k3"), Architecture(state=RecurrentState.KIMI)
    ),
    "minimax-01": Architecture(state=RecurrentState.LIGHTNING, interval=8),
    **dict.fromkeys(("lfm2", "lfm2moe"), Architecture(state=RecurrentState.SHORT_CONV)),
    **dict.fromkeys(
        ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), Architecture(state=RecurrentState.RWKV)
    ),
}
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
