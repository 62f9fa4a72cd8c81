"""Hugging Face configs: the traps of field resolution, and what must fail rather than be guessed."""

from __future__ import annotations

import pytest

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import LayerKind, Source, Span, TensorRole
from vmtool.kv.sources.hf.config import FAMILIES, resolve

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


# ---- heads and widths -----------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"head_dim": None}])
def test_an_absent_or_null_head_dim_is_hidden_by_heads(extra):
    geometry = model({**LLAMA, **extra})
    assert shapes(geometry) == [(8, 128), (8, 128)]
    assert geometry.provenance["head_dim"].source is Source.DERIVED
    assert geometry.provenance["head_dim"].detail == "hidden / heads = 4096 / 32"


def test_a_head_dim_that_is_not_hidden_by_heads_wins():
    # Qwen3 and Mistral-Small: 25 % off if this is derived instead (Model-Optimizer#2482).
    geometry = model({**LLAMA, "hidden_size": 5120, "head_dim": 128})
    assert shapes(geometry) == [(8, 128), (8, 128)]
    fact = geometry.provenance["head_dim"]
    assert (fact.value, fact.source, fact.where, fact.detail) == (
        128,
        Source.FILE,
        "config.json",
        "head_dim",
    )


def test_a_fractional_head_dim_is_rounded_down_as_engines_do():
    geometry = model({**LLAMA, "num_attention_heads": 96})
    assert shapes(geometry)[0][1] == 42
    assert "4096 / 96, rounded down" in geometry.provenance["head_dim"].detail
    with pytest.raises(InputError, match="head_dim: is not given"):
        model({**LLAMA, "num_attention_heads": 8192})


@pytest.mark.parametrize("missing", [{"num_key_value_heads": None}, {}])
def test_null_or_absent_kv_heads_of_llama_are_the_query_heads(missing):
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert shapes(model({**config, **missing})) == [(32, 128), (32, 128)]


def test_absent_kv_heads_are_refused_where_the_class_has_its_own_number():
    config = {k: v for k, v in QWEN2.items() if k != "num_key_value_heads"}
    with pytest.raises(InputError, match="num_key_value_heads: is missing"):
        model(config)


def test_absent_kv_heads_of_mistral_are_its_default():
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    geometry = model({**config, "model_type": "mistral", "sliding_window": None})
    assert shapes(geometry) == [(8, 128), (8, 128)]
    assert geometry.provenance["kv_heads"].source is Source.DEFAULT
    assert geometry.provenance["kv_heads"].where == "mistral"


def test_the_vision_tower_never_wins():
    vision = {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27}
    geometry = model(
        {
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": {**GEMMA3, "head_dim": None},
            "vision_config": {"head_dim": 72, **vision},
        }
    )
    assert len(geometry.layers) == 12
    assert shapes(geometry) == [(8, 128), (8, 128)]
    assert geometry.provenance["kv_heads"].detail == "text_config.num_key_value_heads"


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_decoder_is_found_under_each_name(key):
    assert len(model({"model_type": "internvl_chat", key: LLAMA}).layers) == 4


def test_a_thinker_holds_the_text_config():
    geometry = model(
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {**LLAMA, "model_type": "qwen2_5_omni_text"},
            },
        }
    )
    assert len(geometry.layers) == 4


def test_an_unknown_wrapper_is_its_decoder():
    wrapper = {"model_type": "new_vlm", "text_config": LLAMA, "vision_config": {"head_dim": 9}}
    assert model(wrapper).layers == model(LLAMA).layers
    assert not model(wrapper).assumed


@pytest.mark.parametrize(
    "extra",
    [{"sliding_window": 512}, {"cache": {"window_size": 512}}, {"is_encoder_decoder": True}],
)
def test_a_wrapper_that_says_something_of_its_own_about_a_cache_is_refused(extra):
    with pytest.raises(InputError, match=next(iter(extra))):
        model({"model_type": "new_vlm", "text_config": LLAMA, **extra})


