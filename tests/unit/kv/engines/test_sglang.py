"""What SGLang logged, worked out again from the same memory."""

import json
from pathlib import Path

import pytest

from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats
from vmtool.kv.engines.sglang import (
    SglangBuffers,
    SglangSettings,
    default_page,
    log_lines,
    sglang_pool,
)
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.hf.config_to_layers import resolve
from vmtool.units import GIB


def pool(name, budget, page=1, key="bf16", value=None, **ranks):
    geometry = model_lookup.load(name).shard(**ranks)
    formats = choose_formats(geometry.dtype, key=key, value=value or key)
    return sglang_pool(SequenceCost.of(geometry, formats), formats, budget, SglangSettings(page))


@pytest.mark.parametrize(
    ("name", "key", "ranks", "page", "token_bytes", "tokens", "sizes"),
    [
        # vllm issue 21348.
        ("qwen3-235b-a22b", "bf16", {"tp": 4}, 1, 48_128, 367_404, "K size: 8.23 GB, V size: 8.23"),
        # A public log; the model is inferred from the bytes of a token.
        ("qwen3-8b", "bf16", {}, 1, 147_456, 430_067, "K size: 29.53 GB, V size: 29.53"),
        # A public log on Ascend, where pages have 128 tokens; latents are held whole by each rank.
        ("glm-4.7-flash", "bf16", {"tp": 2}, 128, 54_144, 383_872, "KV size: 19.36"),
        # A public log of a model of 64 layers in fp8: 17.16 without the page besides.
        ("qwen3-32b", "fp8", {}, 64, 131_072, 281_216, "K size: 17.17 GB, V size: 17.17"),
    ],
)
def test_lines_that_were_logged(name, key, ranks, page, token_bytes, tokens, sizes):
    found = pool(name, tokens * token_bytes, page, key, **ranks)
    assert (found.token_bytes, found.max_total_num_tokens) == (token_bytes, tokens)
    older, total = log_lines(found)["older"]
    assert older == f"KV Cache is allocated. #tokens: {tokens}, {sizes} GB"
    assert total == f"max_total_num_tokens={tokens}"


def test_newer_versions_log_the_type():
    line, _ = log_lines(pool("llama-3.1-8b", GIB, key="fp8"))["newer"]
    assert line.startswith("KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 16384, K ")


def test_tokens_are_whole_pages_and_the_buffers_have_one_more():
    found = pool("llama-3.1-8b", 100 * 131_072, 64)
    assert found.max_total_num_tokens == 64
    assert found.full == SglangBuffers(64, (64 + 64) * 65_536, (64 + 64) * 65_536)
    assert pool("llama-3.1-8b", 63 * 131_072, 64).max_total_num_tokens == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("deepseek-v4-flash", "compressed attention"),
        ("deepseek-v4.1-flash", "compressed attention"),
        ("whisper-large-v3", "cross attention"),
    ],
)
def test_models_with_other_pools_are_not_guessed(name, kind):
    with pytest.raises(UsageError, match=f"layers with {kind} are not modelled"):
        pool(name, GIB)


def test_index_keys_lie_with_the_latents_as_a_public_log_has_it():
    # A log of DeepSeek-V3.2: 975,424 tokens in 43.67 GB, pages of 64.
    token = 61 * (656 + 132)
    found = pool("deepseek-v3.2", 975_424 * token, 64, "fp8_ds_mla", tp=8)
    assert found.max_total_num_tokens == 975_424
    assert log_lines(found)["older"][0].endswith("#tokens: 975424, KV size: 43.67 GB")


def test_layers_that_share_an_index_have_room_for_their_own():
    # A public log of GLM-5.2 in fp8: 464,768 tokens and a page of 64 in 23.907 GiB.
    token = 78 * (576 + 132)
    found = pool("glm-5.2", 464_768 * token, 64, "fp8", tp=8)
    assert found.max_total_num_tokens == 464_768
    assert log_lines(found)["older"][0].endswith("KV size: 23.91 GB")


