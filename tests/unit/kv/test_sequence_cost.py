"""What one sequence costs: published bytes per token, the fixed part, and the slope."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.kv.geometry import Extent, LayerKind, Span
from vmtool.kv.sources import model_lookup
from vmtool.units import GIB, MIB

# layers, kv heads, head_dim; tokens; the size that was published, in MiB, for an f16 cache.
# Source: the table of KV sizes in discussion 6 of dranger003/c4ai-command-r-v01 on Hugging Face.
COMMAND_R = [
    ("mixtral 8x7b", 32, 8, 128, 256),
    ("llama 3 8b", 32, 8, 128, 256),
    ("llama 3 70b", 80, 8, 128, 640),
    ("qwen1.5 32b", 64, 8, 128, 512),
    ("yi 1.5 34b", 60, 8, 128, 480),
    ("command-r", 40, 64, 128, 2560),
]
# Source: llama.cpp logs: model, layers, heads, head_dim, cells, MiB.
LLAMA_CPP = [
    ("llama 3.2 1b", 16, 8, 64, 4096, 128),
    ("llama 3.2 3b", 28, 8, 128, 1024, 112),
    ("llama 3 70b", 80, 8, 128, 4096, 1280),
    ("phi-3 mini", 32, 32, 96, 4096, 1536),
    ("smollm 1.7b", 24, 32, 64, 1024, 192),
]


@pytest.mark.parametrize(("name", "layers", "heads", "dim", "mib"), COMMAND_R)
def test_published_sizes_at_2048_tokens(dense, cost_of, name, layers, heads, dim, mib):
    assert cost_of(dense(layers, heads, dim)).bytes_for(2048) == mib * MIB


@pytest.mark.parametrize(("name", "layers", "heads", "dim", "cells", "mib"), LLAMA_CPP)
def test_sizes_that_llama_cpp_logged(dense, cost_of, name, layers, heads, dim, cells, mib):
    assert cost_of(dense(layers, heads, dim)).bytes_for(cells) == mib * MIB


def test_llama_3_1_in_gib_as_the_hub_blog_has_it(dense, cost_of):
    # Source: huggingface/blog pull request 2345, with 1k as 1024, 16k as 16,000 and 128k as 128,000.
    # Its row for 405B has the 16 KV heads of the first release; the current file has 8.
    small = cost_of(dense(32, 8, 128))
    large = cost_of(dense(80, 8, 128))
    assert [round(small.bytes_for(n) / GIB, 3) for n in (1024, 16_000, 128_000)] == [
        0.125,
        1.953,
        15.625,
    ]
    assert round(large.bytes_for(1024) / GIB, 4) == 0.3125
    assert round(large.bytes_for(16_000) / GIB, 2) == 4.88
    assert round(cost_of(dense(126, 16, 128)).bytes_for(128_000) / GIB, 2) == 123.05
    assert round(large.bytes_for(128_000) / GIB, 2) == 39.06


def test_524288_bytes_a_token_as_tensorrt_llm_logged(dense, cost_of):
    # Source: NVIDIA/TensorRT-LLM issue 1400: 69,524,783,104 B for 132,608 tokens.
    assert cost_of(dense(32, 32, 128)).bytes_for(132_608) == 69_524_783_104


@pytest.mark.parametrize(
    ("name", "dtype", "tokens", "gib"),
    [("kimi-k2.5", "bf16", 2_454_421, 160.63), ("deepseek-v3", "fp8", 524_288, 17.16)],
)
def test_latents_as_sglang_logged(cost_of, name, dtype, tokens, gib):
    # Source: public logs, which say GB and divide by 2^30.
    assert round(cost_of(model_lookup.load(name), dtype).bytes_for(tokens) / GIB, 2) == gib


def test_int8_with_scales_as_nano_vllm_logged(dense, cost_of):
    # Source: nano-vllm pull request 184: 500 blocks of 256 tokens, 14000.0 -> 7218.8 MiB.
    model = dense(28, 8, 128)
    assert cost_of(model, "fp16").bytes_for(500 * 256) == 14_000 * MIB
    assert cost_of(model, "int8").bytes_for(500 * 256) / MIB == pytest.approx(7218.8, abs=0.051)


@pytest.mark.parametrize(
    ("layers", "cells", "dtype", "mib"),
    [
        (40, 6656, "f16", 1040),
        (40, 6656, "q8_0", 552.5),
        (40, 6656, "q4_0", 292.5),
        (36, 2560, "f16", 360),
        (36, 2560, "q8_0", 191.25),
        (36, 2560, "q4_0", 101.25),
    ],
)
def test_quantised_caches_as_llama_cpp_logged(dense, cost_of, layers, cells, dtype, mib):
    # Source: llama.cpp pull request 21551; the numbers of cells are inferred from the f16 sizes.
    assert cost_of(dense(layers, 8, 128), dtype).bytes_for(cells) == mib * MIB


def test_k_and_v_of_other_widths(dense, cost_of):
    cost = cost_of(dense(9, 4, 192, 128))
    assert [tensor.bytes_per_token for _, tensor in cost.tensors()] == [1536, 1024]
    assert cost.bytes_for(1) == 9 * 2560


def test_the_next_token_costs_what_all_layers_keep_of_it(dense, cost_of):
    assert cost_of(dense(32, 8, 128)).marginal_bytes(1000) == 131_072


def test_a_window_is_fixed_once_it_is_full(dense, cost_of):
    window = Extent(Span.WINDOW, 4096)
    cost = cost_of(dense(2, 1, 64, extent=window, kind=LayerKind.WINDOW))
    assert (cost.fixed_bytes, cost.slope) == (4096 * 2 * 2 * 128, 0)
    assert cost.saturation_tokens == 4096
    assert (cost.marginal_bytes(4095), cost.marginal_bytes(4096)) == (512, 0)


@given(st.data())
def test_a_long_sequence_costs_the_fixed_part_and_the_slope(costs, data):
    cost = data.draw(costs)
    n = data.draw(st.integers(0, 50)) * 360  # a multiple of every ratio times ranks drawn
    n += -(-cost.saturation_tokens // 360) * 360
    assert cost.bytes_for(n) == cost.fixed_bytes + cost.slope * n


@given(st.data(), st.integers(0, 10_000))
def test_a_longer_sequence_never_costs_less(costs, data, n):
    cost = data.draw(costs)
    assert cost.marginal_bytes(n) >= 0
    assert cost.bytes_for(n) == sum(
        layer.count * layer.bytes_for(n, cost.in_flight) for layer in cost.layers
    )


def test_the_slope_of_compressed_and_divided_tokens_is_exact(dense, cost_of):
    cost = cost_of(dense(1, 1, 64, extent=Extent(ratio=4, ranks=2)))
    assert cost.slope == Fraction(256, 8)
    assert [cost.bytes_for(n) for n in (0, 1, 8, 9)] == [0, 256, 256, 512]