def test_a_wrapper_that_contradicts_its_decoder_is_refused():
    with pytest.raises(InputError, match="num_key_value_heads: differs from the decoder"):
        model({"model_type": "llava", "num_key_value_heads": 4, "text_config": LLAMA})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # Falcon-7B: one KV head whatever num_kv_heads says; Falcon-40B: 8 of them.
        ({"multi_query": True, "num_kv_heads": 71, "num_attention_heads": 71, "hidden_size": 4544},
         (1, 64)),
        ({"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 8}, (8, 128)),
        ({"multi_query": False}, (32, 128)),
        ({}, (1, 128)),
    ],
)  # fmt: skip
def test_falcon_counts_kv_heads_in_its_own_way(config, expected):
    base = {"model_type": "falcon", "num_hidden_layers": 1, "num_attention_heads": 32}
    assert shapes(model({**base, "hidden_size": 4096, **config}))[0] == expected


@pytest.mark.parametrize(("multi_query", "heads"), [(True, 1), (None, 1), (False, 16)])
def test_multi_query_of_gpt_bigcode_is_a_sixteenfold_trap(multi_query, heads):
    config = {"model_type": "gpt_bigcode", "n_layer": 1, "n_head": 16, "n_embd": 2048}
    if multi_query is not None:
        config["multi_query"] = multi_query
    assert shapes(model(config))[0] == (heads, 128)


@pytest.mark.parametrize(
    ("attn_config", "heads"),
    [
        (None, 32),
        ({"attn_type": "multihead_attention"}, 32),
        ({"attn_type": "multiquery_attention"}, 1),
        ({"attn_type": "grouped_query_attention", "kv_n_heads": 8}, 8),
        ({"kv_n_heads": 8}, 8),
    ],
)
def test_mpt_groups_heads_in_attn_config(attn_config, heads):
    config = {"model_type": "mpt", "n_layers": 1, "n_heads": 32, "d_model": 4096}
    assert shapes(model({**config, "attn_config": attn_config}))[0] == (heads, 128)


def test_an_unknown_mpt_attention_is_refused():
    config = {"model_type": "mpt", "n_layers": 1, "n_heads": 32, "d_model": 4096}
    with pytest.raises(InputError, match=r"attn_config\.attn_type: 'new' is not understood"):
        model({**config, "attn_config": {"attn_type": "new"}})


def test_chatglm_is_grouped_only_where_it_says_so():
    config = {
        "model_type": "chatglm",
        "num_layers": 1,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "kv_channels": 128,
        "multi_query_group_num": 2,
    }
    assert shapes(model({**config, "multi_query_attention": True}))[0] == (2, 128)
    assert shapes(model(config))[0] == (32, 128)


def test_k_and_v_widths_differ_in_mimo():
    config = {
        **LLAMA,
        "model_type": "mimo_v2_flash",
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "sliding_window": 128,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
    }
    geometry = model(config)
    assert shapes(geometry, 0) == [(4, 192), (4, 128)]
    assert shapes(geometry, 1) == [(8, 192), (8, 128)]
    assert kinds(geometry) == "FWWF"


def test_openelm_and_deci_give_kv_heads_layer_by_layer():
    openelm = {
        "model_type": "openelm",
        "num_transformer_layers": 3,
        "model_dim": 1280,
        "head_dim": 64,
        "num_kv_heads": [3, 4, 5],
    }
    assert [shapes(model(openelm), i)[0] for i in range(3)] == [(3, 64), (4, 64), (5, 64)]
    with pytest.raises(InputError, match=r"num_kv_heads: has 2 entries, but there are 3 layers"):
        model({**openelm, "num_kv_heads": [3, 4]})
    deci = {**LLAMA, "model_type": "deci", "num_key_value_heads_per_layer": [4, 4, 2, 1]}
    del deci["num_key_value_heads"]
    assert [shapes(model(deci), i)[0] for i in range(4)] == [(4, 128), (4, 128), (2, 128), (1, 128)]


# ---- windows and chunks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 1024, "max_window_layers": 2}, "FFFF"),
        ({"sliding_window": 1024}, "FFFF"),
        ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 3}, "FFFW"),
        ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 4}, "FFFF"),
        ({"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 0}, "WWWW"),
    ],
)
def test_qwen2_slides_only_when_it_says_so_and_from_a_layer_on(extra, expected):
    assert kinds(model({**QWEN2, **extra})) == expected


