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


def test_nemotron_may_name_its_head_dim_as_megatron_does():
    # nvidia/Nemotron-Mini-4B-Instruct and Nemotron-4-Mini-Hindi-4B-Instruct.
    file = {"num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8}
    named = model({"model_type": "nemotron", "hidden_size": 3072, "kv_channels": 128, **file})
    assert shapes(named) == [(8, 128), (8, 128)]


def test_nemotron_h_may_name_its_state_twice():
    # nvidia/Nemotron-H-47B-Reasoning-128K.
    file = {"model_type": "nemotron_h", "num_hidden_layers": 2, "hybrid_override_pattern": "M*"}
    file |= {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_size": 8192,
        "n_groups": 8,
    }
    file |= {"mamba_num_heads": 256, "mamba_head_dim": 64, "conv_kernel": 4, "ssm_state_size": 256}
    assert model({**file, "mamba_d_state": 256}).layers == model(file).layers
    with pytest.raises(InputError, match="mamba_d_state"):
        model({**file, "mamba_d_state": 128})


@pytest.mark.parametrize(
    ("architecture", "fields", "dim"),
    [
        # tencent/Hunyuan-0.5B-Pretrain, without and with the other name alone.
        ("hunyuan_v1_dense", {"head_dim": 128, "attention_head_dim": 128}, 128),
        ("hunyuan_v1_dense", {"attention_head_dim": 128, "use_cla": False}, 128),
        # allenai/OLMo-7B-0724-hf and OLMoE clip what they put into the cache.
        ("olmo", {"clip_qkv": 8.0}, 64),
        ("olmoe", {"clip_qkv": 8.0}, 64),
        # PaddlePaddle/PaddleOCR-VL and baidu/ERNIE-4.5-VL-28B-A3B-Thinking have no text_config.
        (
            "paddleocr_vl",
            {"compression_ratio": 1.0, "vision_config": {"num_attention_heads": 16}},
            128,
        ),
        ("ernie4_5_moe_vl", {"spatial_conv_size": 2, "temporal_conv_size": 2}, 64),
    ],
)
def test_fields_of_published_files_that_leave_the_cache_as_it_is(architecture, fields, dim):
    file = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}
    geometry = model({"model_type": architecture, "hidden_size": 512, **file, **fields})
    assert (kinds(geometry), shapes(geometry)) == ("FF", [(2, dim), (2, dim)])


def test_hunyuan_names_its_head_dim_twice_and_not_in_two_ways():
    file = {"model_type": "hunyuan_v1_dense", "num_hidden_layers": 2, "num_attention_heads": 8}
    with pytest.raises(InputError, match="attention_head_dim: is 128, but head_dim is 32"):
        model({**file, "hidden_size": 512, "head_dim": 32, "attention_head_dim": 128})


def test_moonshine_pads_its_heads_outside_the_cache():
    # UsefulSensors/moonshine-base; transformers pads what the cache returned.
    file = {"model_type": "moonshine", "hidden_size": 416, "max_position_embeddings": 194}
    padded = model({**file, "pad_head_dim_to_multiple_of": 8})
    assert padded.layers == model(file).layers
    assert shapes(padded)[0] == (8, 52)


def test_umt5_is_known_without_its_type():
    # google/umt5-small states none.
    file = {"num_heads": 6, "num_layers": 8, "d_model": 512, "d_kv": 64}
    untyped = model({"architectures": ["UMT5ForConditionalGeneration"], **file})
    assert untyped.layers == model({"model_type": "umt5", **file}).layers


def test_minimax_m2_attends_in_all_layers_though_it_has_fields_of_its_predecessor():
    file = {"model_type": "minimax_m2", "num_hidden_layers": 2, "num_attention_heads": 48}
    old = {"attn_type_list": [1, 1], "layernorm_linear_attention_beta": 1.0}
    geometry = model({**file, "num_key_value_heads": 8, "hidden_size": 3072, **old})
    assert kinds(geometry) == "FF"
    assert shapes(geometry) == [(8, 128), (8, 128)]


