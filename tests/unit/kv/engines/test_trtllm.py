"""What TensorRT-LLM logged, worked out again from the same memory."""

from dataclasses import replace

import pytest

from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats
from vmtool.kv.engines.trtllm import TrtllmSettings, as_trtllm, log_lines, trtllm_pools
from vmtool.kv.engines.vllm import VllmSettings, as_vllm
from vmtool.kv.estimate import Question
from vmtool.kv.estimate_result import Budget, FormatOrigin
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import model_lookup
from vmtool.units import GIB


def cost(geometry, dtype=None):
    return SequenceCost.of(geometry, choose_formats(geometry.dtype, key=dtype, value=dtype))


@pytest.mark.parametrize(
    ("model", "dtype", "block", "nbytes", "tokens", "logged"),
    [
        # A public log of 1.2.0rc2: 36 layers of 8 KV heads, fp8.
        ("qwen3-8b", "fp8", 32, 46_208 * 73_728, 46_208, "3.17 GiB"),
        # A public log of a model with latents: one row of 576 elements a layer, fp8.
        ("kimi-k2.5", "fp8", 32, 5_073_376 * 35_136, 5_073_376, "166.02 GiB"),
        # A public log of a server for two sizes of Qwen2.5.
        ("qwen2.5-1.5b", None, 32, 273_792 * 28_672, 273_792, "7.31 GiB"),
    ],
)
def test_a_pool_that_was_logged(model, dtype, block, nbytes, tokens, logged):
    settings = TrtllmSettings(9192, block)
    # A few bytes more make no block more.
    pools = trtllm_pools(cost(model_lookup.load(model), dtype), nbytes + 1000, settings)
    assert [pool.blocks * block for pool in pools] == [tokens]
    *_, last = log_lines(pools, settings)
    assert last == (
        f"[MemUsageChange] Allocated {logged} for max tokens in paged KV cache ({tokens})."
    )


def test_the_lines_that_were_logged_for_a_small_model():
    # SmolLM2-135M, 9.06 GiB and requests of 2048 tokens: 65 blocks, one for the overlap scheduler.
    settings = TrtllmSettings(2048)
    model = cost(model_lookup.from_flags(layers=30, kv_heads=3, head_dim=64), "bf16")
    pools = trtllm_pools(model, 422_048 * 23_040, settings)
    assert log_lines(pools, settings) == [
        (
            "Max KV cache blocks per sequence: 65 [window size=2049], tokens per block=32,"
            " primary blocks=13189, secondary blocks=0, max sequence length=2049"
        ),
        "Number of tokens per block: 32.",
        "[MemUsageChange] Allocated 9.06 GiB for max tokens in paged KV cache (422048).",
    ]


def test_a_request_that_does_not_fit_is_shortened_to_the_blocks():
    # A public log: window size 262112 of 8191 blocks, for requests of 262,145 tokens.
    settings = TrtllmSettings(262_144)
    model = cost(model_lookup.from_flags(layers=9, kv_heads=4, head_dim=128), "fp8")
    line, *_ = log_lines(trtllm_pools(model, 8191 * 32 * 9216, settings), settings)
    assert line.startswith("Max KV cache blocks per sequence: 8193 [window size=262112]")


