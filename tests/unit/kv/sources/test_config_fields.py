"""Hugging Face configs: what else a file says, wrappers, types, and fields that are refused."""

from __future__ import annotations

import re

import pytest
from hf_configs import GEMMA3, LLAMA, MLA, QWEN2, kinds, model, shapes

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import LayerKind, Source
from vmtool.kv.sources.hf.config import families
from vmtool.kv.sources.hf.family import source_of

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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_query_groups", 2),
        ("use_mla", True),
        ("layer_pattern", "AAM"),
        ("mixer_types", ["mamba"]),
        ("total_ut_steps", 4),
        ("num_loops", 2),
        ("attention_variant", "nsa"),
        ("dim_head", 64),
        ("dHead", 64),
        ("shared_layers", 4),
        ("roles", ["a", "b"] * 2),  # one for each layer
        ("attention_k_eq_v", True),
        ("full_attention_interval", 4),
        ("parts", [{"deep": {"er": [{"mla": 1}]}}]),
    ],
)
def test_what_may_change_the_cache_of_an_unknown_type_is_refused(key, value):
    with pytest.raises(
        InputError, match=rf"{key}.* is set, and its effect on new is not understood"
    ):
        model({**LLAMA, "model_type": "new", key: value})
    assert model({**LLAMA, "model_type": "new", key: False, "n_group": 1}).assumed


@pytest.mark.parametrize("key", ["num_loops", "total_ut_steps"])
def test_a_wrapper_whose_decoder_runs_again_is_refused(key):
    with pytest.raises(InputError, match=rf"{key}: is set beside the decoder's config"):
        model({"model_type": "new", "text_config": LLAMA, key: 2})


def test_a_wrapper_of_two_language_models_is_refused():
    other = {**LLAMA, "num_hidden_layers": 2}
    config = {"model_type": "new", "text_config": LLAMA, "llm_config": other}
    with pytest.raises(
        InputError, match="llm_config: is a second language model beside text_config"
    ):
        model(config)
    assert model({**config, "llm_config": LLAMA}).layers


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


@pytest.mark.parametrize("name", sorted(families()))
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


@pytest.mark.parametrize("architecture", families())
def test_each_architecture_names_its_source(architecture):
    source = source_of(architecture, families()[architecture])
    assert re.fullmatch(
        r"modeling_\w+\.py (of transformers 5\.24|beside the weights)|models/\w+\.py of vLLM 0\.33",
        source,
    )


def test_explained_values_name_the_file_of_their_defaults():
    facts = model({**LLAMA, "model_type": "ministral3", "head_dim": None}).provenance
    assert facts["architecture"].where == "modeling_ministral3.py of transformers 5.24"


def test_layers_that_run_again_keep_a_window_of_their_own():
    config = {**LLAMA, "model_type": "iquestloopcoder", "loop_num": 3, "loop_window_size": 48}
    assert [layer.window for layer in model(config).layers] == [None] * 4 + [48] * 8


def test_ling_2_5_has_lightning_attention_under_the_name_of_version_3():
    config = {
        "model_type": "bailing_hybrid",
        "architectures": ["BailingMoeV2_5ForCausalLM"],
        "num_hidden_layers": 4,
        "layer_group_size": 4,
        "hidden_size": 512,
        "num_attention_heads": 4,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 16,
    }
    layers = model(config).layers
    assert [layer.kind for layer in layers] == [LayerKind.LINEAR] * 3 + [LayerKind.MLA]
    assert layers[0].states[0].elements == 4 * 128 * 128
