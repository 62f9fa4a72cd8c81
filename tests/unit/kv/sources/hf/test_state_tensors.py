"""Fixed states: what recurrent layers keep for a sequence, whatever its length."""

from __future__ import annotations

import pytest

from vmtool.errors import InputError
from vmtool.kv.geometry import LayerKind
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.hf.config_to_layers import resolve

BYTES = {"fp32": 4, "bf16": 2, None: 2}
BASE = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}
MAMBA2 = {
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


def model(**config):
    return resolve({**BASE, **config}, "config.json", "m")


def first(geometry, kind):
    return next(layer for layer in geometry.layers if layer.kind is kind)


def state_bytes(layer):
    return sum(state.elements * BYTES[state.dtype] for state in layer.states)


def test_a_gated_delta_net_keeps_vllms_mamba_page():
    # vllm#40691: Qwen3.5-27B at TP 1 has a mamba page of 3,207,168 bytes.
    layer = first(model_lookup.load("qwen3.5-27b"), LayerKind.GATED_DELTA)
    assert state_bytes(layer) == 3_207_168
    assert [state.dtype for state in layer.states] == [None, "fp32"]


def test_a_gated_delta_net_gives_vllms_block_size_with_an_fp8_cache():
    # noonghunna/club-3090#612: Qwen3.6-35B-A3B with fp8 KV has blocks of 2096 tokens, the
    # smallest multiple of 16 whose attention page holds a mamba page.
    geometry = model_lookup.load("qwen3.6-35b-a3b")
    page = state_bytes(first(geometry, LayerKind.GATED_DELTA))
    per_token = sum(t.elements_per_token for t in first(geometry, LayerKind.FULL).tensors)
    assert 16 * -(-page // (16 * per_token)) == 2096


def test_mamba1_keeps_conv_tails_and_states_by_channel():
    # Jamba: 8192 channels, 3 conv inputs and 16 states each (vLLM's mamba1 state shape).
    layer = first(model_lookup.load("jamba-v0.1"), LayerKind.MAMBA1)
    assert [state.elements for state in layer.states] == [8192 * 3, 8192 * 16]


@pytest.mark.parametrize(("offset", "attending"), [(0, [0, 4]), (3, [3, 7]), (4, None)])
def test_jamba_attends_once_in_a_period_from_an_offset(offset, attending):
    config = {"num_hidden_layers": 8, "hidden_size": 4096, "attn_layer_period": 4}
    config |= {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
    if attending is None:
        with pytest.raises(InputError, match="attn_layer_offset: is 4"):
            model(model_type="jamba", attn_layer_offset=offset, **config)
        return
    layers = model(model_type="jamba", attn_layer_offset=offset, **config).layers
    assert [layer.index for layer in layers if layer.kind is LayerKind.FULL] == attending


def test_mamba2_convolves_x_b_and_c():
    # vLLM's mamba2 state shape: (4096 + 2 x 8 x 128) x 3 and 64 x 64 x 128 for Nemotron 3 Nano.
    layer = first(model_lookup.load("nemotron-3-nano-30b-a3b"), LayerKind.MAMBA2)
    assert [state.elements for state in layer.states] == [6144 * 3, 64 * 64 * 128]
    assert layer.states[1].dtype == "fp32"


@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({}, "fp32"),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, "bf16"),
        ({"mamba_ssm_cache_dtype": "auto"}, None),
    ],
)
def test_nemotron_h_keeps_its_ssm_state_in_fp32_unless_the_file_says_otherwise(stated, dtype):
    # vLLM's NemotronHForCausalLMConfig. Nemotron-H-8B: conv (128 x 64 + 2 x 8 x 128) x 3 in bf16 and
    # 128 x 64 x 128 = 1048576 in fp32: 61440 + 4194304 bytes.
    config = {"num_hidden_layers": 1, "hybrid_override_pattern": "M", "hidden_size": 4096}
    config |= {"mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8}
    layer = model(
        model_type="nemotron_h", ssm_state_size=128, conv_kernel=4, **config, **stated
    ).layers[0]
    assert [state.elements for state in layer.states] == [10240 * 3, 128 * 64 * 128]
    assert [state.dtype for state in layer.states] == [None, dtype]
    assert state_bytes(layer) == 61440 + 1048576 * BYTES[dtype]


def test_the_state_of_other_mamba2_hybrids_is_the_models_own_type():
    # vLLM's _mamba_state_dtype: "auto" is the type of the convolution's state, the model's own.
    config = {**MAMBA2, "num_hidden_layers": 2, "hidden_size": 4096, "attn_layer_indices": [1]}
    assert {s.dtype for s in model(model_type="bamba", **config).layers[0].states} == {None}


@pytest.mark.parametrize(
    "layers", [{"hybrid_layer_ids": [1]}, {"layers_block_type": ["mamba", "hybrid", "mamba"]}]
)
def test_zamba2_attends_beside_mamba2_in_its_hybrid_layers(layers):
    # Zamba2-7B, as vLLM's zamba2.py has it: 32 heads of 2 x 3584 / 32 = 224; a conv of 3 inputs over
    # 2 x 3584 + 2 x 2 x 64 = 7424 channels, and 112 matrices of 64 x 64, in every layer.
    config = {"num_hidden_layers": 3, "hidden_size": 3584, "num_key_value_heads": 32}
    config |= {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 2}
    config |= {"n_mamba_heads": 112, "mamba_headdim": 64, "kv_channels": 112, **layers}
    for width in ({"attention_head_dim": 224}, {}):
        found = model(model_type="zamba2", **config, **width).layers
        assert [layer.kind for layer in found] == [
            LayerKind.MAMBA2,
            LayerKind.PARALLEL,
            LayerKind.MAMBA2,
        ]
        assert [(t.heads, t.dim) for t in found[1].tensors] == [(32, 224), (32, 224)]
        assert {tuple(s.elements for s in layer.states) for layer in found} == {
            (7424 * 3, 112 * 64 * 64)
        }
        assert not found[0].tensors


def test_recurrent_gemma_keeps_a_window_in_every_third_layer_and_a_state_in_the_others():
    # RecurrentGemma-2B, as transformers' _setup_cache has it: one KV head of 2560 / 10, 2048 tokens;
    # 2560 x (4 - 1) in the model's type and 2560 in fp32.
    config = {"num_attention_heads": 10, "num_key_value_heads": 1, "hidden_size": 2560}
    config |= {"attention_window_size": 2048, "lru_width": 2560, "conv1d_width": 4}
    layers = model(
        model_type="recurrent_gemma",
        num_hidden_layers=8,
        block_types=["recurrent", "recurrent", "attention"],
        **config,
    ).layers
    assert [layer.index for layer in layers if layer.kind is LayerKind.WINDOW] == [2, 5]
    assert [(t.heads, t.dim, t.tokens_held(9999)) for t in layers[2].tensors] == [
        (1, 256, 2048)
    ] * 2
    assert [(s.elements, s.dtype) for s in layers[7].states] == [(7680, None), (2560, "fp32")]
    with pytest.raises(InputError, match=r"block_types\[1\]: 'other' is not understood"):
        model(
            model_type="recurrent_gemma",
            num_hidden_layers=2,
            block_types=["recurrent", "other"],
            **config,
        )
    # Published files have it under another name, and the class assumes this list.
    for stated in ({}, {"_block_types": ["recurrent", "recurrent", "attention"]}):
        config |= {"model_type": "recurrent_gemma", "num_hidden_layers": 8}
        assert model(**config, **stated).layers == layers


def test_mamba2_heads_are_divided_by_tp_and_a_single_group_is_copied():
    config = {**MAMBA2, "num_hidden_layers": 2, "hidden_size": 4096, "attn_layer_indices": [1]}
    rank = model(model_type="bamba", **config).shard(tp=4)
    conv, ssm = rank.layers[0].states
    assert conv.elements == (8192 // 4 + 2 * 128) * 3
    assert ssm.elements == 32 * 64 * 128


@pytest.mark.parametrize("width", ["auto", None])
def test_a_mamba2_head_may_be_as_wide_as_expand_and_hidden_make_it(width):
    config = {**MAMBA2, "mamba_d_head": width, "layer_types": ["mamba", "attention"]}
    geometry = model(model_type="granitemoehybrid", num_hidden_layers=2, hidden_size=4096, **config)
    assert geometry.layers[0].states[1].elements == 128 * 64 * 128
    config["mamba_n_heads"] = 100
    with pytest.raises(InputError, match="mamba_d_head: is not given"):
        model(model_type="granitemoehybrid", num_hidden_layers=2, hidden_size=4096, **config)


def test_granite_hybrid_must_say_which_layers_attend():
    with pytest.raises(InputError, match="layer_types: is missing"):
        model(model_type="granitemoehybrid", num_hidden_layers=2, hidden_size=4096, **MAMBA2)


def test_parallel_layers_have_both():
    config = {**MAMBA2, "num_hidden_layers": 1, "hidden_size": 4096}
    layer = model(model_type="falcon_h1", mamba_d_ssm=8192, **config).layers[0]
    assert layer.kind is LayerKind.PARALLEL
    assert [len(layer.tensors), len(layer.states)] == [2, 2]
    with pytest.raises(InputError, match="mamba_d_ssm: is 4096"):
        model(model_type="falcon_h1", mamba_d_ssm=4096, **config)


def test_a_short_convolution_keeps_its_last_inputs():
    # LFM2-1.2B: kernel 3 over 2048 channels in 10 of 16 layers.
    layers = model_lookup.load("lfm2-1.2b").layers
    convolving = [layer for layer in layers if layer.kind is LayerKind.SHORT_CONV]
    assert len(convolving) == 10
    assert convolving[0].states[0].elements == 2048 * 2


def test_kimi_delta_attention_alternates_with_latents():
    geometry = model_lookup.load("kimi-linear-48b-a3b")
    layer = first(geometry, LayerKind.KIMI_DELTA)
    assert [state.elements for state in layer.states] == [3 * 4096 * 3, 32 * 128 * 128]
    assert [layer.index for layer in geometry.layers if layer.kind is LayerKind.MLA] == [
        3, 7, 11, 15, 19, 23, 26,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("full", "kda", "message"),
    [
        ([1], [1, 2], "kda_layers: names layer 1 again"),
        ([1], [], "kda_layers: leaves out layer 2"),
        ([3], [1, 2], r"full_attn_layers\[0\]: is 3"),
    ],
)
def test_kimi_linear_lists_must_cover_every_layer_once(full, kda, message):
    linear = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 2}
    with pytest.raises(InputError, match=message):
        model(
            model_type="kimi_linear",
            linear_attn_config={**linear, "full_attn_layers": full, "kda_layers": kda},
            **config,
        )


def test_lightning_attention_keeps_a_matrix_for_each_head():
    # MiniMax-01: seven of eight layers, 64 heads of 128.
    config = {"num_hidden_layers": 8, "hidden_size": 6144, "head_dim": 128}
    geometry = model(model_type="minimax_text_01", attn_type_list=[0] * 7 + [1], **config)
    layer = first(geometry, LayerKind.LINEAR)
    assert layer.states[0].elements == 32 * 128 * 128
    assert geometry.layers[7].kind is LayerKind.FULL


def test_rwkv_keeps_no_kv():
    # MLC's RWKV-5: two shifted inputs, and 40 heads of 64 x 64 in fp32.
    geometry = model_lookup.load("rwkv-5-3b")
    assert not any(layer.tensors for layer in geometry.layers)
    shift, matrix = geometry.layers[0].states
    assert (shift.elements, matrix.elements, matrix.dtype) == (2 * 2560, 40 * 64 * 64, "fp32")


def test_rwkv_heads_may_cover_another_width_than_the_hidden_one():
    config = {"num_hidden_layers": 1, "hidden_size": 128, "attention_hidden_size": 256}
    shift, matrix = model(model_type="rwkv5", head_size=64, **config).layers[0].states
    assert (shift.elements, matrix.elements) == (256, 4 * 64 * 64)
    with pytest.raises(InputError, match="head_size: is 48"):
        model(model_type="rwkv5", head_size=48, **config)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [([0, 2], r"attn_type_list\[1\]: is 2"), ([0], "has 1 entries"), (None, "is missing")],
)
def test_a_list_of_kinds_holds_a_zero_or_one_for_each_layer(kinds, message):
    config = {"num_hidden_layers": 2, "hidden_size": 6144, "head_dim": 128}
    with pytest.raises(InputError, match=message):
        model(model_type="minimax_text_01", attn_type_list=kinds, **config)


