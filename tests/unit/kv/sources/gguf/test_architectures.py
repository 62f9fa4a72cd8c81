"""What the metadata of a GGUF file says of its layers; what is not understood is refused by key."""

from __future__ import annotations

import pytest

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import LayerKind, Source, TensorRole
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.gguf import model

LLAMA = {
    "block_count": 4,
    "embedding_length": 4096,
    "context_length": 8192,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
}


def build(architecture, values, **overrides):
    """Return the geometry of metadata that was not written to a file."""
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    return model.build({"general.architecture": architecture, **metadata}, "m.gguf", overrides)


def shapes(geometry, index=0):
    return [(t.name, t.heads, t.dim) for t in geometry.layers[index].tensors]


def test_a_file_of_the_gguf_package_is_read_with_its_provenance(write_gguf):
    tokens = [f"token {i}" for i in range(5000)]
    path = write_gguf(
        "llama",
        {**LLAMA, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5e5},
        [("tokenizer.ggml.tokens", tokens), ("tokenizer.ggml.token_type", [1] * 5000)],
    )
    geometry = model_lookup.load(path)
    assert (len(geometry.layers), geometry.context_tokens, geometry.dtype) == (4, 8192, "fp16")
    assert shapes(geometry) == [("k", 8, 128), ("v", 8, 128)]
    fact = geometry.provenance["kv_heads"]
    assert (fact.value, fact.source, fact.detail) == (
        8,
        Source.FILE,
        "llama.attention.head_count_kv",
    )


def test_absent_kv_heads_are_the_query_heads():
    values = {k: v for k, v in LLAMA.items() if k != "attention.head_count_kv"}
    assert shapes(build("llama", values))[0] == ("k", 32, 128)


def test_key_and_value_lengths_win_over_hidden_by_heads():
    values = {**LLAMA, "attention.key_length": 192, "attention.value_length": 96}
    assert shapes(build("qwen3", values)) == [("k", 8, 192), ("v", 8, 96)]


def test_kv_heads_may_differ_layer_by_layer_and_be_none():
    # Deci's GGUF: 0 is a layer without attention.
    values = {**LLAMA, "attention.head_count": [32, 0, 32, 32], "attention.key_length": 128}
    values |= {"attention.value_length": 128, "attention.head_count_kv": [8, 0, 4, 2]}
    layers = build("deci", values).layers
    assert [t.tensors[0].heads if t.tensors else 0 for t in layers] == [8, 0, 4, 2]
    assert layers[1].kind is LayerKind.NONE


def test_a_latent_is_kept_once_where_the_file_supports_it():
    values = {
        **LLAMA,
        "attention.head_count": 128,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
    }
    (latent,) = build("deepseek2", values).layers[0].tensors
    assert (latent.role, latent.heads, latent.dim, latent.rope_dim) == (
        TensorRole.LATENT,
        1,
        576,
        64,
    )
    index = build("glm-dsa", {**values, "attention.indexer.key_length": 128}).layers[0].tensors[1]
    assert (index.role, index.dim) == (TensorRole.INDEX, 128)


def test_an_older_deepseek_file_keeps_k_and_v_of_every_head():
    # Without key_length_mla llama.cpp unfolds the latent: 128 heads of 192 and 128.
    values = {
        **LLAMA,
        "attention.head_count": 128,
        "attention.head_count_kv": 128,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 192,
        "attention.value_length": 128,
    }
    assert shapes(build("deepseek2", values)) == [("k", 128, 192), ("v", 128, 128)]


@pytest.mark.parametrize(
    ("architecture", "extra", "expected"),
    [
        ("gemma2", {}, [4096, None, 4096, None, 4096, None]),
        ("gemma3", {"attention.sliding_window": 512}, [512] * 5 + [None]),
        ("gemma3", {}, [None] * 6),
        ("gpt-oss", {"attention.sliding_window": 128}, [128, None] * 3),
        ("cohere2", {"attention.sliding_window": 64}, [64, 64, 64, None, 64, 64]),
        ("llama4", {}, [8192, 8192, 8192, None, 8192, 8192]),
        ("llama4", {"attention.sliding_window": 0}, [None] * 6),
        ("phi3", {"attention.sliding_window": 2047}, [None] * 6),
        (
            "gemma4",
            {
                "attention.sliding_window": 1024,
                "attention.sliding_window_pattern": [True, True, False, True, True, False],
            },
            [1024, 1024, None, 1024, 1024, None],
        ),
        (
            "gemma3",
            {"attention.sliding_window": 512, "attention.sliding_window_pattern": 3},
            [512, 512, None, 512, 512, None],
        ),
    ],
)
def test_windows_fall_where_llama_cpp_puts_them(architecture, extra, expected):
    layers = build(architecture, {**LLAMA, "block_count": 6, **extra}).layers
    assert [layer.window for layer in layers] == expected
    if architecture == "llama4" and expected[0]:
        assert layers[0].kind is LayerKind.CHUNK