@pytest.mark.parametrize("missing", ["sliding_window", "max_window_layers"])
def test_qwen2_that_slides_without_saying_how_is_refused(missing):
    config = {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 2}
    with pytest.raises(InputError, match="use_sliding_window: is true"):
        model({**QWEN2, **config, missing: None})


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_both_spellings_of_the_pattern_count(key):
    assert kinds(model({**GEMMA3, key: 4})) == "WWWFWWWFWWWF"


def test_layer_types_win_over_the_pattern():
    types = ["full_attention"] * 11 + ["sliding_attention"]
    geometry = model({**GEMMA3, "layer_types": types, "_sliding_window_pattern": 6})
    assert kinds(geometry) == "F" * 11 + "W"


def test_a_window_as_long_as_the_context_is_full_attention():
    # Phi-4-mini names a window of 262144 tokens for 131072 of context.
    config = {**LLAMA, "model_type": "phi3", "sliding_window": 8192}
    geometry = model(config)
    assert kinds(geometry) == "FFFF"
    assert geometry.layers[0].tensors[0].extent.span is Span.ALL
    assert kinds(model({**config, "sliding_window": 8191})) == "WWWW"


@pytest.mark.parametrize(
    ("pattern", "expected"), [("LLLG", "WWWFWWWF"), (4, "WWWFWWWF"), ("LG", "WFWFWFWF")]
)
def test_exaone_writes_its_pattern_as_letters_or_a_number(pattern, expected):
    config = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 4096}
    assert kinds(model({**config, "sliding_window_pattern": pattern})) == expected
    assert kinds(model(config)) == "WWWFWWWF"
    assert kinds(model({**config, "sliding_window": None})) == "F" * 8


def test_gemma2_alternates_from_a_window():
    assert kinds(model({**LLAMA, "model_type": "gemma2", "sliding_window": 4096})) == "WFWF"


def test_llama4_keeps_chunks_except_where_rope_is_left_out():
    config = {**LLAMA, "model_type": "llama4_text", "attention_chunk_size": 4096}
    assert kinds(model(config)) == "CCCF"
    assert kinds(model({**config, "no_rope_layers": [1, 0, 1, 0]})) == "CFCF"
    assert kinds(model({**config, "attention_chunk_size": None})) == "FFFF"


def test_gemma4_full_layers_have_their_own_heads_and_the_last_is_full():
    config = {
        **LLAMA,
        "model_type": "gemma4_text",
        "num_hidden_layers": 8,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 2,
        "sliding_window": 1024,
        "attention_k_eq_v": True,
    }
    geometry = model(config)
    assert kinds(geometry) == "WWWWWFWF"
    assert shapes(geometry, 0) == [(8, 256), (8, 256)]
    assert shapes(geometry, 5) == [(2, 512), (2, 512)]
    without = model({**config, "attention_k_eq_v": False})
    assert shapes(without, 5) == [(8, 512), (8, 512)]


def test_shared_layers_keep_nothing_and_point_to_the_last_of_their_kind():
    # Gemma 3n E4B: 35 layers, of which 20 keep KV (unsloth#5225).
    config = {
        **LLAMA,
        "model_type": "gemma3n_text",
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 15,
        "sliding_window": 512,
    }
    layers = model(config).layers
    assert sum(bool(layer.tensors) for layer in layers) == 20
    assert all(layer.kind is LayerKind.SHARED and not layer.tensors for layer in layers[20:])
    assert (layers[20].shares, layers[24].shares) == (18, 19)
    with pytest.raises(InputError, match="num_kv_shared_layers: is 35"):
        model({**config, "num_kv_shared_layers": 35})


# ---- latents and index keys -----------------------------------------------------------------------


def test_a_latent_is_one_row_of_lora_and_rope():
    geometry = model(MLA)
    assert geometry.provenance["latent_dim"].value == 576
    (latent,) = geometry.layers[0].tensors
    assert (latent.role, latent.heads, latent.dim, latent.rope_dim) == (
        TensorRole.LATENT,
        1,
        576,
        64,
    )


def test_sparse_attention_adds_an_index_key():
    config = {**MLA, "model_type": "deepseek_v32", "index_head_dim": 128, "index_topk": 2048}
    latent, index = model(config).layers[0].tensors
    assert (latent.dim, index.role, index.heads, index.dim) == (576, TensorRole.INDEX, 1, 128)
    assert (index.elements_per_token, index.tokens_held(100)) == (128, 100)