def test_layers_with_a_window_have_four_tokens_for_five_of_the_others():
    # 52 layers with a window and 10 without, of 2 x 16 heads x 128 elements of 16 bits.
    layer = 2 * 16 * 128 * 2
    found = pool("gemma-3-27b", 10 * GIB)
    full = 10 * GIB * 5 // (layer * (10 * 5 + 52 * 4))
    assert found.max_total_num_tokens == full
    assert found.swa_tokens == full * 4 // 5
    line = log_lines(found)["newer"][0]
    assert line.endswith(f"full_layer_tokens={full}, swa_layer_tokens={full * 4 // 5}")


def test_a_window_in_all_layers_is_a_pool_like_any_other():
    found = pool("starcoder2-15b", GIB)
    assert (found.swa_tokens, found.full) == (found.max_total_num_tokens, None)


def test_states_take_nine_parts_of_nineteen_and_one_slot_is_besides():
    # 48 states of 3,207,168 B; 16 layers of 4096 B a token.
    state = 48 * 3_207_168
    found = pool("qwen3.5-27b", 19 * GIB)
    slots = 9 * GIB // state - 1
    assert found.state_slots == slots
    assert found.conv_bytes + found.state_bytes == (slots + 1) * state
    assert found.max_total_num_tokens == (19 * GIB - (slots + 1) * state) // 65_536


def test_as_many_states_as_are_asked_for():
    geometry = model_lookup.load("qwen3.5-27b")
    formats = choose_formats(geometry.dtype, key="bf16", value="bf16")
    cost = SequenceCost.of(geometry, formats)
    found = sglang_pool(cost, formats, 19 * GIB, SglangSettings(state_slots=3))
    assert found.state_slots == 3
    assert found.max_total_num_tokens == (19 * GIB - 4 * 48 * 3_207_168) // 65_536


def test_tokens_divided_among_ranks_are_not_guessed():
    with pytest.raises(UsageError, match="tokens divided among ranks are not modelled"):
        pool("deepseek-v3", GIB, tp=8, dcp=8)


def test_formats_that_are_not_modelled_are_refused():
    with pytest.raises(UsageError, match="KV type q8_0 is not modelled"):
        pool("llama-3.1-8b", GIB, key="q8_0")
    with pytest.raises(UsageError, match="K and V must have the same type"):
        pool("llama-3.1-8b", GIB, key="bf16", value="fp8")


@pytest.mark.parametrize(
    ("name", "page"),
    [("deepseek-v3.2", 64), ("glm-5.2", 64), ("minimax-m3", 128), ("deepseek-v3", 1)],
)
def test_a_page_without_a_size_is_what_kernels_of_index_keys_take(name, page):
    assert default_page(model_lookup.load(name)) == page


def test_index_keys_beside_k_and_v_have_a_pool_of_their_own():
    # MiniMaxSparseKVPool: 60 layers of 4 heads of 128, 57 with an index key of 128 of the model's type.
    found = pool("minimax-m3", 100 * GIB, page=128, key="fp8")
    size = 60 * 2 * 4 * 128 + 57 * 128 * 2
    tokens = 100 * GIB // size // 128 * 128
    assert (found.token_bytes, found.max_total_num_tokens) == (size, tokens)
    held = tokens + 128
    assert found.full == SglangBuffers(tokens, held * 60 * 512, held * 60 * 512)
    assert found.index == SglangBuffers(tokens, held * 57 * 256, 0)
    main, index, _ = log_lines(found)["newer"]
    assert "torch.float8_e4m3fn" in main
    assert f"torch.bfloat16, #tokens: {tokens}, K size: " in index
    assert index.endswith("V size: 0.00 GB")


ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("sglang.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['name']}-{row['budget']}-{row['page']}"
)
def test_the_configurator_of_0_5_23_gives_the_same(row):
    geometry = resolve(row["config"], "config.json", row["name"])
    formats = choose_formats(geometry.dtype, key=None, value=None)
    made = SequenceCost.of(geometry, formats)
    pool = sglang_pool(made, formats, row["budget"], SglangSettings(row["page"]))
    expected = row["expected"]["max_total_num_tokens"], row["expected"]["swa"]
    assert (pool.max_total_num_tokens, pool.swa_tokens) == expected
