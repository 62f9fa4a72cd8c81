"""Hugging Face configs: layers, types, flags, and fields that are refused."""

from __future__ import annotations

import re

import pytest
from hf_configs import LLAMA, MLA, QWEN2, kinds, model, shapes

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import LayerKind, Source
from vmtool.kv.sources.hf.architecture_lookup import families, source_of


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


@pytest.mark.parametrize("key", ["kv_cache_dtype", "cache_bits"])
def test_a_format_of_the_cache_that_is_not_understood_is_refused(key):
    with pytest.raises(InputError, match=rf"quantization_config\.{key}: quantises the KV cache"):
        model({**LLAMA, "quantization_config": {"quant_method": "fp8", key: "fp8"}})
    # vLLM's Quark takes scales from this, and the model's type.
    quark = {"quant_method": "quark", "kv_cache_group": ["*k_proj"], "kv_cache_post_rope": True}
    assert model({**LLAMA, "quantization_config": quark}).cache_dtype is None
    # GPTQ caches the outputs of blocks while it quantises them, and nothing afterwards.
    gptq = {"quant_method": "gptq", "bits": 4, "cache_block_outputs": True}
    assert model({**LLAMA, "quantization_config": gptq}).cache_dtype is None


@pytest.mark.parametrize("key", ["cache_bits", "num_loops", "layer_reuse", "cross_layer_sharing"])
def test_what_looks_as_if_it_changed_the_cache_is_refused_in_a_known_type_too(key):
    with pytest.raises(InputError, match=f"{key}: is set, and its effect on llama"):
        model({**LLAMA, key: 2})
    assert model({**LLAMA, "use_cache": True, "cache_implementation": "hybrid"}).layers


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
        r"modeling_\w+\.py (of transformers 5\.24|beside the weights|of github\.com/[\w/-]+)"
        r"|models/[\w/]+\.py of (vLLM 0\.33|SGLang 0\.5\.23)",
        source,
    )


@pytest.mark.parametrize(
    ("architecture", "file"),
    [
        ("data2vec-text", "modeling_data2vec_text.py of transformers 5.24"),
        ("minimax_m3_text", "modeling_minimax_m3_vl.py of transformers 5.24"),
        ("longcat_flash_ngram", "models/longcat_flash_ngram.py of vLLM 0.33"),
        ("qwen", "modeling_qwen.py beside the weights"),  # vLLM has dropped it since 0.23
    ],
)
def test_a_type_whose_file_has_another_name_says_so(architecture, file):
    assert source_of(architecture, families()[architecture]) == file


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
