"""``vmtool kv-estimate --as``: the lines that each engine would log, and what else it says."""

import pytest
from stored_runs import described

from vmtool.units import MIB


def test_as_vllm_prints_both_meanings(estimate):
    # Source of the figures: vllm issue 40691, with as much memory as 1487 blocks take.
    memory = 1487 * 16 * 784 * 4096
    ran = estimate(f"qwen3.5-27b --budget {memory} --context 32k --as vllm")
    assert "  GPU KV cache size: 290,864 tokens\n" in ran.stdout
    assert ran.stdout.count("Maximum concurrency for 32,768 tokens per request: 33.04x") == 2
    assert "before about 0.21" in ran.stdout


def test_a_pool_of_so_many_blocks_says_how_large_it_is(estimate):
    ran = estimate("qwen3-30b-a3b --as vllm --blocks 3000")
    # 48 layers of 16 tokens of 2048 B.
    assert f"{3000 * 48 * 16 * 2048:,} B" in " ".join(ran.stdout.split())


def test_as_vllm_uses_the_format_that_it_makes_of_fp8(estimate):
    # A latent of 656 B and index keys of 132 B in 61 layers: 27,922 blocks of 64 in 80 GiB.
    line = "deepseek-v3.2 --budget 80GiB --as vllm --dtype"
    text = estimate(f"{line} fp8").stdout
    assert text.count("  GPU KV cache size: 1,787,008 tokens\n") == 2
    assert "it stays fp8: 1,988,928 tokens" in " ".join(text.split())
    assert estimate(f"{line} fp8 --json").document["format_k"] == "fp8_ds_mla"
    same = estimate(f"{line} fp8_ds_mla").stdout
    assert same.count("  GPU KV cache size: 1,787,008 tokens\n") == 2
    assert "stays" not in same


def test_as_vllm_says_that_it_would_not_start(estimate):
    ran = estimate("llama-3.1-8b --budget 1GiB --context 16k --as vllm")
    assert "vLLM refuses to start" in ran.stdout


def test_as_sglang_prints_its_lines(estimate):
    # Source of the figures: vllm issue 21348, with as much memory as those tokens take.
    memory = 367_404 * 94 * 2 * 128 * 2
    line = f"qwen3-235b-a22b --tp 4 --dtype bf16 --budget {memory} --as sglang"
    text = estimate(line).stdout
    sizes = "#tokens: 367404, K size: 8.23 GB, V size: 8.23 GB"
    assert f"  KV Cache is allocated. {sizes}\n" in text
    assert f"  KV Cache is allocated. dtype: torch.bfloat16, {sizes}\n" in text
    assert text.count("  max_total_num_tokens=367404\n") == 2
    assert "pages of 1 token" in " ".join(text.split())
    paged = estimate(f"{line} --block 16 --json").document
    assert (paged["pool"]["page_tokens"], paged["pool"]["max_total_num_tokens"]) == (16, 367_392)
    assert "SGLang refuses to start" in estimate("gpt2 --budget 1KiB --as sglang").stdout


def test_as_llama_cpp_prints_its_lines(estimate):
    # Source of the figures: unsloth issue 10489.
    ran = estimate("gemma-4-12b --dtype q8_0 --budget 4GiB --as llama.cpp --json")
    assert [buffer["cells"] for buffer in ran.document["buffers"]] == [262_144, 1536]
    assert ran.document["total_bytes"] == (2176 + 255) * MIB
    assert (
        "size = 2176.00 MiB (262144 cells,   8 layers,  1/1 seqs)" in ran.document["log_lines"][0]
    )