def test_windowed_layers_may_have_widths_of_their_own():
    values = {
        **LLAMA,
        "block_count": 2,
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.head_count_kv": [8, 2],
        "attention.sliding_window": 1024,
        "attention.sliding_window_pattern": [True, False],
    }
    geometry = build("gemma4", values)
    assert shapes(geometry, 0) == [("k", 8, 256), ("v", 8, 256)]
    assert shapes(geometry, 1) == [("k", 2, 512), ("v", 2, 512)]


def test_shared_layers_keep_nothing():
    values = {**LLAMA, "block_count": 4, "attention.shared_kv_layers": 2}
    values |= {"attention.sliding_window": 8, "attention.sliding_window_pattern": [1, 0, 1, 0]}
    layers = build("gemma4", values).layers
    assert [layer.shares for layer in layers] == [None, None, 0, 1]
    window = {"attention.sliding_window": 512}
    layers = build("gemma3n", {**LLAMA, "block_count": 30, **window}).layers
    assert sum(bool(layer.tensors) for layer in layers) == 20


def test_layers_that_predict_further_tokens_are_not_counted():
    geometry = build("glm4moe", {**LLAMA, "nextn_predict_layers": 1})
    assert len(geometry.layers) == 3
    assert geometry.provenance["layers"].detail == "block_count - nextn = 4 - 1"


def test_a_first_zero_does_not_make_every_layer_zero():
    # gguf-parser-go#31: LFM2's head_count_kv starts with 0.
    values = {**LLAMA, "attention.head_count_kv": [0, 0, 8, 0], "shortconv.l_cache": 3}
    layers = build("lfm2", values).layers
    assert [bool(layer.tensors) for layer in layers] == [False, False, True, False]
    assert layers[0].states[0].elements == 2 * 4096
    assert layers[0].states[0].dtype == "fp32"


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16}


def test_states_are_what_llama_cpp_keeps_in_fp32():
    # llama.cpp: (d_conv - 1)(d_inner + 2 n_group d_state) and d_state x d_inner.
    values = {**LLAMA, **SSM, "ssm.time_step_rank": 32}
    layers = build("qwen3next", values).layers
    assert [layer.kind for layer in layers] == [LayerKind.GATED_DELTA] * 3 + [LayerKind.FULL]
    assert [s.elements for s in layers[0].states] == [3 * (4096 + 2 * 16 * 128), 128 * 4096]
    per_layer = {**values, "attention.head_count_kv": [0, 0, 8, 0]}
    per_layer["feed_forward_length"] = [0, 1024, 0, 0]
    kinds = [layer.kind for layer in build("nemotron_h", per_layer).layers]
    assert kinds == [LayerKind.MAMBA2, LayerKind.NONE, LayerKind.FULL, LayerKind.MAMBA2]
    jamba = build("jamba", {**LLAMA, **SSM, "attention.head_count_kv": [0, 8, 0, 0]}).layers
    assert [s.elements for s in jamba[0].states] == [3 * 4096, 128 * 4096]
    parallel = build("falcon-h1", values).layers[0]
    assert (parallel.kind, len(parallel.tensors)) == (LayerKind.PARALLEL, 2)


def test_models_without_attention_keep_states_only():
    mamba = {"block_count": 2, "embedding_length": 2048, "attention.head_count": 0, **SSM}
    layers = build("mamba", mamba).layers
    assert [(layer.kind, layer.tensors) for layer in layers] == [(LayerKind.MAMBA1, ())] * 2
    rwkv = {"block_count": 2, "embedding_length": 2048, "wkv.head_size": 64}
    rwkv["attention.head_count"] = 0
    geometry = build("rwkv6", rwkv)
    assert [s.elements for s in geometry.layers[0].states] == [2 * 2048, 64 * 2048]
    rank = geometry.shard(tp=4)
    assert [s.elements for s in rank.layers[0].states] == [2 * 2048, 64 * 512]