@pytest.mark.parametrize(
    ("extra", "indexed"),
    [
        # transformers' GlmMoeDsaConfig: the first two, then every fourth after the second.
        ({"index_topk_freq": 4}, [0, 1, 5]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [0, 2, 4]),
        ({"index_topk_pattern": "FSSFSF"}, [0, 3, 5]),
        ({"indexer_types": ["full", "shared", "shared", "full", "shared", "shared"]}, [0, 3]),
        ({}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_layers_that_share_an_index_keep_none(extra, indexed):
    config = {**MLA, "model_type": "glm_moe_dsa", "num_hidden_layers": 6, **extra}
    layers = model(config).layers
    assert [i for i, layer in enumerate(layers) if len(layer.tensors) == 2] == indexed


def test_deepseek_v4_compresses_by_layer_and_keeps_a_window_everywhere():
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "sliding_window": 128,
        "index_head_dim": 128,
        "compress_ratios": [0, 4, 128, 0],
    }
    layers = model(config).layers
    held = [[(t.name, t.dim, t.tokens_held(1024)) for t in layer.tensors] for layer in layers]
    assert {t.heads for layer in layers for t in layer.tensors} == {1}
    window = ("window", 512, 128)
    assert held == [
        [window],
        [window, ("latent", 512, 256), ("index", 128, 256)],
        [window, ("latent", 512, 8)],
    ]
    with pytest.raises(InputError, match=r"compress_ratios\[1\]: is 8"):
        model({**config, "compress_ratios": [0, 8, 128]})
    with pytest.raises(InputError, match="compress_ratios: has 2 entries for 3 layers"):
        model({**config, "compress_ratios": [0, 4]})


# ---- layers without attention, and cross-attention ------------------------------------------------


def test_nemotron_blocks_group_heads_or_skip():
    def block(**attention):
        return {"attention": attention}

    config = {
        **LLAMA,
        "model_type": "nemotron-nas",
        "num_key_value_heads": None,
        "block_configs": [
            block(n_heads_in_group=8),
            block(no_op=True, n_heads_in_group=None),
            block(n_heads_in_group=16),
            block(replace_with_linear=True),
        ],
    }
    layers = model(config).layers
    assert [len(layer.tensors) for layer in layers] == [2, 0, 2, 0]
    assert [layers[i].tensors[0].heads for i in (0, 2)] == [4, 2]
    for attention in ({"window_length": 512}, {"num_sink_tokens": 4}, {"sparsify": []}):
        blocks = [block(n_heads_in_group=8, **attention)] * 4
        with pytest.raises(
            InputError, match=rf"block_configs\[0\]\.attention\.{next(iter(attention))}"
        ):
            model({**config, "block_configs": blocks})
    with pytest.raises(InputError, match="n_heads_in_group: is 5"):
        model({**config, "block_configs": [block(n_heads_in_group=5)] * 4})


def test_whisper_keeps_encoder_frames_besides_its_own():
    config = {"model_type": "whisper", "decoder_layers": 2, "decoder_attention_heads": 20}
    layer = model({**config, "d_model": 1280, "num_hidden_layers": 32}).layers[0]
    assert [(t.name, t.heads, t.dim, t.tokens_held(10)) for t in layer.tensors] == [
        ("k", 20, 64, 10),
        ("v", 20, 64, 10),
        ("cross_k", 20, 64, 1500),
        ("cross_v", 20, 64, 1500),
    ]


@pytest.mark.parametrize("kind", ["bart", "mbart"])
def test_bart_keeps_its_longest_input_besides_its_own(kind):
    # BART-large: 16 heads of 1024 / 16; the encoder has positions for 1024 tokens.
    config = {"model_type": kind, "decoder_layers": 12, "decoder_attention_heads": 16}
    config |= {"d_model": 1024, "max_position_embeddings": 1024, "is_encoder_decoder": True}
    geometry = model({**config, "num_hidden_layers": 6, "encoder_attention_heads": 8})
    assert (len(geometry.layers), geometry.context_tokens) == (12, 1024)
    assert [(t.name, t.heads, t.dim, t.tokens_held(10)) for t in geometry.layers[0].tensors] == [
        ("k", 16, 64, 10),
        ("v", 16, 64, 10),
        ("cross_k", 16, 64, 1024),
        ("cross_v", 16, 64, 1024),
    ]


@pytest.mark.parametrize(("stated", "layers"), [({}, 24), ({"num_decoder_layers": 6}, 6)])
def test_t5_has_heads_of_a_width_of_their_own(stated, layers):
    # T5-3B: 32 heads of 128, though d_model is 1024; the same in decoder and cross-attention.
    config = {"model_type": "t5", "d_model": 1024, "d_kv": 128, "num_heads": 32, "num_layers": 24}
    geometry = model({**config, "n_positions": 512, "is_encoder_decoder": True, **stated})
    assert (len(geometry.layers), geometry.context_tokens) == (layers, 512)
    assert [(t.name, t.heads, t.dim, t.tokens_held(10)) for t in geometry.layers[0].tensors] == [
        ("k", 32, 128, 10),
        ("v", 32, 128, 10),
        ("cross_k", 32, 128, 512),
        ("cross_v", 32, 128, 512),
    ]
    # Its positions are relative: without a number, as many as T5 was made for.
    without = model({**config, "is_encoder_decoder": True, **stated})
    assert without.layers == geometry.layers


def test_deepseek_v2_may_go_without_latents():
    # DeepSeek-OCR's decoder: 10 heads of 1280 / 10 (vLLM's use_mha).
    config = {**LLAMA, "model_type": "deepseek_v2", "hidden_size": 1280, "use_mla": False}
    config |= {"num_attention_heads": 10, "num_key_value_heads": 10, "kv_lora_rank": None}
    config |= {"qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    geometry = model(config)
    assert geometry.layers[0].kind is LayerKind.FULL
    assert shapes(geometry) == [(10, 128), (10, 128)]
    with pytest.raises(InputError, match="kv_lora_rank: is set, but use_mla is false"):
        model({**config, "kv_lora_rank": 512})
    assert model({**MLA, "model_type": "deepseek_v2"}).layers[0].kind is LayerKind.MLA


def test_minicpm3_keeps_padded_heads_and_no_latent():
    # MiniCPM3-4B in vLLM: K and V of 40 heads of 64 + 32, V padded from 64.
    config = {**LLAMA, "model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40}
    config |= {"num_key_value_heads": 40, "kv_lora_rank": 256, "q_lora_rank": 768}
    geometry = model({**config, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32})
    assert shapes(geometry) == [(40, 96), (40, 96)]


def test_step3_has_one_kv_head():
    config = {"num_hidden_layers": 2, "num_attention_heads": 64, "num_attention_groups": 1}
    config |= {"model_type": "step3_text", "hidden_size": 7168, "head_dim": 256}
    geometry = model(
        {"model_type": "step3_vl", "text_config": {**config, "max_position_embedding": 65536}}
    )
    assert (shapes(geometry), geometry.context_tokens) == ([(1, 256), (1, 256)], 65536)


def test_llama_vision_cross_layers_keep_one_image():
    # Llama 3.2 Vision: four tiles of (560 / 14)^2 patches and a class token each.
    text = {**LLAMA, "model_type": "mllama_text_model", "cross_attention_layers": [1]}
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    layers = model({"model_type": "mllama", "text_config": text, "vision_config": vision}).layers
    assert [layer.kind for layer in layers[:2]] == [LayerKind.FULL, LayerKind.CROSS]
    assert [t.tokens_held(7) for t in layers[1].tensors] == [6404, 6404]
    with pytest.raises(InputError, match="cross_attention_layers: needs vision_config"):
        model({"model_type": "mllama", "text_config": text})


# ---- other things a file may say ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"torch_dtype": "torch.float32"}, "fp32"),
        ({"torch_dtype": None}, None),
        ({"torch_dtype": "auto"}, None),
    ],
)
def test_dtype_has_two_keys_and_may_be_absent(extra, expected):
    assert model({**LLAMA, **extra}).dtype == expected


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InputError, match="torch_dtype: 'float8_e4m3fn' is not understood"):
        model({**LLAMA, "torch_dtype": "float8_e4m3fn"})


YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "factor": 4}


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        # vLLM's _get_and_verify_max_len; LLAMA has 8192 positions.
        ({"rope_scaling": {"rope_type": "yarn", **YARN}}, 4096),  # 1024 x 4
        ({"rope_scaling": {"type": "yarn", **YARN}}, 4096),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}}, 4096),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.5}}, 20480),  # 8192 x 2.5
        # transformers: the length beside rope_scaling wins over that in it.
        (
            {
                "rope_scaling": {"rope_type": "yarn", **YARN},
                "original_max_position_embeddings": 2048,
            },
            8192,
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"type": "dynamic", "factor": 3.0}}, 24576),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_scaling": {"type": "su", "factor": 8.0}}, 8192),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 8192),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 8192),
        ({"rope_scaling": {"rope_type": "default"}}, 8192),
        ({"rope_scaling": None}, 8192),
        # transformers 5: one object for each kind of layer.
        (
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "yarn", **YARN},
                }
            },
            4096,
        ),
        ({"rope_scaling": {"rope_type": "yarn", **YARN}, "max_position_embeddings": None}, 4096),
        ({"model_max_length": 131072}, 131072),  # Command-R
        ({"model_max_length": 1000, "rope_scaling": LINEAR}, 4000),
    ],
)
def test_positions_that_are_stretched_lengthen_the_context(rope, context):
    assert model({**LLAMA, **rope}).context_tokens == context