@pytest.mark.parametrize(
    ("line", "document"),
    [
        ("llama-3.1-8b", "vmtool.kv-estimate"),
        ("llama-3.1-8b --budget 40GiB --explain", "vmtool.kv-estimate"),
        ("starcoder2-15b --budget 40GiB", "vmtool.kv-estimate"),
        ("gemma-3-27b --budget 80GiB --sequences 4", "vmtool.kv-estimate"),
        ("llama-3.1-8b --compare dtype=bf16,fp8_ds_mla", "vmtool.kv-estimate.compare"),
        ("llama-3.1-8b --compare tp=1,2 --budget 8GiB --as vllm", "vmtool.kv-estimate.compare"),
        ("llama-3.1-8b --sweep context=1k..4k", "vmtool.kv-estimate.sweep"),
        ("--list", "vmtool.kv-estimate.models"),
        ("qwen3.5-27b --budget 20GiB --as vllm", "vmtool.kv-estimate.vllm"),
        ("qwen3.5-27b --budget 20GiB --as vllm@0.20", "vmtool.kv-estimate.vllm"),
        ("gemma-3-27b --budget 20GiB --as sglang", "vmtool.kv-estimate.sglang"),
        ("qwen3.5-27b --budget 20GiB --as llama.cpp", "vmtool.kv-estimate.llama.cpp"),
    ],
)
def test_each_document_is_as_its_schema_describes(estimate, line, document):
    ran = estimate(f"{line} --json")
    assert (ran.code, ran.document["schema"]) == (0, document)
    described(ran.document)


def test_engines_of_a_comparison_are_shown_in_their_own_unit(estimate):
    rows = estimate(
        "llama-3.1-8b --budget 8GiB --context 8k --as vllm --compare tp=1,2 --json"
    ).document["rows"]
    assert [row["engine_tokens"] for row in rows] == [65_536, 131_072]


def test_older_versions_of_vllm_are_distinguished(estimate):
    line = "qwen3.5-27b --budget 20GiB --context 32k --state-blocks all --as"
    assert estimate(f"{line} vllm@0.20").code == 0
    ran = estimate(f"{line} vllm")
    assert ran.code == 2
    assert "no longer has the state mode 'all'" in ran.stderr


def test_sglang_tells_its_windows_and_states(estimate):
    text = estimate("gemma-3-27b --budget 20GiB --as sglang").stdout
    assert "Use sliding window memory pool. full_layer_tokens=" in text
    text = estimate("qwen3.5-27b --budget 20GiB --as sglang").stdout
    assert "Mamba Cache is allocated. max_mamba_cache_size: " in text


def test_llama_cpp_may_keep_the_whole_window_and_states_besides(estimate):
    whole = estimate("gemma-3-12b --budget 80GiB --as llama.cpp --context 8k --swa-full --json")
    assert [buffer["cells"] for buffer in whole.document["buffers"]] == [8192, 8192]
    text = estimate("qwen3.5-27b --budget 80GiB --as llama.cpp --context 8k").stdout
    assert "llama_memory_recurrent: size = " in text


@pytest.mark.parametrize(
    ("line", "noticed"),
    [
        ("mistral-small-4-119b --budget h100 --as vllm", True),  # its weights are not in the table
        ("qwen3-8b --budget h100 --as vllm", False),
        ("qwen3-8b --budget 60GiB --as vllm", True),  # an engine's own figure
        ("qwen3-8b --budget 60GiB --as sglang --weights auto", False),
        ("qwen3-8b --budget 60GiB --as llama.cpp --weights none", False),
        ("qwen3-8b --blocks 3000 --as vllm", False),
        ("--compare model=qwen3-8b,mistral-small-4-119b --budget 80GiB --weights auto", True),
    ],
)
def test_a_budget_from_which_no_weights_are_subtracted_is_noticed(estimate, line, noticed):
    ran = estimate(line)
    assert ran.code == 0
    assert ("no weights are subtracted" in ran.stderr) is noticed


