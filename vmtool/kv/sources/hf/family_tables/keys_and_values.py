"""Architectures whose layers keep K and V for each token: full, windowed, chunked, or listed one by one."""

from __future__ import annotations

from vmtool.kv.geometry import LayerKind
from vmtool.kv.sources.hf import attention_tensors, layer_kinds, special_layers
from vmtool.kv.sources.hf.family import Family

_WINDOW = LayerKind.WINDOW
_WINDOWED = Family(plan=layer_kinds.window_if_set, meaning=layer_kinds.WINDOW_NAMES)
_QWEN2 = Family(plan=layer_kinds.window_above, meaning=layer_kinds.WINDOW_NAMES)
_QWEN3 = Family(
    plan=layer_kinds.window_above, meaning=layer_kinds.WINDOW_NAMES, defaults={"head_dim": 128}
)
_GEMMA2 = Family(
    plan=layer_kinds.unless_last_of(2, _WINDOW),
    meaning=layer_kinds.WINDOW_NAMES,
    defaults={"head_dim": 256, "window": 4096},
)
_GEMMA4 = Family(
    plan=layer_kinds.unless_last_of(6, _WINDOW, last_is_rest=True),
    meaning=layer_kinds.WINDOW_NAMES,
    attention=attention_tensors.gemma4,
    finish=special_layers.share_last,
    names={
        "global_kv_heads": ("num_global_key_value_heads",),
        "shared_layers": ("num_kv_shared_layers",),
    },
    defaults={"head_dim": 256, "global_head_dim": 512},
    # Images attend both ways within themselves; text does not, and the cache is the same.
    harmless=frozenset({"use_bidirectional_attention"}),
)
# Where the file gives no number of KV heads, these have one for each query head.
_MHA_BY_DEFAULT = (
    "apertus apertus1p5_text aquila arcee aria_text baichuan biogpt bloom camembert chameleon codegen"
    " cohere ctrl data2vec-text deepseek deepseek_ocr2_text diffllama electra ernie evolla flex_olmo"
    " git gpt2 gpt_neox gpt_neox_japanese gptj granite granite4_vision_text granite_docling_text"
    " granitemoe granitemoeshared internlm jais2"
    " megatron-bert molmo2_text musicgen_decoder musicgen_melody_decoder nanochat olmo2"
    " openai-gpt opt orion persimmon phi phi-msft rembert roberta roberta-prelayernorm roc_bert"
    " roformer xlm-roberta xlm-roberta-xl xmod xverse"
    " PanguEmbedded TeleFLM param2moe step1 telechat telechat2 telechat3"
)
_HUNYUAN_MODELS = "hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text"
_BERT_MODELS = "bert bert-generation big_bird blip_text_model"
_FULL_MODELS = (
    "bailing_moe bailing_moe_v2 bitnet emu3_text_model ernie4_5_moe ernie4_5_vl_moe_text exaone"
    " glm4_moe glm4v_moe_text glm4v_text glm_ocr_text internlm2 minicpm solar stablelm yi"
)
_FULL_128_MODELS = (
    "cosmos3_edge_text ernie4_5 glm glm4 helium hy_v3 hyperclovax internlm3 iquestcoder"
    " paddleocr_vl_text seed_oss solar_open"
)
# They state their layers one by one.
_LISTED_MODELS = (
    "beam cohere_compass_text cwm flint granite_swa granitemoe_swa kolibri1 mellum muse_glimmer_text"
    " muse_spark_text rnj1 step3p5"
)
_WINDOW_MODELS = "mixtral phi4_multimodal phi4mm phimoe starcoder2"
_QWEN2_MODELS = (
    "qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text dots1 mimo"
    " qwen3_vl_moe_text qwen3_omni_moe_text"
)
KEYS_AND_VALUES: dict[str, Family] = {
    **dict.fromkeys(_MHA_BY_DEFAULT.split(), Family(mha_by_default=True)),
    **dict.fromkeys(
        _BERT_MODELS.split(), Family(mha_by_default=True, harmless=frozenset({"attention_type"}))
    ),
    # What they clip are the values of queries, keys and values.
    **dict.fromkeys(
        ("olmo", "olmoe"), Family(mha_by_default=True, harmless=frozenset({"clip_qkv"}))
    ),
    **dict.fromkeys(
        _HUNYUAN_MODELS.split(),
        Family(names={"head_dim": ("head_dim", "attention_head_dim")}, mha_by_default=True),
    ),
    **dict.fromkeys(_FULL_MODELS.split(), Family()),
    # The convolutions of ERNIE 4.5 VL are between its images and its layers.
    "ernie4_5_moe_vl": Family(harmless=frozenset({"spatial_conv_size", "temporal_conv_size"})),
    "paddleocr_vl": Family(defaults={"head_dim": 128}, harmless=frozenset({"compression_ratio"})),
    **dict.fromkeys(
        _LISTED_MODELS.split(),
        Family(
            plan=layer_kinds.no_window,
            meaning=layer_kinds.WINDOW_NAMES,
            names={"kv_heads": ("num_key_value_heads", "num_attention_groups")},
            finish=special_layers.step3p5,
            mha_by_default=True,
            harmless=frozenset({"attention_other_setting", "num_sliding_attention_heads"}),
        ),
    ),
    **dict.fromkeys(_FULL_128_MODELS.split(), Family(defaults={"head_dim": 128})),
    # The first MiniMax M2 kept two fields of its predecessor, whose layers were linear in part.
    "minimax_m2": Family(
        defaults={"head_dim": 128},
        harmless=frozenset({"attn_type_list", "layernorm_linear_attention_beta"}),
    ),
    "nemotron": Family(names={"head_dim": ("head_dim", "kv_channels")}, mha_by_default=True),
    "llama": Family(
        defaults={"layers": 32, "heads": 32, "hidden": 4096, "context": 2048}, mha_by_default=True
    ),
    "gemma": Family(
        defaults={"head_dim": 256, "context": 8192},
        harmless=frozenset({"use_bidirectional_attention"}),
    ),
    "smollm3": Family(
        plan=layer_kinds.smollm3,
        meaning=layer_kinds.WINDOW_NAMES,
        harmless=frozenset({"no_rope_layers", "no_rope_layer_interval", "max_window_layers"}),
    ),
    "cpmant": Family(
        names={"head_dim": ("dim_head",)}, defaults={"head_dim": 128}, mha_by_default=True
    ),
    # Its cross attention makes K and V of the pictures anew in each step.
    "idefics": Family(mha_by_default=True, harmless=frozenset({"cross_layer_interval"})),
    "moondream3_text": Family(
        names={
            "hidden": ("dim", "hidden_size"),
            "kv_heads": ("n_kv_heads", "num_key_value_heads"),
            "context": ("max_context", "max_position_embeddings"),
        },
        mha_by_default=True,
    ),
    **dict.fromkeys(
        ("k2_horizon", "xllm"), Family(mha_by_default=True, harmless=frozenset({"rope_head_dim"}))
    ),
    "nanbeige": Family(finish=special_layers.nanbeige, mha_by_default=True),
    "spark2_5": Family(
        plan=layer_kinds.unless_last_of(4, _WINDOW),
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={"head_dim": 256, "window": 512},
    ),
    # Its class makes the list of layers from three others, whatever the file has.
    "iquest_q1": Family(
        plan=layer_kinds.iquest_q1,
        types_key="",
        defaults={"head_dim": 128, "window": 4096},
        harmless=frozenset({"layer_types", "no_rope_layers"}),
    ),
    "iquestloopcoder": Family(finish=special_layers.loopcoder, mha_by_default=True),
    "doge": Family(
        plan=layer_kinds.window_if_set,
        mha_by_default=True,
        harmless=frozenset({"keep_window_size"}),
    ),
    # Its local layers mask what they keep.
    "gpt_neo": Family(
        mha_by_default=True,
        harmless=frozenset({"attention_layers", "attention_types", "window_size"}),
    ),
    "jetmoe": Family(names={"head_dim": ("kv_channels",)}, defaults={"head_dim": 128}),
    "sarvam_moe": Family(defaults={"head_dim": 64}),
    "xlm": Family(names={"hidden": ("emb_dim",)}, mha_by_default=True),
    "xglm": Family(names={"heads": ("attention_heads",)}, mha_by_default=True),
    **dict.fromkeys(
        ("kosmos_2_text_model", "kosmos_2_5_text_model"),
        Family(
            names={
                "layers": ("layers",),
                "heads": ("attention_heads",),
                "hidden": ("embed_dim",),
            },
            mha_by_default=True,
        ),
    ),
    "hrm_text": Family(
        plan=layer_kinds.hrm_text,
        defaults={"head_dim": 128},
        mha_by_default=True,
        harmless=frozenset({"prefix_lm", "num_layers_per_stack"}),
    ),
    **dict.fromkeys(
        ("kyutai_speech_to_text", "moshi", "voxtral_realtime_text"),
        Family(plan=layer_kinds.window_if_set, mha_by_default=True),
    ),
    "unlimited_ocr_text": Family(
        meaning={**layer_kinds.FULL_NAMES, "reference_sliding_attention": LayerKind.FULL},
        mha_by_default=True,
        harmless=frozenset({"sliding_window"}),
    ),
    "plamo3": Family(
        plan=layer_kinds.unlisted,
        meaning=layer_kinds.WINDOW_NAMES,
        harmless=frozenset({"interleaved_sliding_window"}),
    ),
    "modernbert-decoder": Family(
        plan=layer_kinds.unless_first_of_three,
        meaning=layer_kinds.WINDOW_NAMES,
        attention=attention_tensors.half_window,
        names={"period": ("global_attn_every_n_layers",)},
        defaults={"local_attention": 128},
        mha_by_default=True,
    ),
    "exaone_moe": Family(
        plan=layer_kinds.exaone4,
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={"window": 4096},
        mha_by_default=True,
    ),
    "cohere2_moe": Family(
        plan=layer_kinds.cohere2_moe,
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={"window": 4096, "head_dim": 128},
        mha_by_default=True,
        harmless=frozenset({"prefix_dense_sliding_window_pattern"}),
    ),
    "dory": Family(build=special_layers.dory),
    **dict.fromkeys(
        ("minimax_m3", "minimax_m3_text", "minimax_m3_vl_text"),
        Family(
            build=special_layers.minimax_m3,
            names={"index_dim": ("index_head_dim",)},
            harmless=frozenset(
                {"index_block_size", "index_local_blocks", "index_n_heads", "index_topk_blocks"}
            ),
        ),
    ),
    **dict.fromkeys(_WINDOW_MODELS.split(), _WINDOWED),
    **dict.fromkeys(
        ("phi3", "phi3_v"),
        Family(
            plan=layer_kinds.window_if_set, meaning=layer_kinds.WINDOW_NAMES, mha_by_default=True
        ),
    ),
    # Its sparse layers skip blocks of what they keep.
    "phi3small": Family(
        harmless=frozenset({"blocksparse_block_size", "blocksparse_homo_head_pattern"})
        | {"blocksparse_num_local_blocks", "blocksparse_triton_kernel_block_size"}
        | {"blocksparse_vert_stride", "dense_attention_every_n_layers"}
    ),
    "qwen": Family(names={"head_dim": ("kv_channels",)}, mha_by_default=True),
    "ministral": Family(
        plan=layer_kinds.window_if_set, meaning=layer_kinds.WINDOW_NAMES, defaults={"window": 4096}
    ),
    # The second is Ministral 3, which may also write a block of tokens at a time.
    **dict.fromkeys(
        ("ministral3", "nemotron_labs_diffusion"),
        Family(
            plan=layer_kinds.window_if_set,
            meaning=layer_kinds.WINDOW_NAMES,
            defaults={"head_dim": 128},
        ),
    ),
    "mistral": Family(
        plan=layer_kinds.window_if_set,
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={"layers": 32, "heads": 32, "hidden": 4096, "kv_heads": 8, "window": 4096},
        # MLC counts the pinned first tokens within the window.
        harmless=frozenset({"attention_sink_size"}),
    ),
    **dict.fromkeys(_QWEN2_MODELS.split(), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), _QWEN3),
    "qwen2_moe": Family(plan=layer_kinds.alternate_if_used, meaning=layer_kinds.WINDOW_NAMES),
    "qwen3_moe": Family(
        plan=layer_kinds.window_if_used,
        meaning=layer_kinds.WINDOW_NAMES,
        harmless=frozenset({"max_window_layers"}),
    ),
    **dict.fromkeys(("gemma2", "vaultgemma"), _GEMMA2),
    "gemma3_text": Family(
        plan=layer_kinds.unless_last_of(6, _WINDOW),
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={
            "layers": 26,
            "hidden": 2304,
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 256,
            "context": 131072,
            "window": 4096,
        },
    ),
    "gemma3n_text": Family(
        plan=layer_kinds.unless_last_of(5, _WINDOW),
        meaning=layer_kinds.WINDOW_NAMES,
        finish=special_layers.share_last,
        names={"shared_layers": ("num_kv_shared_layers",)},
        defaults={"head_dim": 256, "kv_heads": 2, "heads": 8, "window": 512, "shared_layers": 15},
        harmless=frozenset({"activation_sparsity_pattern"}),
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"), _GEMMA4),
    "gpt_oss": Family(
        plan=layer_kinds.unless_last_of(2, _WINDOW),
        meaning=layer_kinds.WINDOW_NAMES,
        defaults={"head_dim": 64, "window": 128, "kv_heads": 8, "heads": 64},
    ),
    **dict.fromkeys(
        ("cohere2", "olmo3"),
        Family(
            plan=layer_kinds.unless_last_of(4, _WINDOW),
            meaning=layer_kinds.WINDOW_NAMES,
            defaults={"window": 4096},
            mha_by_default=True,
        ),
    ),
    "exaone4": Family(
        plan=layer_kinds.exaone4, meaning=layer_kinds.WINDOW_NAMES, defaults={"window": 4096}
    ),
    "afmoe": Family(
        plan=layer_kinds.unless_last_of(4, _WINDOW),
        meaning=layer_kinds.WINDOW_NAMES,
        names={"period": ("global_attn_every_n_layers",)},
        defaults={"window": 1024, "head_dim": 128},
        mha_by_default=True,
    ),
    "laguna": Family(
        meaning=layer_kinds.WINDOW_NAMES, harmless=frozenset({"num_attention_heads_per_layer"})
    ),
    "mimo_v2_flash": Family(
        plan=layer_kinds.flagged("hybrid_layer_pattern", _WINDOW, LayerKind.FULL),
        meaning=layer_kinds.WINDOW_NAMES,
        attention=attention_tensors.mimo_v2,
        names={
            "swa_kv_heads": ("swa_num_key_value_heads",),
            "swa_head_dim_v": ("swa_v_head_dim",),
        },
        # The published file repeats its window as attention_chunk_size.
        harmless=frozenset(
            {"attention_chunk_size", "swa_num_attention_heads", "swa_rope_theta"}
            | {"add_swa_attention_sink_bias", "add_full_attention_sink_bias"}
        ),
    ),
    "llama4_text": Family(
        plan=layer_kinds.llama4,
        meaning={**layer_kinds.FULL_NAMES, "chunked_attention": LayerKind.CHUNK},
        names={"period": ("no_rope_layer_interval",)},
        defaults={"chunk": 8192, "head_dim": 128, "kv_heads": 8},
        harmless=frozenset({"no_rope_layers"}),
    ),
    "gpt_bigcode": Family(attention=attention_tensors.multi_query, mha_by_default=True),
    "falcon": Family(attention=attention_tensors.falcon, mha_by_default=True),
    **dict.fromkeys(("mpt", "dbrx"), Family(attention=attention_tensors.mpt)),
    "chatglm": Family(
        attention=attention_tensors.chatglm,
        names={
            "head_dim": ("kv_channels",),
            "kv_heads": ("multi_query_group_num",),
            "context": ("seq_length", "max_sequence_length", "max_position_embeddings"),
        },
    ),
    "openelm": Family(
        build=special_layers.heads_per_layer,
        names={
            "layers": ("num_transformer_layers",),
            "kv_heads": ("num_kv_heads",),
            "hidden": ("model_dim",),
            "context": ("max_context_length",),
        },
        harmless=frozenset({"share_input_output_layers", "num_query_heads"}),
    ),
    "deci": Family(
        build=special_layers.heads_per_layer,
        names={"kv_heads": ("num_key_value_heads_per_layer",)},
    ),
    "granite_switch": Family(
        finish=special_layers.granite_switch,
        names={"adapters": ("num_adapters",)},
        mha_by_default=True,
        # Those of its parent class, whose other layers are Mamba's; a switch has none.
        harmless=frozenset(
            {"mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state"}
            | {"mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias"}
            | {"max_lora_rank"}
        ),
        source="modeling_granite_switch.py of github.com/generative-computing/granite-switch",
    ),
    "moonshot_kimia": Family(
        finish=special_layers.kimi_audio,
        names={"audio_layers": ("kimia_mimo_layers",)},
        harmless=frozenset({"kimia_mimo_audiodelaytokens"})
        | {"kimia_mimo_transformer_from_layer_index"},
    ),
    "nemotron-nas": Family(build=special_layers.block_configs),
    # One KV head (vLLM's Step3TextAttention).
    "step3_text": Family(
        names={
            "kv_heads": ("num_attention_groups",),
            "context": ("max_position_embedding", "max_position_embeddings"),
        },
        defaults={"kv_heads": 1, "head_dim": 256},
    ),
    "mllama_text_model": Family(plan=layer_kinds.mllama, attention=attention_tensors.mllama),
}
