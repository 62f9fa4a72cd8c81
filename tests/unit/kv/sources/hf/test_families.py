"""Families of Hugging Face models: heads, windows and latents, and what must not be guessed."""

from __future__ import annotations

import pytest
from hf_configs import GEMMA3, LLAMA, MLA, QWEN2, kinds, model, shapes

from vmtool.errors import InputError
from vmtool.kv.geometry import LayerKind, Source, Span, TensorRole

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


def test_absent_kv_heads_are_the_class_own_number_where_it_has_one():
    # Qwen2Config has 32, whatever the number of query heads, and MellumConfig 4.
    config = {k: v for k, v in QWEN2.items() if k != "num_key_value_heads"}
    assert model(config).provenance["kv_heads"].value == 32
    config = {"model_type": "mellum", "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    assert shapes(model({**config, "num_attention_heads": 64})) == [(4, 128), (4, 128)]


def test_absent_kv_heads_are_the_query_heads_where_the_class_takes_them_so():
    config = {**LLAMA, "model_type": "hyperclovax", "head_dim": 128}
    del config["num_key_value_heads"]
    assert shapes(model(config)) == [(32, 128), (32, 128)]


def test_a_decoder_inside_another_config_may_leave_out_what_its_class_assumes():
    # As transformers 5.24 reads them: Qwen2Config has 32 layers, Voxtral's decoder 30.
    text = {"model_type": "qwen2", "num_attention_heads": 32, "hidden_size": 4096}
    geometry = model({"model_type": "qwen2_audio", "text_config": text})
    assert (len(geometry.layers), geometry.context_tokens) == (32, 32768)
    assert geometry.provenance["layers"].source is Source.DEFAULT
    voxtral = model({"model_type": "voxtral", "text_config": {"model_type": "llama"}})
    assert (len(voxtral.layers), shapes(voxtral)) == (30, [(8, 128), (8, 128)])


def test_a_list_of_kinds_wins_over_the_number_of_layers_that_the_class_assumes():
    kinds = ["sliding_attention", "full_attention"]
    config = {"model_type": "gpt_oss", "hidden_size": 2880, "layer_types": kinds}
    assert len(model(config).layers) == 2


def test_absent_kv_heads_of_mistral_are_its_default():
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    geometry = model({**config, "model_type": "mistral", "sliding_window": None})
    assert shapes(geometry) == [(8, 128), (8, 128)]
    assert geometry.provenance["kv_heads"].source is Source.DEFAULT
    assert geometry.provenance["kv_heads"].where.startswith("configuration_mistral.py")


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


# ---- configs of vLLM 0.33's own -------------------------------------------------------------------


SPARSE = {"sparse_attention_config": {"sparse_attention_freq": [0, 1], "sparse_index_dim": 128}}


def test_moondream3_names_its_sizes_itself():
    # configs/moondream3.py and models/moondream3.py: heads of dim / n_heads = 64.
    text = {"model_type": "moondream3_text", "dim": 2048, "n_layers": 2, "n_heads": 32}
    geometry = model({**text, "n_kv_heads": 8, "max_context": 4096, "ff_dim": 8192})
    assert (shapes(geometry), geometry.context_tokens) == ([(8, 64), (8, 64)], 4096)


def test_sinks_that_are_learned_keep_nothing():
    sparse = {**MLA, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048}
    plain = model({**sparse, "model_type": "hy_v4"})
    learned = model({**sparse, "model_type": "hy_v4", "learnable_sink": True})
    assert learned.layers == plain.layers


@pytest.mark.parametrize(
    ("kind", "like", "config"),
    [
        ("minimax_m3_text", "minimax_m3", {**LLAMA, "num_hidden_layers": 2, **SPARSE}),
        ("longcat_flash_ngram", "longcat_flash", MLA),
    ],
)
def test_other_names_of_a_type_are_the_same(kind, like, config):
    found = model({**config, "model_type": kind})
    assert found.layers == model({**config, "model_type": like}).layers


def test_a_wrapper_that_also_makes_pictures_is_counted_as_its_decoder():
    inner = {**QWEN2, "model_type": "qwen2"}
    wrapped = {"model_type": "bagel", "llm_config": inner, "latent_patch_size": 2}
    assert model({**wrapped, "max_latent_size": 64}).layers == model(inner).layers


def test_modernbert_decoders_keep_half_of_their_local_attention():
    # As ModernBertDecoderConfig reads files of the hub: the first of every three layers keeps all.
    config = {"model_type": "modernbert-decoder", "num_hidden_layers": 7, "hidden_size": 768}
    config |= {"num_attention_heads": 12, "global_attn_every_n_layers": 3, "local_attention": 256}
    layers = model(config).layers
    assert [layer.window for layer in layers] == [None, 128, 128, None, 128, 128, None]
    default = {
        key: value for key, value in config.items() if "attn" not in key and "local" not in key
    }
    assert [layer.window for layer in model(default).layers[:4]] == [None, 64, 64, None]


# ---- decoders that only SGLang 0.5.23 or the code beside their weights has --------------------

_PLAIN = {
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
}
_THREE_TO_ONE = (["linear_attention"] * 3 + ["full_attention"]) * 2


def test_nanbeige_runs_all_layers_again_with_a_cache_for_each():
    # NanbeigeAttention has a RadixAttention for each of its loops, of which there are 2 by default.
    config = {**_PLAIN, "model_type": "nanbeige"}
    assert len(model(config).layers) == 16
    assert len(model({**config, "num_loops": 3}).layers) == 24


def test_spark_has_a_window_in_three_of_four_layers():
    config = {**_PLAIN, "model_type": "spark2_5"}
    assert [layer.window for layer in model(config).layers] == [512, 512, 512, None] * 2


@pytest.mark.parametrize(
    ("extra", "windows"),
    [
        ({}, [None, None, 4096, 4096, None, 4096, 4096, None]),
        ({"use_sliding_window": False}, [None] * 8),
        ({"use_hybrid_layers": False}, [None] * 8),
    ],
)
def test_iquest_q1_repeats_a_block_between_its_first_and_last_layers(extra, windows):
    config = {
        **_PLAIN,
        "model_type": "iquest_q1",
        "sliding_window": 4096,
        "first_layers_types": ["full_attention"],
        "hybrid_layers_types_block": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_hybrid_layers_block": 2,
        "last_layers_types": ["full_attention"],
        **extra,
    }
    assert [layer.window for layer in model(config).layers] == windows


def test_iquest_q1_refuses_lists_that_are_not_its_layers():
    config = {**_PLAIN, "model_type": "iquest_q1", "sliding_window": 4096}
    with pytest.raises(InputError, match="gives 12 layers, not 8"):
        model({**config, "num_hybrid_layers_block": 2})


@pytest.mark.parametrize(
    "layers", [{"layer_types": _THREE_TO_ONE}, {"full_attention_layers": [3, 7]}]
)
def test_gigachat_3_5_has_latents_and_gated_delta_nets(layers):
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    config = {
        **_PLAIN,
        **_DELTA,
        **latent,
        "model_type": "gigachat3_5",
        "v_head_dim": 128,
        **layers,
    }
    made = model(config)
    assert [layer.kind for layer in made.layers] == 2 * (
        3 * [LayerKind.GATED_DELTA] + [LayerKind.MLA]
    )
    conv, recurrent = made.layers[0].states
    assert (conv.elements, recurrent.elements) == ((2 * 8 + 16) * 128 * 3, 16 * 128 * 128)
    assert sum(tensor.elements_per_token for tensor in made.layers[3].tensors) == 576


def test_interns2_mobius_has_its_experts_in_blocks_and_the_caches_of_qwen():
    inner = {**_PLAIN, **_DELTA, "model_type": "interns2_mobius_text", "num_blocks": 4}
    config = {
        "model_type": "interns2_mobius",
        "text_config": {**inner, "layer_types": _THREE_TO_ONE},
    }
    assert [layer.kind for layer in model(config).layers] == 2 * (
        3 * [LayerKind.GATED_DELTA] + [LayerKind.FULL]
    )


def test_jet_nemotron_has_its_states_and_windows_in_an_object():
    config = {
        **_PLAIN,
        "num_hidden_layers": 3,
        "model_type": "jet_nemotron",
        "layer_types": ["jet", "attn", "swa"],
        "efficient_attention_config": {
            "swa": {"window_size": 1024},
            "jet": {
                "mode": "chunk",
                "expand_v": 2.0,
                "num_heads": 12,
                "head_dim": 96,
                "conv_size": 4,
            },
        },
    }
    made = model(config)
    conv, recurrent = made.layers[0].states
    assert (conv.elements, recurrent.elements) == (12 * (96 + 96 + 192) * 3, 12 * 96 * 192)
    assert [layer.window for layer in made.layers] == [None, None, 1024]
    config["efficient_attention_config"].pop("swa")
    with pytest.raises(InputError, match="has no 'swa'"):
        model(config)


def test_longcat_files_without_a_type_are_known_by_their_class():
    config = {
        "architectures": ["LongcatFlashForCausalLM"],
        "num_layers": 4,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 131_072,
    }
    with_type = model({**config, "model_type": "longcat_flash"})
    assert model(config).layers == with_type.layers


def test_nemotron_h_puzzle_has_blocks_with_fields_of_their_own():
    config = {
        **_PLAIN,
        "num_hidden_layers": 4,
        "model_type": "nemotron_h_puzzle",
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "layers_block_type": ["mamba", "moe", "attention", "attention"],
        "block_configs": [
            {"block_type": "mamba"},
            {"block_type": "moe", "n_routed_experts": 64, "moe_intermediate_size": 1024},
            {"block_type": "attention"},
            {"block_type": "attention", "num_key_value_heads": 2},
        ],
    }
    made = model(config)
    assert shapes(made, 2) == [(4, 128)] * 2
    assert shapes(made, 3) == [(2, 128)] * 2
    assert made.layers[0].states[1].dtype == "fp32"
    with pytest.raises(InputError, match="block_configs"):
        model({**config, "block_configs": config["block_configs"][1:]})
    with pytest.raises(InputError, match="window"):
        model({**config, "block_configs": [*config["block_configs"][:3], {"attention_window": 8}]})


def test_phi_3_small_keeps_the_blocks_that_its_sparse_layers_skip():
    config = {
        **_PLAIN,
        "model_type": "phi3small",
        "num_key_value_heads": 8,
        "dense_attention_every_n_layers": 2,
        "blocksparse_block_size": 64,
        "blocksparse_homo_head_pattern": False,
        "blocksparse_num_local_blocks": 16,
        "blocksparse_triton_kernel_block_size": 64,
        "blocksparse_vert_stride": 8,
        "pad_sequence_to_multiple_of_64": True,
    }
    assert kinds(model(config)) == "F" * 8


def test_a_list_of_kinds_counts_the_layers_where_their_number_is_null():
    config = {**_PLAIN, "model_type": "qwen3", "layer_types": ["full_attention"] * 5}
    assert len(model({**config, "num_hidden_layers": None}).layers) == 5


def test_the_decoder_of_deepseek_vl2_may_leave_out_its_type():
    inner = {**_PLAIN, "use_mla": False}
    config = {"model_type": "deepseek_vl_v2", "language_config": inner}
    assert kinds(model(config)) == "F" * 8