def test_a_stretched_context_says_from_what_it_was_worked_out():
    fact = model({**LLAMA, "rope_scaling": {"rope_type": "yarn", **YARN}}).provenance["context"]
    assert (fact.value, fact.source) == (4096, Source.DERIVED)
    assert fact.detail == "yarn: original_max_position_embeddings x factor = 1024 x 4"


def test_the_context_of_gemma_3_is_stretched_already():
    # vLLM's note in _get_and_verify_max_len; the published file has 131072 and a linear factor of 8.
    assert model({**GEMMA3, "rope_scaling": LINEAR}).context_tokens == 8192


def test_a_window_shorter_than_the_stretched_context_stays_a_window():
    config = {**LLAMA, "model_type": "mistral", "sliding_window": 16384}
    assert kinds(model(config)) == "FFFF"
    assert kinds(model({**config, "rope_scaling": LINEAR})) == "WWWW"


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ([], r"rope_scaling: must be an object"),
        ({"type": "linear", "factor": "4"}, r"rope_scaling\.factor: is 4; it must be a number"),
        ({"type": "linear", "factor": True}, r"rope_scaling\.factor: is True"),
        ({"type": "linear", "factor": -1}, r"rope_scaling\.factor: is -1"),
        ({"type": "linear", "factor": float("inf")}, r"rope_scaling\.factor: is inf"),
        ({"type": "linear", "factor": 1e-9}, r"rope_scaling\.factor: is 0"),
        ({"type": 1, "factor": 2}, r"rope_scaling\.type: must be a string"),
        (
            {"type": "yarn", "factor": 2, "original_max_position_embeddings": "4k"},
            r"rope_scaling\.original_max_position_embeddings: must be an integer",
        ),
    ],
)
def test_a_malformed_stretch_is_refused_by_field(rope, message):
    with pytest.raises(InputError, match=message):
        model({**LLAMA, "rope_scaling": rope})