def test_only_vllm_has_other_versions_than_the_modelled_one(estimate):
    line = "llama-3.1-8b --budget 10GiB --as"
    assert estimate(f"{line} trtllm@1.2").stdout == estimate(f"{line} trtllm").stdout
    ran = estimate(f"{line} trtllm@1.3")
    assert (ran.code, "trtllm is modelled as of 1.2 only" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("in_flight", "requests"),
    [
        ("", "7 requests of 32,768 tokens (8,192"),
        ("--in-flight 512", "9 requests of 32,768 tokens (512"),
    ],
)
def test_trtllm_counts_the_requests_of_windows_by_what_a_step_reads(estimate, in_flight, requests):
    # Pools of 2,048 and 10,240 blocks; a request takes 288 or 48 of them, and 1,025.
    line = "gemma-3-12b --as trtllm --attention-windows --budget 40GiB --context 32k"
    text = " ".join(estimate(f"{line} {in_flight}".strip()).stdout.split())
    assert f"room for {requests} tokens in flight)" in text


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("--as vllm --budget 20GiB --sequences 17", "17 requests of 8,192 tokens fit at once."),
        ("--as vllm --budget 20GiB --sequences 18", "18 requests of 8,192 tokens do not fit"),
        ("--as sglang --budget 20GiB --sequences 17", "17 requests of 8,192 tokens fit at once."),
        ("--as sglang --budget 20GiB --sequences 18", "18 requests of 8,192 tokens do not fit"),
    ],
)
def test_an_engine_says_whether_the_sequences_fit(estimate, line, verdict):
    # 8,192 tokens of 147,456 B are 1.125 GiB: 17.8 of them are 20 GiB.
    ran = estimate(f"qwen3-8b --context 8k {line}")
    assert verdict in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("llama-3.1-8b --as llama.cpp --pp 2", "leave out --pp"),
        ("llama-3.1-8b --as vllm --budget 20GiB --dtype turbo3", "it has no KV type turbo3"),
        ("llama-3.1-8b --as vllm --budget 20GiB --dtype mxfp4", "it has no KV type mxfp4"),
        ("llama-3.1-8b --state-dtype fp32", "llama-3.1-8b keeps no recurrent state"),
    ],
)
def test_what_has_no_effect_or_no_log_line_is_refused(estimate, line, message):
    ran = estimate(line)
    assert (ran.code, message in ran.stderr) == (2, True)


def test_no_comma_stands_before_a_colon(estimate):
    text = estimate("llama-3.1-8b --budget 16GiB --weights 15.99GiB").stdout
    assert "of weights: the first commits" in " ".join(text.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "qwen3-32b --as vllm --budget 2xh100",
            (
                "For 2 ranks together (tp 2); each has 79.65 GiB, all of one h100; minus weights of about"
                " 30.51 GiB, as published, 16-bit; minus 6.372 GiB for other memory."
            ),
        ),
        (
            "gpt2 --as sglang --budget 20GiB",
            "1 rank has 20.00 GiB, as given; no weights",
        ),
        ("gpt2 --as trtllm --budget h100", "GiB, all of one h100; minus weights of about"),
        ("gpt2 --as llama.cpp --budget h100", "GiB, all of one h100; minus weights of about"),
    ],
)
def test_an_answer_for_an_engine_names_its_ranks_and_what_is_subtracted(estimate, line, words):
    ran = estimate(line)
    assert words in " ".join(ran.stdout.split())
    assert estimate(f"{line} --json").document["rank"]["budget"]["total_bytes"]


@pytest.mark.parametrize("line", ["gpt2 --as llama.cpp", "gpt2 --as vllm --blocks 9 --budget h100"])
def test_an_answer_for_an_engine_that_needs_no_budget_names_none(estimate, line):
    assert "rank has" not in estimate(line).stdout


def test_a_comparison_rounds_requests_as_the_log_line_does(estimate):
    line = "qwen3-8b --as vllm --context 40000 --weights none"
    alone = estimate(f"{line} --budget h100")
    assert alone.stdout.count("per request: 13.34x") == 2  # 13.3392
    assert " 13.34" in estimate(f"{line} --compare budget=h100,40GiB").stdout