#: ibm-granite/granite-switch-4.1-3b-preview, with fewer layers.
SWITCH = {
    "model_type": "granite_switch",
    "num_hidden_layers": 4,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "hidden_size": 2560,
    "layer_types": 4 * ["attention"],
    "num_adapters": 12,
    "projection_head_dim": 64,
    "switch_head_dim": 32,
    "control_token_gain": 15.0,
    "max_lora_rank": 32,
    "mamba_n_heads": 128,
    "mamba_expand": 2,
}


@pytest.mark.parametrize(
    ("fields", "switch"),
    [
        ({"num_adapters": 0}, []),
        ({}, [(1, 64)]),
        ({"switch_type": "single"}, [(1, 64)]),
        ({"switch_type": "multi"}, [(1, 32), (1, 64)]),
        # No file with the later switch lacks the order of its code, 2 to the power of which is a word.
        ({"ms_code_m": 6, "ms_counting_head_dim": 8}, [(1, 32), (1, 64)]),
        ({"ms_code_m": 8, "ms_counting_head_dim": 48}, [(1, 48), (1, 256)]),
    ],
)
def test_granite_switch_has_layers_of_one_kv_head_before_the_others(fields, switch):
    layers = model({**SWITCH, **fields}).layers
    found = [(t.heads, t.dim) for layer in layers for t in layer.tensors]
    own = [shape for shape in switch for _ in ("k", "v")]
    assert found == own + (4 - len(switch)) * [(8, 64), (8, 64)]
    assert [layer.index for layer in layers] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"switch_type": "triple"}, "switch_type"),
        ({"num_hidden_layers": 1, "layer_types": ["attention"]}, "num_hidden_layers"),
    ],
)
def test_granite_switch_must_be_one_of_two_and_have_layers_after_it(fields, named):
    with pytest.raises(InputError, match=named):
        model({**SWITCH, **fields})


def test_the_audio_branch_of_kimi_audio_keeps_as_much_as_its_other_layers():
    # moonshotai/Kimi-Audio-7B-Instruct, with fewer layers.
    file = {"model_type": "moonshot_kimia", "num_hidden_layers": 4, "num_attention_heads": 28}
    file |= {"num_key_value_heads": 4, "hidden_size": 3584, "kimia_mimo_audiodelaytokens": 6}
    branch = {"kimia_mimo_layers": 2, "kimia_mimo_transformer_from_layer_index": 1}
    layers = model({**file, **branch}).layers
    assert [layer.index for layer in layers] == [0, 1, 2, 3, 4, 5]
    assert {(t.heads, t.dim) for layer in layers for t in layer.tensors} == {(4, 128)}
    assert len(model(file).layers) == 4


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
    with pytest.raises(InputError, match="is 36, but there are 35 layers"):
        model({**config, "num_kv_shared_layers": 36})


def test_a_model_that_shares_all_its_layers_reads_the_cache_of_another():
    # google/gemma-4-31B-it-assistant, the draft model of Gemma 4 31B.
    text = {**LLAMA, "model_type": "gemma4_text", "num_kv_shared_layers": 4, "sliding_window": 1024}
    assert text["num_hidden_layers"] == 4
    with pytest.raises(InputError, match="is 4, all layers: the model reads the cache of another"):
        model({"model_type": "gemma4_assistant", "num_centroids": 2048, "text_config": text})


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
    with pytest.raises(InputError, match="qk_rope_head_dim: is 513; it must be from 1 to 512"):
        model({**config, "qk_rope_head_dim": 513})


DEEPSEEK_V41 = {
    "model_type": "deepseek_v41_text",
    "num_hidden_layers": 5,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "index_head_dim": 128,
    "compress_ratios": [0, 2, 2, 1, 1, 0],
    "kv_source_layer_ids": [1, 3],
}