# vLLM: validate_kv_cache_scheme of compressed_tensors.py, get_kv_cache_quant_algo_string.
FP8_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FP8_SCHEME}, "kv_cache_scheme"),
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, **FP8_SCHEME}},
            "kv_cache_scheme",
        ),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "kv_cache_quant_algo"),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "quantization.kv_cache_quant_algo"),
    ],
)
def test_a_checkpoint_may_ask_for_an_fp8_cache(quantization, key):
    geometry = model({**LLAMA, "quantization_config": quantization})
    assert (geometry.dtype, geometry.cache_dtype) == ("bf16", "fp8")
    fact = geometry.provenance["cache_dtype"]
    assert (fact.value, fact.source, fact.detail) == (
        "fp8",
        Source.FILE,
        f"quantization_config.{key}",
    )


@pytest.mark.parametrize(
    "quantization",
    [None, {}, {"kv_cache_scheme": None}, {"quant_method": "fp8", "activation_scheme": "dynamic"}],
)
def test_a_checkpoint_that_quantises_weights_only_has_a_cache_of_its_own_type(quantization):
    assert model({**LLAMA, "quantization_config": quantization}).cache_dtype is None


def test_the_quantisation_of_a_wrapper_is_that_of_its_decoder():
    quantization = {"kv_cache_scheme": FP8_SCHEME}
    config = {"model_type": "llava", "text_config": LLAMA, "quantization_config": quantization}
    assert model(config).cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_cache_quant_algo", "NVFP4"),
        ("kv_cache_scheme", "static"),
        ("kv_cache_scheme", {**FP8_SCHEME, "num_bits": 4}),
        ("kv_cache_scheme", {**FP8_SCHEME, "type": "int"}),
        ("kv_cache_scheme", {**FP8_SCHEME, "dynamic": True}),
        ("kv_cache_scheme", {**FP8_SCHEME, "symmetric": False}),
        ("kv_cache_scheme", {**FP8_SCHEME, "strategy": "channel"}),
    ],
)
def test_another_quantisation_of_the_cache_is_refused(key, value):
    with pytest.raises(InputError, match=rf"quantization_config\.{key}: .* not understood"):
        model({**LLAMA, "quantization_config": {key: value}})


