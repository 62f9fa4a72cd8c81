"""Geometry: what each extent holds, and how ranks divide it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    ModelGeometry,
    Span,
    StatePart,
    StateTensor,
    Tensor,
    TensorRole,
)
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.builtin import config_of
from vmtool.kv.sources.hf.config_to_layers import resolve


def gqa(heads, dim=128, extent=None):
    extent = extent or Extent()
    return (
        Tensor("k", TensorRole.KEY, heads, dim, extent),
        Tensor("v", TensorRole.VALUE, heads, dim, extent),
    )


def model(*layers, context=8192):
    return ModelGeometry("test", "llama", tuple(layers), context, "bf16")


def full(index, heads=8):
    return Layer(index, LayerKind.FULL, gqa(heads))


def test_a_window_holds_window_tokens_while_decoding_and_more_with_tokens_in_flight():
    # vLLM: min(window - 1 + max_num_batched_tokens, max_len), facts of vllm's SlidingWindowSpec.
    window = Extent(Span.WINDOW, 128)
    assert window.tokens_held(5) == 5
    assert window.tokens_held(1000) == 128
    assert window.tokens_held(1000, in_flight=1) == 128
    assert window.tokens_held(1000, in_flight=64) == 191
    assert window.tokens_held(150, in_flight=64) == 150


def test_a_chunk_holds_chunk_tokens_and_those_in_flight():
    chunk = Extent(Span.CHUNK, 8192)
    assert chunk.tokens_held(8191) == 8191
    assert chunk.tokens_held(100_000) == 8192
    assert chunk.tokens_held(100_000, in_flight=8192) == 16384


def test_a_window_larger_than_the_sequence_holds_the_sequence():
    assert Extent(Span.WINDOW, 262_144).tokens_held(4096) == 4096


def test_a_fixed_extent_ignores_the_sequence():
    assert [Extent(Span.FIXED, 1500).tokens_held(n) for n in (0, 1, 10**6)] == [1500] * 3


def test_compressed_entries_are_rounded_up():
    assert [Extent(ratio=4).tokens_held(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


@given(
    st.sampled_from(list(Span)),
    st.integers(1, 1 << 20),
    st.integers(1, 128),
    st.integers(1, 8),
    st.integers(0, 1 << 24),
    st.integers(0, 1 << 16),
)
def test_kept_tokens_never_fall_as_a_sequence_grows(span, size, ratio, ranks, n, in_flight):
    extent = Extent(span, size, ratio, ranks)
    held = extent.tokens_held(n, in_flight)
    assert held <= extent.tokens_held(n + 1, in_flight)
    assert held <= extent.tokens_held(n, in_flight + 1)
    assert held <= max(n, size if span is Span.FIXED else 0)


def test_a_layer_holds_its_tensors_and_its_states():
    window = gqa(2, dim=64, extent=Extent(Span.WINDOW, 10))
    state = StateTensor("conv", (StatePart(3, 5),))
    layer = Layer(0, LayerKind.PARALLEL, window, (state,))
    assert layer.elements_held(4) == 2 * 2 * 64 * 4 + 15
    assert layer.elements_held(100) == 2 * 2 * 64 * 10 + 15
    assert layer.elements_held(100, in_flight=5) == 2 * 2 * 64 * 14 + 15
    assert window[0].tokens_held(100) == 10


def test_equal_layers_are_grouped_with_their_indices():
    window = Layer(1, LayerKind.WINDOW, gqa(8, extent=Extent(Span.WINDOW, 4096)))
    groups = model(full(0), window, full(2)).groups()
    assert [(g.kind, g.indices, g.count) for g in groups] == [
        (LayerKind.FULL, (0, 2), 2),
        (LayerKind.WINDOW, (1,), 1),
    ]
    assert window.window == 4096
    assert full(0).window is None


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_tp_divides_heads_and_then_copies_them(tp, heads):
    rank = model(full(0, heads=8)).shard(tp=tp)
    assert [t.heads for t in rank.layers[0].tensors] == [heads, heads]
    assert rank.tp == tp


@pytest.mark.parametrize("tp", [3, 12])
def test_tp_that_neither_divides_nor_is_a_multiple_is_refused_by_field(tp):
    with pytest.raises(UsageError, match=f"kv_heads = 8 cannot be divided among tp = {tp}"):
        model(full(0, heads=8)).shard(tp=tp)


@pytest.mark.parametrize("tp", [16, 80])
def test_tp_divides_the_query_heads_if_they_are_known(tp):
    # Qwen2.5 14B: 40 query heads and 8 KV heads; vLLM requires that tp divides the former.
    known = replace(model(full(0, heads=8)), query_heads=40)
    with pytest.raises(UsageError, match=f"tp = {tp} does not divide the 40 attention heads"):
        known.shard(tp=tp)
    assert known.shard(tp=40).layers[0].tensors[0].heads == 1


def test_so_many_ranks_are_refused_where_the_query_heads_are_not_known():
    with pytest.raises(UsageError, match="tp = 1025: it must be at most 1024"):
        model(full(0, heads=1)).shard(tp=1025)


def test_tp_never_divides_a_latent_or_its_index_keys():
    latent = Tensor("latent", TensorRole.LATENT, 1, 576, rope_dim=64)
    index = Tensor("index", TensorRole.INDEX, 1, 128)
    rank = model(Layer(0, LayerKind.MLA, (latent, index))).shard(tp=8)
    assert rank.layers[0].tensors == (latent, index)


def test_dcp_divides_the_tokens_of_a_latent_rounding_up():
    latent = Tensor("latent", TensorRole.LATENT, 1, 576, rope_dim=64)
    rank = model(Layer(0, LayerKind.MLA, (latent,))).shard(tp=8, dcp=8)
    assert rank.layers[0].tensors[0].tokens_held(17) == 3


def test_dcp_divides_only_copies_of_heads():
    assert model(full(0, heads=4)).shard(tp=8, dcp=2).layers[0].tensors[0].tokens_held(9) == 5
    with pytest.raises(UsageError, match="leaves 1 copy of each head"):
        model(full(0, heads=8)).shard(tp=8, dcp=2)
    with pytest.raises(UsageError, match="dcp = 3 does not divide tp = 8"):
        model(full(0)).shard(tp=8, dcp=3)


def test_dcp_refuses_windows():
    window = Layer(0, LayerKind.WINDOW, gqa(1, extent=Extent(Span.WINDOW, 128)))
    with pytest.raises(UsageError, match="keep all tokens"):
        model(window).shard(tp=2, dcp=2)


def test_pp_returns_the_fullest_stage_with_vllms_split():
    # vLLM's get_pp_indices docstring: 5 layers in 3 stages are 2, 2 and 1.
    rank = model(*(full(i) for i in range(5))).shard(pp=3)
    assert [layer.index for layer in rank.layers] == [0, 1]
    heavy_tail = model(*(full(i, heads=1 if i < 2 else 8) for i in range(4)))
    assert [layer.index for layer in heavy_tail.shard(pp=2).layers] == [2, 3]


def test_stages_are_weighed_at_the_models_context():
    window = Extent(Span.WINDOW, 100)
    wide = Layer(0, LayerKind.WINDOW, gqa(8, extent=window))
    narrow = full(1, heads=1)
    assert model(wide, narrow, context=200).shard(pp=2).layers == (wide,)
    assert model(wide, narrow, context=10_000).shard(pp=2).layers == (narrow,)
    assert model(wide, narrow, context=None).shard(pp=2).layers == (narrow,)


def test_pp_larger_than_the_layers_is_refused():
    with pytest.raises(UsageError, match=r"pp = 3.*only 2 layers"):
        model(full(0), full(1)).shard(pp=3)


def test_pp_refuses_to_part_a_shared_layer_from_its_source():
    shared = Layer(1, LayerKind.SHARED, shares=0)
    with pytest.raises(UsageError, match="layer 1 and layer 0"):
        model(full(0), shared).shard(pp=2)
    assert len(model(full(0), shared, full(2), full(3)).shard(pp=2).layers) == 2


def test_tp_divides_states_by_heads_and_copies_only_a_single_replicated_group():
    conv = StateTensor("conv", (StatePart(4096, 3), StatePart(1, 256 * 3, replicates=True)))
    ssm = StateTensor("ssm", (StatePart(64, 64 * 128),), "fp32")
    rank = model(Layer(0, LayerKind.MAMBA2, states=(conv, ssm))).shard(tp=8)
    assert [state.elements for state in rank.layers[0].states] == [512 * 3 + 768, 8 * 8192]
    eight = StateTensor("conv", (StatePart(8, 768, replicates=True),))
    with pytest.raises(UsageError, match="state conv: heads = 8"):
        model(Layer(0, LayerKind.MAMBA2, states=(eight,))).shard(tp=16)


@pytest.mark.parametrize("ranks", [0, -1])
@pytest.mark.parametrize("flag", ["tp", "pp", "dcp"])
def test_fewer_than_one_rank_is_refused(flag, ranks):
    with pytest.raises(UsageError, match=f"{flag} = {ranks}"):
        model(full(0)).shard(**{flag: ranks})


def test_a_rank_is_not_divided_twice():
    with pytest.raises(UsageError, match="already divided"):
        model(full(0)).shard(tp=2).shard(tp=2)


def test_mtp_layers_count_only_with_draft_tokens():
    model = resolve({**config_of("deepseek-r1"), "num_nextn_predict_layers": 2}, "config.json", "m")
    assert len(model.layers) == 61
    drafted = model.with_draft()
    assert (len(drafted.layers), drafted.draft) == (63, "MTP")
    assert drafted.layers[-1].tensors == model.layers[-1].tensors
    assert [group.count for group in drafted.groups()] == [61, 2]
    assert model_lookup.load("llama-3.1-8b").with_draft().draft == ""


def test_the_mtp_layer_of_deepseek_v4_is_that_of_the_ratio_after_the_layers():
    drafted = model_lookup.load("deepseek-v4-flash").with_draft()
    layer = drafted.layers[43]
    assert (len(drafted.layers), layer.kind, layer.window) == (44, LayerKind.WINDOW, 128)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("deepseek-v4-flash-0731", 43),
        ("deepseek-v4-flash-vision-exp", 43),
        ("deepseek-v4-pro-0813", 61),
        ("deepseek-v4.1-flash", 40),
    ],
)
def test_dspark_has_three_layers_with_a_window_whatever_the_number_of_mtp_layers(name, layers):
    model = model_lookup.load(name)
    added = model.with_draft().layers[len(model.layers) :]
    assert [layer.index for layer in added] == [layers, layers + 1, layers + 2]
    assert {(layer.kind, layer.window, layer.states) for layer in added} == {
        (LayerKind.WINDOW, 128, ())
    }


def test_the_entries_of_deepseek_v41_stay_in_the_stage_of_the_layers_that_read_them():
    # vLLM's DeepseekV4Attention raises NotImplementedError for the second.
    model = model_lookup.load("deepseek-v4.1-flash")
    assert model.shard(pp=2).pp == 2
    with pytest.raises(UsageError, match="pp = 4 puts layer 10 and layer 8, whose KV it shares"):
        model.shard(pp=4)


def test_mtp_layers_that_nothing_describes_are_refused():
    config = {**config_of("deepseek-v4-flash"), "num_nextn_predict_layers": 3}
    model = resolve(config, "config.json", "model")
    with pytest.raises(UsageError, match="the MTP layers of deepseek_v4 are not modelled"):
        model.with_draft()


def test_a_draft_models_layers_follow_those_of_the_model():
    model = model_lookup.load("llama-3.1-8b").with_draft(model_lookup.load("gemma-3n-e2b"))
    assert [layer.index for layer in model.layers] == list(range(62))
    shared = model.layers[-1]
    assert shared.draft
    assert shared.shares == 32 + model_lookup.load("gemma-3n-e2b").layers[-1].shares


def test_the_last_stage_has_the_layers_of_the_draft():
    model = model_lookup.load("llama-3.1-8b").with_draft(model_lookup.load("llama-3.2-1b"))
    fullest = model.shard(pp=2)
    assert [layer.draft for layer in fullest.layers] == [False] * 16 + [True] * 16