def test_windows_count_only_where_they_are_set_and_share_the_memory_evenly():
    model = cost(model_lookup.load("gemma-3-12b"))  # 40 layers with a window of 1024, 8 without
    (pool,) = trtllm_pools(model, GIB, TrtllmSettings(8192))
    assert pool.blocks == GIB // (48 * 8192) // 32
    window, full = trtllm_pools(model, GIB, TrtllmSettings(8192, windows=True))
    assert (window.window_tokens, window.blocks) == (1024, GIB // 2 // (40 * 8192) // 32)
    assert (full.window_tokens, full.blocks) == (8193, GIB // 2 // (8 * 8192) // 32)


@pytest.mark.parametrize(
    ("context", "in_flight", "window_blocks", "full_blocks"),
    [
        (8192, 8192, 256, 257),  # 1024 + min(8192, 8192 - 1024) = 8192 of 8193 tokens
        (32768, 8192, 288, 1025),  # 1024 + 8192 tokens
        (32768, 2048, 96, 1025),
        (512, 8192, 17, 17),
    ],
)
def test_a_request_reserves_the_window_and_what_one_step_reads(
    context, in_flight, window_blocks, full_blocks
):
    settings = TrtllmSettings(context, 32, windows=True, in_flight=in_flight)
    assert settings.blocks_for(min(1024, settings.longest)) == window_blocks
    assert settings.blocks_for(settings.longest) == full_blocks


def test_the_requests_are_those_for_which_every_pool_has_blocks():
    model = model_lookup.load("gemma-3-12b")
    formats = choose_formats(model.dtype, key=None, value=None)
    budget = Budget(4 * GIB, "given")
    question = Question(model, formats, FormatOrigin.MODEL, budget, context=8192)
    whole = as_trtllm(question, TrtllmSettings(8192), "1.2")
    assert whole.sequences == 4 * GIB // (48 * 8192) // 32 // 257
    windows = as_trtllm(question, TrtllmSettings(8192, windows=True), "1.2")
    assert windows.tokens == 2 * GIB // (8 * 8192)
    assert windows.sequences == 2 * GIB // (40 * 8192) // 32 // 256  # the window's pool is the less
    long = as_trtllm(question, TrtllmSettings(32768, windows=True, in_flight=512), "1.2")
    # 204 blocks of the window's pool, 48 a request; 1,024 of the other, 1,025 a request.
    assert long.sequences == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("q8_0", "q8_0", "it has no KV type q8_0"), ("fp8", "bf16", "must have the same type")],
)
def test_other_types_are_refused_with_the_reason(key, value, message):
    model = model_lookup.load("qwen3-8b")
    formats = choose_formats(model.dtype, key=key, value=value)
    question = Question(model, formats, FormatOrigin.GIVEN, Budget(GIB, "given"))
    with pytest.raises(UsageError, match=message):
        as_trtllm(question, TrtllmSettings(8192), "1.2")
    with pytest.raises(UsageError, match=message):
        as_vllm(question, VllmSettings(8192), "0.33")


def test_a_draft_model_has_blocks_of_its_own_and_as_many():
    target = model_lookup.load("llama-3.1-70b")
    model = cost(target.with_draft(model_lookup.load("llama-3.2-1b")))
    own, draft = trtllm_pools(model, GIB, TrtllmSettings(8192))
    assert own.blocks == draft.blocks == GIB // (80 * 4096 + 16 * 2048) // 32


@pytest.mark.parametrize("model", ["qwen3.5-27b", "whisper-large-v3"])
def test_what_is_not_modelled_is_refused(model):
    with pytest.raises(UsageError, match="are not modelled"):
        trtllm_pools(cost(model_lookup.load(model)), GIB, TrtllmSettings(448))


@pytest.mark.parametrize(
    ("model", "message"),
    [("minimax-m3", "only KVCacheManagerV2"), ("glm-5.2", "layers that share index keys")],
)
def test_index_keys_that_its_first_manager_has_not_are_refused(model, message):
    with pytest.raises(UsageError, match=message):
        trtllm_pools(cost(model_lookup.load(model)), GIB, TrtllmSettings(448))


def test_index_keys_of_every_layer_lie_beside_the_latents():
    (pool,) = trtllm_pools(
        cost(model_lookup.load("deepseek-v3.2"), "fp8"), GIB, TrtllmSettings(448)
    )
    assert pool.token_bytes == 61 * (576 + 132)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4.1-flash"])
def test_compressed_layers_are_not_guessed(name):
    # A layer that keeps an entry for each token has neither states nor a ratio.
    model = model_lookup.load(name)
    layers = tuple(layer for layer in model.layers if not layer.states)
    for part in (model, replace(model, layers=layers)):
        with pytest.raises(UsageError, match="layers with compressed attention are not modelled"):
            trtllm_pools(cost(part), GIB, TrtllmSettings(448))


def test_blocks_are_powers_of_two():
    with pytest.raises(UsageError, match="not a power of two"):
        trtllm_pools(cost(model_lookup.load("qwen3-8b")), GIB, TrtllmSettings(448, 48))