def test_flags_win_over_the_file():
    per_layer = {**LLAMA, "attention.head_count_kv": [8, 8, 4, 4]}
    geometry = build("llama", per_layer, kv_heads=2, head_dim=64, head_dim_v=32)
    assert {tuple(shapes(geometry, i)) for i in range(4)} == {(("k", 2, 64), ("v", 2, 32))}
    with pytest.raises(UsageError, match="--kv-heads does not apply to rwkv6"):
        build("rwkv6", {"block_count": 1, "embedding_length": 64, "wkv.head_size": 64}, kv_heads=1)


@pytest.mark.parametrize(
    ("architecture", "extra", "field"),
    [
        ("newarch", {"attention.something_new": 3}, "general.architecture"),
        ("llada", {}, "general.architecture"),
        ("clef", {}, "general.architecture"),
        ("graniteswitch", {}, "general.architecture"),
        ("qwen4exp", {}, "general.architecture"),
        ("llama", {"attention.sliding_window": 4096}, "llama.attention.sliding_window"),
        ("llama", {"ssm.state_size": 128}, "llama.ssm.state_size"),
        ("llama", {"attention.something_new": 3}, "llama.attention.something_new"),
        ("llama", {"block_count": 0}, "llama.block_count"),
        ("llama", {"block_count": 2.0}, "llama.block_count"),
        ("llama", {"block_count": True}, "llama.block_count"),
        ("llama", {"attention.head_count": 0}, "llama.attention.head_count"),
        ("llama", {"attention.head_count": 31}, "llama.attention.head_count"),
        ("llama", {"attention.head_count_kv": [8, 8]}, "llama.attention.head_count_kv"),
        ("llama", {"attention.head_count_kv": [8, -1, 8, 8]}, "llama.attention.head_count_kv[1]"),
        ("llama", {"nextn_predict_layers": 4}, "llama.nextn_predict_layers"),
        ("llama", {"attention.key_length_mla": 192}, "llama.attention.key_length"),
        ("gemma4", {"attention.sliding_window": 8}, "gemma4.attention.sliding_window_pattern"),
        ("gemma4", {"attention.shared_kv_layers": 4}, "gemma4.attention.shared_kv_layers"),
        ("gemma3", {"attention.sliding_window": 8, "attention.sliding_window_pattern": 0},
         "gemma3.attention.sliding_window_pattern"),
        ("gemma4", {"attention.sliding_window": 8, "attention.sliding_window_pattern": [1, 0]},
         "gemma4.attention.sliding_window_pattern"),
        ("qwen3next", {**SSM, "ssm.time_step_rank": 31}, "qwen3next.ssm.time_step_rank"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_key(architecture, extra, field):
    with pytest.raises(InputError) as caught:
        build(architecture, {**LLAMA, **extra})
    assert caught.value.field == field


def test_delta_net_groups_are_divided_and_never_copied():
    geometry = build("qwen3next", {**LLAMA, **SSM, "ssm.time_step_rank": 32})
    conv, matrix = geometry.shard(tp=8).layers[0].states
    assert (conv.elements, matrix.elements) == (3 * (512 + 2 * 2 * 128), 128 * 512)
    one_group = {**LLAMA, **SSM, "ssm.time_step_rank": 32, "ssm.group_count": 1}
    with pytest.raises(UsageError, match="heads = 1 cannot be divided"):
        build("qwen3next", one_group).shard(tp=8)


def test_positions_are_a_part_of_the_rows_of_deepseek_v4():
    values = {
        **LLAMA,
        "attention.head_count_kv": 1,
        "attention.key_length": 512,
        "attention.sliding_window": 128,
        "attention.indexer.key_length": 128,
        "attention.compress_ratios": [0, 4, 128, 4],
    }
    layers = build("deepseek4", {**values, "rope.dimension_count": 64}).layers
    assert [layer.tensors[-1].rope_dim for layer in layers] == [64, 0, 64, 0]
    with pytest.raises(InputError, match="dimension_count: is 513; it must be from 1 to 512"):
        build("deepseek4", {**values, "rope.dimension_count": 513})
