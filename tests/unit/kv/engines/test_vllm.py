"""What vLLM logged, worked out again from the same memory."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats, stored_formats
from vmtool.kv.engines.vllm import (
    VllmSettings,
    as_vllm,
    default_block,
    log_lines,
    vllm_pool,
)
from vmtool.kv.estimate import Question
from vmtool.kv.estimate_result import Budget, FormatOrigin
from vmtool.kv.geometry import Extent, Layer, LayerKind, ModelGeometry, Span, Tensor, TensorRole
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.hf.config_to_layers import resolve
from vmtool.units import GIB


def cost(name, dtype=None, **ranks):
    geometry = model_lookup.load(name).shard(**ranks)
    return SequenceCost.of(geometry, choose_formats(geometry.dtype, key=dtype, value=dtype))


def gib(text):
    """Return *text* GiB in bytes, rounded down."""
    return int(Fraction(text) * GIB)


# ---- one kind of layer ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "blocks", "length", "concurrency"),
    [("3.81", 1952, 20_000, "1.56"), ("2.89", 1478, 29_000, "0.82")],
)
def test_llama_3_1_8b(memory, blocks, length, concurrency):
    # Source: vllm issue 10517; the memory is logged to two decimals of a GiB.
    model = cost("llama-3.1-8b")
    near = [vllm_pool(model, gib(memory) + d * GIB // 200, VllmSettings(length)) for d in (-1, 1)]
    assert near[0].num_blocks <= blocks <= near[1].num_blocks
    pool = vllm_pool(model, blocks * 16 * 131_072, VllmSettings(length))
    assert pool.num_blocks == blocks
    assert f"{float(pool.concurrency):.2f}" == concurrency


def test_the_lines_that_vllm_logged():
    # Source: vllm pull request 13596: 127,626 blocks of 16.
    settings = VllmSettings(2048)
    pool = vllm_pool(cost("llama-3.1-8b"), 127_626 * 16 * 131_072, settings)
    assert log_lines(pool, settings)["before about 0.21"] == [
        "GPU KV cache size: 2,042,016 tokens",
        "Maximum concurrency for 2,048 tokens per request: 997.08x",
    ]


def test_qwen3_30b_a3b_on_four_ranks():
    # Source: a public log: 2.31 GiB, 100,752 tokens, 1.54x at 65,536.
    model = cost("qwen3-30b-a3b", tp=4)
    low, high = (
        vllm_pool(model, gib(f), VllmSettings(65_536)).tokens_older for f in ("2.305", "2.315")
    )
    assert low <= 100_752 <= high
    pool = vllm_pool(model, 100_752 * 24_576, VllmSettings(65_536))
    assert (pool.tokens_older, f"{float(pool.concurrency):.2f}") == (100_752, "1.54")


@pytest.mark.parametrize(
    ("memory", "tokens"), [("10.55", 230_528), ("10.12", 221_000), ("5.59", 122_080)]
)
def test_qwen3_30b_a3b_in_fp8(memory, tokens):
    # Source: vllm issue 25350; that the cache is fp8 is inferred from 49,152 bytes a token.
    model = cost("qwen3-30b-a3b", "fp8")
    near = [
        vllm_pool(model, gib(memory) + d * GIB // 200, VllmSettings(4096)).tokens_older
        for d in (-1, 1)
    ]
    assert near[0] <= tokens <= near[1]
    # 221,000 is no whole number of blocks: it was rounded when it was reported.
    assert vllm_pool(model, tokens * 49_152, VllmSettings(4096)).tokens_older == tokens // 16 * 16


# ---- windows --------------------------------------------------------------------------------


def test_gpt_oss_120b_as_two_groups():
    # Source: hf-mem issue 60: 73,728 bytes a token, 5.38 GiB, 78,384 tokens.
    pool = vllm_pool(cost("gpt-oss-120b"), 9798 * 18 * 32_768, VllmSettings(131_072))
    assert (pool.groups, pool.group_layers, pool.padding_layers) == (2, 18, 0)
    assert pool.tokens_older == 78_384
    assert round(9798 * 18 * 32_768 / GIB, 2) == 5.38


def test_gemma_4_31b_as_six_groups():
    # Source: hf-mem issue 61: 24.54 GiB, 26,800 tokens.
    pool = vllm_pool(cost("gemma-4-31b"), gib("24.54"), VllmSettings(262_144))
    assert (pool.groups, pool.group_layers, pool.num_blocks) == (6, 10, 10_051)
    assert pool.tokens_older == 26_800


@pytest.mark.parametrize(
    ("length", "tokens"), [(32_768, 78_433), (65_536, 116_025), (131_072, 152_592)]
)
def test_gemma_4_26b_holds_another_number_of_tokens_at_each_length(length, tokens):
    # Source: a public log on one pool of 4.25 GiB; that 4992 tokens were in flight (2 x 2496, with
    # asynchronous scheduling) is inferred: it gives all three.
    settings = VllmSettings(length, in_flight=4992)
    assert vllm_pool(cost("gemma-4-26b-a4b"), gib("4.25"), settings).tokens_newer == tokens


@pytest.mark.parametrize(
    ("full", "windowed", "size", "groups", "padding"),
    [
        (10, 50, 10, 6, 0),
        (10, 12, 12, 2, 2),
        (10, 14, 14, 2, 4),
        (10, 15, 10, 3, 5),
        (3, 4, 4, 2, 1),
    ],
)
def test_groups_are_filled_up_where_that_takes_few_layers(full, windowed, size, groups, padding):
    # vLLM: as many layers as the rarer kind has, unless the other has less than 1.5 times as many.
    def layers(count, extent):
        pair = (
            Tensor("k", TensorRole.KEY, 1, 64, extent),
            Tensor("v", TensorRole.VALUE, 1, 64, extent),
        )
        return [Layer(i, LayerKind.FULL, pair) for i in range(count)]

    mixed = (*layers(full, Extent()), *layers(windowed, Extent(Span.WINDOW, 64)))
    geometry = ModelGeometry("t", "t", mixed, None, "bf16")
    model = SequenceCost.of(geometry, choose_formats("bf16", key=None, value=None))
    pool = vllm_pool(model, GIB, VllmSettings(4096))
    assert (pool.group_layers, pool.groups, pool.padding_layers) == (size, groups, padding)
    assert pool.num_blocks == GIB // (16 * 256) // size


def test_a_window_takes_a_block_more_and_a_chunk_does_not():
    def pool(span):
        tensors = tuple(
            Tensor(name, role, 1, 64, Extent(span, 128))
            for name, role in (("k", TensorRole.KEY), ("v", TensorRole.VALUE))
        )
        geometry = ModelGeometry("t", "t", (Layer(0, LayerKind.WINDOW, tensors),), None, "bf16")
        model = SequenceCost.of(geometry, choose_formats("bf16", key=None, value=None))
        return vllm_pool(model, GIB, VllmSettings(100_000, in_flight=64)).blocks_per_request

    # (128 - 1 + 64) / 16 = 11.9, so 12 and one; (128 + 64) / 16 = 12.
    assert (pool(Span.WINDOW), pool(Span.CHUNK)) == (13, 12)


# ---- states ---------------------------------------------------------------------------------


def test_qwen3_5_27b_aligns_its_blocks_to_784_tokens():
    # Source: vllm issue 40691: block 784, 1487 blocks, 290,864 tokens, 33.04x at 32,768.
    settings = VllmSettings(32_768)
    pool = vllm_pool(cost("qwen3.5-27b"), 1487 * 16 * 784 * 4096, settings)
    assert (pool.aligned_block_tokens, pool.num_blocks) == (784, 1487)
    assert pool.state_padding_bytes == 784 * 4096 - 3_207_168
    assert (pool.blocks_per_request, pool.tokens_older) == (42 + 3, 290_864)
    assert f"{float(pool.concurrency):.2f}" == "33.04"


def test_qwen3_6_35b_a3b_with_prefix_caching():
    # Source: noonghunna/club-3090 issue 612: fp8, block 2096, 299 blocks, 4.3333x, 567,978 tokens.
    settings = VllmSettings(131_072, state_mode="align")
    pool = vllm_pool(cost("qwen3.6-35b-a3b", "fp8"), 299 * 10 * 2096 * 1024, settings)
    assert (pool.aligned_block_tokens, pool.num_blocks) == (2096, 299)
    assert (pool.blocks_per_request, pool.tokens_newer) == (69, 567_978)
    assert f"{float(pool.concurrency):.4f}" == "4.3333"


def test_states_at_every_block_take_as_many_blocks_as_attention():
    settings = VllmSettings(32_768, state_mode="all")
    pool = vllm_pool(cost("qwen3.5-27b"), gib("40"), settings)
    assert pool.blocks_per_request == 42 + 3 * 42


def test_states_alone_take_one_block_a_sequence():
    pool = vllm_pool(cost("falcon-mamba-7b"), GIB, VllmSettings(8192))
    assert (pool.groups, pool.blocks_per_request, pool.aligned_block_tokens) == (1, 1, None)


@pytest.mark.parametrize(
    ("mode", "block", "tokens"), [("none", 16, 7_061_504), ("align", 16, 13_792)]
)
def test_a_block_of_states_alone_is_a_sequence_without_prefix_caching(mode, block, tokens):
    # 64 layers of 311,296 B: 862 blocks in 16 GiB.
    settings = VllmSettings(8192, state_mode=mode)
    pool = vllm_pool(cost("falcon-mamba-7b"), 16 * GIB, settings)
    assert (pool.num_blocks, pool.block_tokens, pool.tokens_older) == (862, block, tokens)


def test_a_state_makes_the_blocks_of_attention_longer():
    # Even where the longest request is shorter than the 784 tokens of an aligned block.
    short = vllm_pool(cost("qwen3.5-27b"), 10 * GIB, VllmSettings(512))
    assert (short.aligned_block_tokens, short.block_tokens) == (784, 784)
    aligned = vllm_pool(cost("qwen3.5-27b"), 10 * GIB, VllmSettings(512, state_mode="align"))
    assert (aligned.aligned_block_tokens, aligned.block_tokens) == (784, 784)


# ---- latents, ranks and refusals ------------------------------------------------------------


def test_index_keys_are_layers_of_another_size_in_the_same_group():
    pool = vllm_pool(cost("deepseek-v3.2"), 100 * 16 * 61 * (1152 + 132), VllmSettings(16))
    assert (pool.groups, pool.num_blocks, pool.page_bytes) == (1, 100, 0)


@pytest.mark.parametrize(
    ("name", "block"),
    [("minimax-m3", 128), ("deepseek-v3.2", 64), ("glm-5.2", 64), ("deepseek-v3", 16)],
)
def test_a_block_without_a_size_is_what_kernels_of_index_keys_take(name, block):
    assert default_block(model_lookup.load(name)) == block


def test_index_keys_beside_k_and_v_are_layers_of_the_same_group():
    pool = vllm_pool(cost("minimax-m3"), 64 * GIB, VllmSettings(8192, 128))
    assert (pool.groups, pool.group_layers) == (1, 60 + 57)


def test_compressed_index_keys_are_refused():
    config = {
        "model_type": "qwen4_exp_text",
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": ["full_attention"] * 2,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
    }
    model = resolve(config, "config.json", "m")
    formats = choose_formats("bf16", key=None, value=None)
    question = Question(model, formats, FormatOrigin.MODEL, Budget(GIB, "given"))
    with pytest.raises(UsageError, match="index keys of qwen4_exp_text are not modelled"):
        as_vllm(question, VllmSettings(8192), "0.33")


@pytest.mark.parametrize(
    ("name", "asked", "stored"),
    [
        ("deepseek-v3.2", "fp8", "fp8_ds_mla"),
        ("deepseek-v3.2", "fp8_per_token_head", "fp8_ds_mla"),
        ("glm-5", "fp8", "fp8_ds_mla"),
        ("deepseek-v4-flash", "fp8", "fp8_ds_v4"),
        ("deepseek-v3.2", "bf16", "bf16"),
        ("deepseek-v3.2", "fp8_ds_mla", "fp8_ds_mla"),
        ("deepseek-v3", "fp8", "fp8"),
        ("llama-3.1-8b", "fp8", "fp8"),
    ],
)
def test_fp8_latents_of_sparse_attention_are_stored_with_scales(name, asked, stored):
    formats = choose_formats("bf16", key=asked, value=asked)
    assert stored_formats(model_lookup.load(name), formats).key.name == stored


def test_ranks_that_divide_the_tokens_hold_more_together():
    memory = 1000 * 16 * 70_272
    whole = vllm_pool(cost("deepseek-v3", tp=8), memory, VllmSettings(16_384))
    divided = vllm_pool(cost("deepseek-v3", tp=8, dcp=8), memory, VllmSettings(16_384))
    assert (whole.tokens_older, divided.tokens_older) == (16_000, 128_000)
    assert divided.concurrency == 8 * whole.concurrency


def test_a_rank_with_fewer_heads_than_ranks_holds_a_copy():
    memory = gib("2")
    eight = vllm_pool(cost("qwen3-30b-a3b", tp=8), memory, VllmSettings(4096))
    four = vllm_pool(cost("qwen3-30b-a3b", tp=4), memory, VllmSettings(4096))
    assert eight == four


def test_pages_that_cannot_be_made_equal_are_padded():
    def layer(index, heads, extent):
        tensors = (
            Tensor("k", TensorRole.KEY, heads, 64, extent),
            Tensor("v", TensorRole.VALUE, heads, 64, extent),
        )
        return Layer(index, LayerKind.FULL, tensors)

    geometry = ModelGeometry(
        "t", "t", (layer(0, 3, Extent()), layer(1, 2, Extent(Span.WINDOW, 64))), None, "bf16"
    )
    model = SequenceCost.of(geometry, choose_formats("bf16", key=None, value=None))
    # 2 and 3 heads: 8192 B and 12288 B; vLLM makes the smaller as large as the larger.
    pool = vllm_pool(model, GIB, VllmSettings(4096))
    assert (pool.groups, pool.num_blocks) == (2, GIB // 12_288)


def test_compressed_layers_are_not_guessed():
    with pytest.raises(UsageError, match="compressed attention are not modelled"):
        vllm_pool(cost("deepseek-v4-flash"), GIB, VllmSettings(4096))


def test_an_unknown_state_mode_is_refused():
    with pytest.raises(UsageError, match="use none, align, all"):
        vllm_pool(cost("llama-3.1-8b"), GIB, VllmSettings(4096, state_mode="both"))


# ---- rows of vLLM's own planner ---------------------------------------------------------------

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("vllm.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['name']}-{i}" for i, row in enumerate(ROWS)])
def test_the_planner_of_0_33_gives_the_same(row):
    options, expected = row["options"], row["expected"]
    geometry = resolve(row["config"], "config.json", row["name"])
    formats = choose_formats(
        geometry.dtype, key=options.get("--dtype"), value=options.get("--dtype")
    )
    geometry = geometry.shard(tp=int(options.get("--tp", 1)), dcp=int(options.get("--dcp", 1)))
    settings = VllmSettings(
        row["max_model_len"],
        block=int(options.get("--block", 16)),
        in_flight=row["in_flight"],
        state_mode=row["state_mode"],
    )
    made = SequenceCost.of(geometry, stored_formats(geometry, formats))
    pool = vllm_pool(made, row["budget"], settings)
    assert (pool.num_blocks, pool.tokens_newer) == (expected["num_blocks"], expected["tokens"])
    assert (pool.block_tokens, pool.groups) == (expected["block_size"], expected["groups"])
    assert float(pool.concurrency) == pytest.approx(expected["concurrency"], abs=1e-6)