def test_rwkv_heads_are_divided_by_tp_and_its_shifted_inputs_are_copied():
    shift, matrix = model_lookup.load("rwkv-5-3b").shard(tp=8).layers[0].states
    assert (shift.elements, matrix.elements) == (2 * 2560, 5 * 64 * 64)


def test_deepseek_v4_waits_with_open_groups_in_fp32():
    # vLLM's compressor state: rows of key and gate, for two overlapping groups at ratio 4.
    layers = model_lookup.load("deepseek-v4-flash").layers
    assert [layers[i].states for i in (0, 1)] == [(), ()]
    assert [s.elements for s in layers[2].states] == [8 * 2 * 2 * 512, 8 * 2 * 2 * 128]
    assert [s.elements for s in layers[3].states] == [128 * 2 * 512]
    assert {s.dtype for s in layers[2].states + layers[3].states} == {"fp32"}
    copied = model_lookup.load("deepseek-v4-flash").shard(tp=8)
    assert copied.layers == layers


def test_a_pure_mamba_model_has_states_only():
    geometry = model_lookup.load("falcon-mamba-7b")
    assert {layer.kind for layer in geometry.layers} == {LayerKind.MAMBA1}
    assert [state.elements for state in geometry.layers[0].states] == [8192 * 3, 8192 * 16]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("M*", "has 2 letters for 4 layers"), ("M*X-", "holds 'X'"), (None, "is missing")],
)
def test_a_hybrid_pattern_must_be_understood(pattern, message):
    with pytest.raises(InputError, match=f"hybrid_override_pattern: {message}"):
        model(model_type="nemotron_h", num_hidden_layers=4, hybrid_override_pattern=pattern)


def test_a_state_type_that_is_not_understood_is_refused():
    config = {"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 2048}
    with pytest.raises(InputError, match="mamba_ssm_dtype: 'int3'"):
        model(**config, mamba_ssm_dtype="int3")