def test_an_mlc_chat_config_is_opened_and_its_window_applied():
    inner = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    outer = {"model_type": "mistral", "model_config": inner, "quantization": "q4f16_1"}
    assert kinds(model({**outer, "sliding_window_size": 2048})) == "WWWW"
    assert kinds(model({**outer, "sliding_window_size": -1})) == "FFFF"


@pytest.mark.parametrize(("inner", "expected"), [(2048, "WWWW"), (-1, "FFFF")])
def test_an_mlc_window_may_also_be_inside(inner, expected):
    config = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    config["sliding_window_size"] = inner
    assert kinds(model({"model_type": "mistral", "model_config": config})) == expected


def test_an_mlc_config_without_a_window_has_mistrals_default():
    config = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    geometry = model({"model_type": "mistral", "model_config": config})
    assert geometry.layers[0].window == 4096


def test_a_missing_model_type_needs_a_supported_architecture():
    config = {k: v for k, v in LLAMA.items() if k != "model_type"}
    assert model({**config, "architectures": ["LlamaForCausalLM"]}).architecture == "llama"
    with pytest.raises(InputError, match="architectures: 'NewForCausalLM' is not understood"):
        model({**config, "architectures": ["NewForCausalLM"]})
    with pytest.raises(InputError, match="model_type: is missing"):
        model(config)


def test_an_unknown_architecture_is_refused_with_similar_ones():
    with pytest.raises(
        InputError, match="model_type: 'qwen33' is an unknown architecture"
    ) as caught:
        model({**LLAMA, "model_type": "qwen33", "kv_lora_rank": 512})
    assert "qwen3" in caught.value.hint
    assert "kv_lora_rank" in str(caught.value)


def test_an_unknown_architecture_with_standard_fields_alone_is_assumed_to_be_standard():
    geometry = model({**LLAMA, "model_type": "new_lm"})
    assert geometry.layers == model(LLAMA).layers
    assert geometry.assumed
    assert not model(LLAMA).assumed
    listed = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    config = {**LLAMA, "model_type": "new_lm", "num_hidden_layers": 2, **listed}
    assert kinds(model(config)) == "WF"


@pytest.mark.parametrize(
    "extra",
    [
        {"sliding_window": 64},
        {"layer_types": ["linear_attention"] * 2},
        {"attention": {"window_size": 64}},
        {"kv_channels": 64},
        {"is_encoder_decoder": True},
    ],
)
def test_an_unknown_architecture_with_any_other_field_about_a_cache_is_refused(extra):
    with pytest.raises(InputError, match=next(iter(extra))):
        model({**LLAMA, "model_type": "new_lm", "num_hidden_layers": 2, **extra})