def test_deepseek_v41_keeps_entries_in_the_layers_that_others_read():
    wrapped = {"model_type": "deepseek_v41", "text_config": dict(DEEPSEEK_V41)}
    layers = model(DEEPSEEK_V41).layers
    assert model(wrapped).layers == layers
    del wrapped["text_config"]["model_type"]
    assert model(wrapped).layers == layers
    held = [[(t.name, t.dim, t.tokens_held(1025)) for t in layer.tensors] for layer in layers]
    window = ("window", 512, 128)
    assert held == [
        [window],
        [window, ("latent", 512, 513), ("index", 128, 513)],
        [window],
        [window, ("latent", 512, 1025), ("index", 128, 1025)],
        [window],
    ]
    assert [sum(s.elements for s in layer.states) for layer in layers] == [0, 8 * 1024, 0, 0, 0]
    assert [layer.shares for layer in layers] == [None, None, 1, None, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compress_ratios": [0, 4, 2, 1, 1]}, r"compress_ratios\[1\]: is 4"),
        ({"compress_ratios": [0, 2]}, "compress_ratios: has 2 entries for 5 layers"),
        (
            {"compress_ratios": [2, 2, 2, 1, 1]},
            r"compress_ratios\[0\]: is 2, but kv_source_layer_ids has no layer",
        ),
        ({"compress_ratios": [0, 0, 2, 1, 1]}, "kv_source_layer_ids: holds 1, but compress_ratios"),
        ({"compress_ratios": None}, "compress_ratios: is missing"),
        ({"kv_source_layer_ids": None}, "kv_source_layer_ids: is missing"),
        ({"kv_source_layer_ids": [1, 5]}, r"kv_source_layer_ids\[1\]: is 5"),
        ({"num_key_value_heads": 2}, "num_key_value_heads: must be 1"),
        ({"qk_rope_head_dim": 513}, "qk_rope_head_dim: is 513; it must be from 1 to 512"),
    ],
)
def test_what_deepseek_v41_says_of_its_layers_must_fit_together(changed, message):
    with pytest.raises(InputError, match=message):
        model({**DEEPSEEK_V41, **changed})


@pytest.mark.parametrize(("kind", "heads"), [("diffusion_gemma_text", 2), ("gemma4_text", 4)])
def test_diffusion_gemma_always_has_the_kv_heads_of_its_full_layers(kind, heads):
    config = {
        "model_type": kind,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 2,
        "hidden_size": 1024,
        "sliding_window": 512,
    }
    for said in ({}, {"attention_k_eq_v": False}):
        layers = model({**config, **said}).layers
        assert [layer.tensors[0].heads for layer in layers] == [4] * 5 + [heads]


# ---- layers without attention, and cross-attention ------------------------------------------------


PHI4_FLASH = {
    "model_type": "phi4flash",
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
    "mb_per_layer": 2,
}


def test_the_second_half_of_phi_4_mini_flash_reads_the_layer_after_the_middle():
    layers = model(PHI4_FLASH).layers
    assert [(layer.kind.name, layer.window, layer.shares) for layer in layers] == [
        ("MAMBA1", None, None),
        ("WINDOW", 16, None),
        ("MAMBA1", None, None),
        ("WINDOW", 16, None),
        ("MAMBA1", None, None),
        ("FULL", None, None),
        ("NONE", None, None),
        ("SHARED", None, 5),
    ]
    # Twice the hidden size; 3 inputs of the convolution and 16 values each.
    assert [s.elements for s in layers[0].states] == [512 * 3, 512 * 16]
    with pytest.raises(InputError, match="mb_per_layer: must be 2"):
        model({**PHI4_FLASH, "mb_per_layer": 4})
    with pytest.raises(InputError, match="num_hidden_layers: is 6; it must be a multiple of 4"):
        model({**PHI4_FLASH, "num_hidden_layers": 6})


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
