"""Fields of a Hugging Face config that may change the cache and that nothing reads are refused."""

from __future__ import annotations

import pytest
from hf_configs import LLAMA, model, shapes

from vmtool.errors import InputError


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


@pytest.mark.parametrize("extra", [{"multiQuery": False}, {"attn": {"multi_query": False}}])
def test_a_flag_that_is_true_if_absent_is_missed_where_it_is_false_under_another_name(extra):
    # 16 query heads, and one KV head unless multi_query is false.
    config = {"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 16, "n_embd": 2048}
    assert shapes(model({**config, "n_positions": 8192})) == [(1, 128)] * 2
    with pytest.raises(InputError, match=next(iter(extra))):
        model({**config, "n_positions": 8192, **extra})
