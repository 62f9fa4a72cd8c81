"""Decoders that only vLLM, SGLang or the code beside their weights has: what each layer keeps."""

from __future__ import annotations

import pytest
from hf_configs import LLAMA, MLA, QWEN2, kinds, model, shapes

from vmtool.errors import InputError
from vmtool.kv.geometry import LayerKind

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