def test_what_differs_from_layer_to_layer_is_read_from_per_layer_config():
    # As transformers 5 saves Gemma 4: by the number of the layer, padded with zeros.
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "hidden_size": 2816,
        "head_dim": 256,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"01": {"head_dim": 512, "num_key_value_heads": 2}},
    }
    geometry = model(config)
    assert shapes(geometry, 0) == [(8, 256), (8, 256)]
    assert shapes(geometry, 1) == [(2, 512), (2, 512)]
    by_kind = {"full_attention": config["per_layer_config"]["01"]}
    assert model({**config, "per_layer_config": by_kind}).layers == geometry.layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"02": {"head_dim": 512}}, "per_layer_config.02: is neither a kind nor a number"),
        ({"01": 512}, "per_layer_config.01: must be an object"),
        ({"01": {"head_dim": "x"}}, "per_layer_config.01.head_dim: must be an integer"),
        ({"01": {"kv_dim": 3}}, "per_layer_config.01.kv_dim: is set"),
    ],
)
def test_a_change_of_one_layer_that_is_not_understood_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        model({**LLAMA, "num_hidden_layers": 2, "per_layer_config": changes})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window", 4096),
        ("attention_chunk_size", 8192),
        ("kv_lora_rank", 512),
        ("num_kv_shared_layers", 2),
        ("index_head_dim", 128),
        ("compress_ratios", [4]),
        ("mamba_d_state", 16),
        ("linear_num_key_heads", 16),
        ("cross_attention_layers", [1]),
        ("kv_something_new", 3),
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("use_cla", True),
        ("use_bidirectional_attention", True),
        ("layer_types", ["sliding_attention"] * 4),
    ],
)
def test_a_set_attention_field_that_llama_does_not_know_is_refused(key, value):
    with pytest.raises(InputError, match=f"config.json: {key}.*not understood"):
        model({**LLAMA, key: value})


@pytest.mark.parametrize("value", [None, False, 0, [], ""])
def test_an_attention_field_that_says_nothing_is_let_through(value):
    assert len(model({**LLAMA, "num_kv_shared_layers": value, "new_window": value}).layers) == 4


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_architecture_refuses_an_empty_config_by_field(name):
    with pytest.raises(InputError, match=r"config\.json: \w+: "):
        model({"model_type": name, "num_hidden_layers": 0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "must be an integer, not true"),
        (8.0, "must be an integer, not the number 8.0"),
        ("8", "must be an integer, not the string '8'"),
        ([8], "must be an integer, not a list"),
        ({}, "must be an integer, not an object"),
        (0, "is 0; it must be from 1"),
        (-8, "is -8; it must be from 1"),
        (1 << 63, "is 9223372036854775808; it must be from 1"),
        pytest.param(10**4000, "is a number of 13288 bits; it must be from 1", id="huge"),
    ],
)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"]
)
def test_a_wrong_value_is_refused_by_field(key, value, message):
    config = {k: v for k, v in LLAMA.items() if k != "head_dim"}
    with pytest.raises(InputError, match=f"config.json: {key}: {message}") as caught:
        model({**config, key: value})
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", 5),
        ("torch_dtype", 16),
        ("architectures", "LlamaForCausalLM"),
        ("layer_types", "full_attention"),
        ("layer_types", ["full_attention"] * 3),
        ("layer_types", ["full_attention", 1, "full_attention", "full_attention"]),
        ("layer_types", ["full_attention"] * 100_000),
        ("max_position_embeddings", "8k"),
        ("text_config", []),
    ],
)
def test_other_wrong_types_are_refused_by_field(key, value):
    base = {**LLAMA, "model_type": "llava"} if key == "text_config" else dict(LLAMA)
    if key == "architectures":
        del base["model_type"]
    with pytest.raises(InputError, match=f"config.json: {key}"):
        model({**base, key: value})


def test_two_keys_for_one_value_must_agree():
    assert len(model({**LLAMA, "n_layer": 4}).layers) == 4
    with pytest.raises(InputError, match="n_layer: is 5, but num_hidden_layers is 4"):
        model({**LLAMA, "n_layer": 5})


# ---- overrides ------------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_say_so():
    geometry = model(LLAMA, layers=2, kv_heads=4, head_dim=64, head_dim_v=32)
    assert len(geometry.layers) == 2
    assert shapes(geometry) == [(4, 64), (4, 32)]
    fact = geometry.provenance["kv_heads"]
    assert (fact.value, fact.source, fact.where) == (4, Source.FLAG, "--kv-heads")


def test_a_flag_makes_up_for_a_missing_field():
    config = {k: v for k, v in QWEN2.items() if k != "num_key_value_heads"}
    assert shapes(model(config, kv_heads=2)) == [(2, 128), (2, 128)]


def test_a_flag_that_the_architecture_has_no_use_for_is_refused():
    with pytest.raises(UsageError, match="--kv-heads does not apply to deepseek_v3"):
        model(MLA, kv_heads=8)
