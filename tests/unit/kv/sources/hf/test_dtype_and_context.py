"""The element type of a config, that of its cache, and its context, with positions that are stretched."""

from __future__ import annotations

import pytest
from hf_configs import GEMMA3, LLAMA, kinds, model

from vmtool.errors import InputError
from vmtool.kv.geometry import Source

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


def test_so_is_that_of_t5gemma_2():
    # The published file of the 270M model has 32768 and a linear factor of 8 in encoder and decoder.
    decoder = {
        **GEMMA3,
        "model_type": "t5gemma2_decoder",
        "layer_types": ["full_attention"] * GEMMA3["num_hidden_layers"],
        "rope_parameters": {
            "full_attention": LINEAR,
            "sliding_attention": {"rope_type": "default"},
        },
    }
    encoder = {"text_config": {"max_position_embeddings": 8192}}
    config = {"model_type": "t5gemma2", "decoder": decoder, "encoder": encoder}
    assert model({**config, "is_encoder_decoder": True}).context_tokens == 8192


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


def test_a_wrapper_has_the_quantisation_of_its_decoder():
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
