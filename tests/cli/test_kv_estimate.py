"""``vmtool kv-estimate``: what it prints, what it writes, and how it refuses."""

import contextlib
import csv
import io
import json
import re
import shlex
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed import printed

from vmtool.cli.app import run
from vmtool.report.kv import to_text
from vmtool.units import GIB, MIB

NUMBER = re.compile(r"\d[\d,.]*\d|\d")


@pytest.fixture
def estimate(vmtool):
    """Return a function that runs ``vmtool kv-estimate`` with a command line as text."""

    def call(line):
        return vmtool("kv-estimate", *shlex.split(line))

    return call


# ---- the answer -----------------------------------------------------------------------------


def test_the_first_line_says_how_many_tokens_fit(estimate):
    ran = estimate("llama-3.1-8b --budget 16GiB")
    assert (ran.code, ran.stderr) == (0, "")
    first, *rest = ran.stdout.split("\n\n")
    assert " ".join(first.split()) == (
        "llama-3.1-8b: 16 GiB of KV memory holds 131,072 tokens in one sequence, or 1 sequence of"
        " 131,072 tokens."
    )
    assert "17,179,869,184 B = 16.00 GiB (17.18 GB), as given" in rest[0]
    assert "0 B + 131,072 B x tokens" in rest[0]


def test_the_document_has_exact_integers(estimate):
    ran = estimate("qwen3.5-27b --budget 20GiB --context 32k --json")
    body = ran.document
    assert (body["schema"], body["version"]) == ("vmtool.kv-estimate", 1)
    assert body["command"][:3] == ["vmtool", "kv-estimate", "qwen3.5-27b"]
    assert body["budget"]["kv_bytes"] == 20 * GIB
    # 48 states of 3,207,168 B, and 16 layers of 4096 B a token.
    assert body["sequence"]["fixed_bytes"] == 48 * 3_207_168
    assert (body["sequence"]["slope_bytes"], body["sequence"]["slope_tokens"]) == (65_536, 1)
    assert body["sequence"]["at_context_bytes"] == 48 * 3_207_168 + 32_768 * 65_536
    per_tensor = body["policies"]["per-tensor"]
    assert per_tensor["floor_bytes"] == (16 * 2 + 48 * 3) * 2 * MIB
    assert per_tensor["sequences_of_context"]["limit"] == "budget"
    assert _no_floats(body)


def _no_floats(value):
    if isinstance(value, dict):
        return all(_no_floats(item) for item in value.values())
    if isinstance(value, list):
        return all(_no_floats(item) for item in value)
    return not isinstance(value, float)


def test_given_granules_join_the_table(estimate):
    body = estimate("phi-2 --budget 1GiB --granule 20MiB --granule 4KiB --json").document
    assert body["granule_bytes"] == 20 * MIB
    key = body["tensors"][0]
    assert {4096, 65_536, 2 * MIB, 20 * MIB} <= {fit["granule_bytes"] for fit in key["granules"]}
    small = next(fit for fit in key["granules"] if fit["granule_bytes"] == 4096)
    assert (small["tokens"], small["granules_per_token"]) == (0, 2)


def test_a_token_larger_than_a_granule_is_reported_in_granules(estimate):
    assert "0: 2 granules a token" in estimate("phi-2 --budget 1GiB --granule 4KiB").stdout


def test_an_impossible_policy_is_named_and_the_others_are_shown(estimate):
    text = estimate("phi-2 --budget 1GiB --granule 4KiB").stdout
    assert "floor-per-page: a token of k is 5120 B" in text
    assert re.search(r"^token-major ", text, re.MULTILINE)


def test_flags_alone_are_a_model(estimate):
    ran = estimate("--layers 32 --kv-heads 8 --head-dim 128 --budget 1GiB")
    assert ran.stdout.startswith("flags: 1 GiB of KV memory holds 8,192 tokens")


def test_flags_override_a_model(estimate):
    body = estimate("llama-3.1-8b --layers 16 --budget 1GiB --json --explain").document
    assert body["sequence"]["slope_bytes"] == 65_536
    assert body["provenance"]["layers"] == {
        "value": 16,
        "source": "flag",
        "where": "--layers",
        "detail": "",
    }


def test_a_config_file_is_a_model(estimate, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "hidden_size": 512,
                "max_position_embeddings": 4096,
            }
        )
    )
    body = estimate(f"{shlex.quote(str(tmp_path))} --budget 1GiB --json").document
    assert body["sequence"]["slope_bytes"] == 2 * 2 * 2 * 64 * 2


@pytest.fixture
def fp8_checkpoint(tmp_path):
    """Return the quoted path of a config whose checkpoint asks for an fp8 cache."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return shlex.quote(str(tmp_path))


def test_an_fp8_checkpoint_has_an_fp8_cache_unless_a_format_is_named(estimate, fp8_checkpoint):
    # 32 layers x K and V x 8 heads x 128 elements of one byte, and of two in bf16.
    body = estimate(f"{fp8_checkpoint} --budget 1GiB --json").document
    assert (body["format_k"], body["format_v"]) == ("fp8", "fp8")
    assert body["format_origin"] == "as quantization_config.kv_cache_scheme says"
    assert body["sequence"]["slope_bytes"] == 32 * 2 * 8 * 128
    body = estimate(f"{fp8_checkpoint} --dtype bf16 --budget 1GiB --json").document
    assert (body["format_origin"], body["sequence"]["slope_bytes"]) == ("as given", 131_072)


def test_llama_cpp_ignores_the_format_of_the_checkpoint(estimate, fp8_checkpoint):
    assert "K (bf16)" in estimate(f"{fp8_checkpoint} --as llama.cpp --budget 1GiB").stdout


def test_a_model_of_no_stated_type_says_that_its_format_is_assumed(estimate):
    body = estimate("gpt-oss-20b --budget 1GiB --json").document
    assert body["format_k"] == "bf16"
    assert body["format_origin"].startswith("assumed, as the type is not stated")


def test_a_length_that_nothing_states_is_called_vmtools_own(estimate):
    said = "a length of vmtool's own choice"
    assert said in " ".join(estimate("bloom-7b1 --budget 1GiB").stdout.split())
    fact = estimate("bloom-7b1 --budget 1GiB --json --explain").document["provenance"]["context"]
    assert (fact["value"], fact["source"], fact["where"]) == (8192, "default", "vmtool")
    for stated in ("bloom-7b1 --context 4096", "phi-2"):
        ran = estimate(f"{stated} --budget 1GiB --json --explain")
        assert ran.document["provenance"].get("context", {}).get("where") != "vmtool"
        assert said not in " ".join(estimate(f"{stated} --budget 1GiB").stdout.split())


def test_k_and_v_have_formats_of_their_own(estimate):
    body = estimate("llama-3.1-8b --dtype-k q8_0 --dtype-v q4_0 --budget 1GiB --json").document
    assert (body["format_k"], body["format_v"]) == ("q8_0", "q4_0")
    assert body["sequence"]["slope_bytes"] == 32 * (1088 + 576)


def test_ranks_divide_heads_and_weights(estimate, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 4294967297}}')
    body = estimate(
        f"llama-3.1-8b --tp 4 --budget 8GiB --weights {shlex.quote(str(index))} --reserve 1GiB --json"
    ).document
    assert body["sequence"]["slope_bytes"] == 131_072 // 4
    assert body["budget"]["weights_bytes"] == GIB + 1
    assert body["budget"]["kv_bytes"] == 8 * GIB - GIB - 1 - GIB


def test_explain_says_where_each_value_came_from(estimate):
    text = estimate("llama-3.1-8b --budget 1GiB --explain").stdout
    assert "(llama): builtin, built-in llama-3.1-8b, unless a row says otherwise" in text
    assert re.search(r"kv_heads +8 +num_key_value_heads\n", text)


def test_sequences_share_the_budget(estimate):
    body = estimate("llama-3.1-8b --budget 16GiB --sequences 8 --json").document
    assert body["policies"]["per-tensor"]["longest_for_sequences"]["fits"] == 131_072 // 8


def test_in_flight_tokens_widen_a_window(estimate):
    def fixed(line):
        return estimate(f"gpt-oss-20b --budget 1GiB --json {line}").document["sequence"][
            "fixed_bytes"
        ]

    assert fixed("") == 12 * 128 * 2048
    assert fixed("--in-flight 512") == 12 * (127 + 512) * 2048


def first_paragraph(text):
    return " ".join(text.split("\n\n")[0].split())


def test_a_model_with_windows_holds_less_while_it_reads_a_prompt(estimate):
    # The windows of 25 layers take 1023 + 8192 tokens of 8192 B then: 1.758 GiB a sequence.
    line = "gemma-4-26b-a4b --budget 4.25GiB --context 32768"
    assert first_paragraph(estimate(line).stdout) == (
        "gemma-4-26b-a4b: 4.25 GiB of KV memory holds 211,968 tokens in one sequence, or 5 sequences"
        " of 32,768 tokens, while decoding; 130,048 tokens or 1 sequence while each prefills 8,192"
        " tokens at once."
    )
    assert first_paragraph(estimate(f"{line} --in-flight 8192").stdout) == (
        "gemma-4-26b-a4b: 4.25 GiB of KV memory holds 130,048 tokens in one sequence, or 1 sequence"
        " of 32,768 tokens while each prefills 8,192 tokens at once."
    )
    prefill = estimate(f"{line} --json").document["prefill"]
    assert prefill["in_flight_tokens"] == 8192
    assert prefill["one_sequence"]["fits"] == 130_048
    assert prefill["sequences_of_context"]["fits"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "llama-3.1-8b --budget 16GiB",
        "llama-3.1-8b --budget 16GiB --in-flight 8192",
        "gemma-4-26b-a4b --budget 4.25GiB --context 1000",  # less than the window
    ],
)
def test_nothing_is_said_of_a_prompt_that_takes_no_more(estimate, line):
    assert "prefill" not in estimate(line).stdout
    assert "prefill" not in estimate(f"{line} --json").document


def test_the_help_states_the_tokens_in_flight(vmtool):
    text = " ".join(vmtool("kv-estimate", "-h").stdout.split())
    assert "by default 0, as while decoding, but 8192 with --as vllm and 512 with --as" in text


def test_cross_attention_is_not_counted_for_each_token(estimate):
    # 20 heads of 64 in 16 bits, K and V: 5120 B for a token and for each of 1500 positions.
    text = " ".join(estimate("whisper-large-v3 --budget 8GiB").stdout.split())
    assert (
        "32 x full attention: 5,120 B for each token kept and 7,680,000 B of cross attention over"
        " 1,500 encoder positions"
    ) in text
    assert "cross_k 32 x cross attention 2,560" in text
    body = estimate("whisper-large-v3 --budget 8GiB --json").document
    (layer,) = body["layers"]
    assert (layer["bytes_per_token_held"], layer["cross_attention_bytes"]) == (5120, 7_680_000)


def test_a_stride_that_limits_is_reported(estimate):
    text = estimate("gemma-4-26b-a4b --budget 16GiB").stdout
    assert "head-major: one holds no more than its stride of 262,144 tokens (--context)" in text
    text = estimate("falcon-mamba-7b --budget 16GiB --context 8192").stdout
    assert "head-major: one holds no more than its stride of 8,192 tokens (--context)" in text
    assert "stride" not in estimate("llama-3.1-8b --budget 8GiB").stdout
    text = estimate("gemma-4-26b-a4b --budget 16GiB --policy head-major").stdout
    assert "262,144 tokens; limited by the stride, not by the budget" in text


def test_a_format_that_vllm_changes_is_reported(estimate):
    text = " ".join(estimate("deepseek-v3.2 --budget 80GiB --dtype fp8").stdout.split())
    assert "vLLM's FLASHMLA_SPARSE keeps it as --dtype fp8_ds_mla" in text
    for line in ("deepseek-v3.2", "deepseek-v3 --dtype fp8", "deepseek-v3.2 --dtype fp8_ds_mla"):
        assert "vLLM" not in estimate(f"{line} --budget 80GiB").stdout


def test_the_list_has_every_built_in_model(estimate):
    names = estimate("--list").stdout.split()
    assert len(names) >= 40
    assert {"llama-3.1-8b", "deepseek-v3", "gemma-3-27b"} <= set(names)
    assert estimate("--list --json").document["models"] == names


# ---- budgets --------------------------------------------------------------------------------


def test_auto_reads_this_machine(estimate):
    ran = estimate("llama-3.1-8b --json")
    whole = ran.document["budget"]
    assert ran.document["machine"]["memory"]["available_bytes"] > 0
    assert estimate("llama-3.1-8b --budget 1GiB --json").document["machine"] is None
    half = estimate("llama-3.1-8b --budget 50% --json").document["budget"]
    assert whole["origin"] == "available on this machine"
    assert half["origin"] == "50% of what is available on this machine"
    assert 0 < half["total_bytes"] < whole["total_bytes"]


def test_a_budget_below_the_floor_holds_no_token_and_says_why(estimate):
    ran = estimate("llama-3.1-8b --budget 127MiB")
    assert ran.code == 0
    assert "no token fits in 127 MiB" in ran.stdout
    assert "134,217,728 B (128 MiB)" in ran.stdout


def test_weights_that_leave_nothing_hold_no_token(estimate):
    body = estimate("llama-3.1-8b --budget 1GiB --weights 2GiB --json").document
    assert body["budget"]["kv_bytes"] == 0
    assert body["policies"]["per-tensor"]["one_sequence"]["limit"] == "floor"


def test_a_model_of_windows_holds_a_sequence_of_any_length(estimate):
    assert "a sequence of any length" in estimate("starcoder2-15b --budget 4GiB").stdout


# ---- comparison and sweep -------------------------------------------------------------------


def test_compare_marks_the_best(estimate):
    ran = estimate(
        "llama-3.1-8b --budget 16GiB --compare dtype=bf16,fp8 --compare granule=64KiB,2MiB"
    )
    marked = [line.split()[:2] for line in ran.stdout.splitlines() if line.endswith("best")]
    assert marked == [["fp8", "64KiB"], ["fp8", "2MiB"]]


def test_best_holds_most_sequences_of_the_given_length(estimate):
    models = "model=llama-3.1-8b,gemma-3-12b,deepseek-v3"
    text = estimate(f"--compare {models} --budget 16GiB --context 8192").stdout
    title, table = text.split("\n\n")
    assert " ".join(title.split()) == (
        "bf16, 2 MiB granules, per-tensor, 16 GiB of KV memory, sequences of 8,192 tokens; best: most"
        " sequences, then most tokens in a single one"
    )
    # Gemma 3 12B: 40 layers keep a window of 1024 tokens of 8 KiB.
    assert [line.split() for line in table.splitlines()] == [
        ["model", "B/token", "fixed", "1", "token", "wasted", "one", "holds", "sequences"],
        ["llama-3.1-8b", "131,072", "0", "B", "128", "MiB", "0", "B", "(0%)", "131,072", "16"],
        ["gemma-3-12b", "65,536", "320", "MiB", "192", "MiB", "0", "B", "(0%)", "257,024", "19"],
        [
            "deepseek-v3",
            "70,272",
            "0",
            "B",
            "122",
            "MiB",
            "61",
            "MiB",
            "(10%)",
            "243,939",
            "26",
            "best",
        ],
    ]


def test_none_is_best_where_lengths_differ_or_nothing_fits(estimate):
    both = "--compare model=llama-3.1-8b,qwen3-8b --budget"
    text = estimate(f"{both} 16GiB").stdout
    assert "none is best, as these differ: --context N compares at one" in " ".join(text.split())
    assert text.count("best") == 1
    assert re.search(r"^model +context ", text, re.MULTILINE)
    for asked in ("16GiB", "1MiB --context 8192"):
        rows = estimate(f"{both} {asked} --json").document["rows"]
        assert [row["best"] for row in rows] == [False, False]
    rows = estimate(f"{both} 16GiB --context 8192 --json").document["rows"]
    assert [row["best"] for row in rows] == [True, False]
    assert [row["fixed_bytes"] for row in rows] == [0, 0]


def test_a_comparison_keeps_its_columns_at_80(compared_lines):
    line = "qwen3-8b --budget 22GiB --compare dtype=bf16,q8_0 --compare granule=64KiB,2MiB"
    assert compared_lines(line, 80)[3:] == [
        "The same in every row: fixed 0 B",
        "",
        "dtype  granule  B/token  1 token          wasted  one holds  sequences",
        "bf16   64KiB    147,456  4.5 MiB        0 B (0%)    160,192          3",
        "bf16   2MiB     147,456  144 MiB        0 B (0%)    159,744          3",
        "q8_0   64KiB     78,336  4.5 MiB        0 B (0%)    301,537          7  best",
        "q8_0   2MiB      78,336  144 MiB  108 MiB (3.4%)    300,694          7",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_number_of_a_comparison_is_cut_at_any_width(compared_lines, width):
    line = (
        "--budget 22GiB --compare model=gemma-3-27b,deepseek-v3,qwen3.5-27b"
        " --compare policy=per-tensor,token-major,head-major"
    )
    lines = compared_lines(line, width)
    assert max(map(len, lines)) <= width
    wide = NUMBER.findall(" ".join(compared_lines(line, 240)))
    assert set(wide) <= set(NUMBER.findall(" ".join(lines)))
    records = any(line.startswith("  ") and ":" in line for line in lines)
    assert records == (width < 120)


@pytest.fixture
def compared_lines(estimate, monkeypatch):
    """Return a function that gives a comparison as lines of a terminal's width."""
    from vmtool.report import kv_table

    def call(line, width):
        real, seen = kv_table.compare_text, []
        with monkeypatch.context() as patch:
            patch.setattr(kv_table, "compare_text", lambda rows, _: seen.extend(rows))
            assert estimate(line).code == 0
        return printed(partial(real, seen), width)

    return call


def test_compare_reports_impossible_combinations(estimate):
    ran = estimate("llama-3.1-8b --budget 1GiB --compare dtype=bf16,fp8_ds_mla --json")
    bf16, other = ran.document["rows"]
    assert bf16["best"] is True
    assert "it is a format of latent" in other["impossible"]


def test_compare_models_needs_no_other_model(estimate):
    body = estimate("--budget 8GiB --compare model=llama-3.1-8b,qwen3-8b --json").document
    assert [row["model"] for row in body["rows"]] == ["llama-3.1-8b", "qwen3-8b"]
    both = estimate("qwen3-8b --budget 8GiB --compare model=llama-3.1-8b --json").document
    assert [row["model"] for row in both["rows"]] == ["qwen3-8b", "llama-3.1-8b"]


def test_compare_policies(estimate):
    body = estimate(
        "qwen2.5-14b --dtype fp16 --budget 8GiB --compare policy=head-major,per-tensor,token-major --json"
    ).document
    floors = [row["floor_bytes"] // (2 * MIB) for row in body["rows"]]
    assert floors == [768, 96, 1]


def test_sweep_doubles_and_writes_csv(estimate, tmp_path):
    path = tmp_path / "sweep.csv"
    ran = estimate(
        f"llama-3-8b --budget 16GiB --sweep context=1k..8k --csv {shlex.quote(str(path))}"
    )
    assert "1,024 █" in ran.stdout
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [int(row["context_tokens"]) for row in rows] == [1024, 2048, 4096, 8192]
    assert [int(row["sequences"]) for row in rows] == [128, 64, 32, 16]
    assert [int(row["committed_bytes"]) for row in rows] == [n * 128 * MIB for n in (1, 2, 4, 8)]


def test_csv_on_stdout_takes_the_place_of_the_table(estimate):
    ran = estimate("llama-3-8b --budget 16GiB --compare dtype=bf16,nvfp5x --csv -")
    assert ran.code == 2
    ran = estimate("llama-3-8b --budget 16GiB --compare dtype=bf16,fp8_ds_mla --csv -")
    possible, other = csv.DictReader(io.StringIO(ran.stdout))
    assert (possible["format_k"], possible["problem"]) == ("bf16", "")
    assert "it is a format of latent" in other["problem"]


def test_sweep_steps_and_ends_as_given(estimate):
    body = estimate("llama-3-8b --budget 16GiB --sweep context=1k..4000:1k --json").document
    assert [row["context_tokens"] for row in body["rows"]] == [1024, 2048, 3072, 4000]


# ---- engines --------------------------------------------------------------------------------


def test_as_vllm_prints_both_meanings(estimate):
    # Source of the figures: vllm issue 40691, with as much memory as 1487 blocks take.
    memory = 1487 * 16 * 784 * 4096
    ran = estimate(f"qwen3.5-27b --budget {memory} --context 32k --as vllm")
    assert "  GPU KV cache size: 290,864 tokens\n" in ran.stdout
    assert ran.stdout.count("Maximum concurrency for 32,768 tokens per request: 33.04x") == 2
    assert "before about 0.21" in ran.stdout


def test_as_vllm_uses_the_format_that_it_makes_of_fp8(estimate):
    # A latent of 656 B and index keys of 132 B in 61 layers: 111,689 blocks of 16 in 80 GiB.
    line = "deepseek-v3.2 --budget 80GiB --as vllm --dtype"
    text = estimate(f"{line} fp8").stdout
    assert text.count("  GPU KV cache size: 1,787,024 tokens\n") == 2
    assert "it stays fp8: 1,988,960 tokens" in " ".join(text.split())
    assert estimate(f"{line} fp8 --json").document["format_k"] == "fp8_ds_mla"
    same = estimate(f"{line} fp8_ds_mla").stdout
    assert same.count("  GPU KV cache size: 1,787,024 tokens\n") == 2
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
    assert (paged["page_tokens"], paged["max_total_num_tokens"]) == (16, 367_392)
    assert "SGLang refuses to start" in estimate("gpt2 --budget 1KiB --as sglang").stdout


def test_as_llama_cpp_prints_its_lines(estimate):
    # Source of the figures: unsloth issue 10489.
    ran = estimate("gemma-4-12b --dtype q8_0 --budget 4GiB --as llama.cpp --json")
    assert [buffer["cells"] for buffer in ran.document["buffers"]] == [262_144, 1536]
    assert ran.document["total_bytes"] == (2176 + 255) * MIB
    assert (
        "size = 2176.00 MiB (262144 cells,   8 layers,  1/1 seqs)" in ran.document["log_lines"][0]
    )


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no MODEL"),
        ("--layers 4 --kv-heads 2", "no --head-dim"),
        ("llama-3.1-8", "did you mean llama-3.1-8b"),
        ("llama-3.1-8b --dtype q8_1", "did you mean q8_0"),
        ("llama-3.1-8b --policy per-tensors", "did you mean per-tensor"),
        ("llama-3.1-8b --as vlm", "did you mean vllm"),
        ("llama-3.1-8b --as trtllm", "hint: use one of vllm, llama.cpp, sglang\n"),
        ("gemma-3-27b --as sglang", "no windows, states, index keys or cross attention"),
        ("llama-3.1-8b --as sglang --unified", "--unified goes with"),
        ("whisper-large-v3 --as llama.cpp", "cross attention are not modelled"),
        ("llama-3.1-8b --compare dtypes=bf16", "did you mean dtype"),
        ("llama-3.1-8b --compare dtype=", "no values"),
        ("llama-3.1-8b --compare dtype=bf16 --compare dtype=", "no values"),
        ("llama-3.1-8b --compare granule=0", "from 1 B to 1 TiB"),
        ("llama-3.1-8b --compare granule=2XB", "unknown unit"),
        ("llama-3.1-8b --compare dtype=bf16 --as vllm", "give one of"),
        ("llama-3.1-8b --csv x.csv", "--csv needs"),
        ("llama-3.1-8b --as vllm --explain", "--explain goes with"),
        ("llama-3.1-8b --sweep 1k..8k", "write context=1k..128k"),
        ("llama-3.1-8b --sweep context=8k..1k", "must rise"),
        ("llama-3.1-8b --sweep context=1k..8k:0", "must rise"),
        ("llama-3.1-8b --sweep context=1..1m:1", "more than 1000 rows"),
        ("llama-3.1-8b --budget 0", "must be more than 0"),
        ("llama-3.1-8b --budget -1", "is not a size"),
        ("llama-3.1-8b --budget 150%", "at most 100%"),
        ("llama-3.1-8b --budget x%", "not a percentage"),
        ("llama-3.1-8b --budget cuda:x", "unknown backing"),
        ("llama-3.1-8b --budget 99999999999TiB", "more than 64 bits"),
        ("llama-3.1-8b --budget 9999999999999999999999GiB", "is too large for a size"),
        ("llama-3.1-8b --context 99999999999999999999999", "is too large for a count"),
        ("llama-3.1-8b --context 0", "not positive"),
        ("llama-3.1-8b --context 1e9", "is not a count"),
        ("llama-3.1-8b --context 99999999999999999999", "must be at most 2^48"),
        ("llama-3.1-8b --granule 2TiB", "from 1 B to 1 TiB"),
        ("llama-3.1-8b --waste 0", "from 0.1%"),
        ("llama-3.1-8b --waste 100%", "below 100%"),
        ("llama-3.1-8b --waste x", "not a percentage"),
        ("llama-3.1-8b --weights nothing", "is not a size"),
        ("llama-3.1-8b --tp 3", "kv_heads = 8 cannot be divided among tp = 3"),
        ("llama-3.1-8b --pp 33", "only 32 layers"),
        ("llama-3.1-8b --dtype nvfp4 --head-dim 40", "not a multiple of its group of 16"),
        ("phi-2 --granule 4KiB --policy floor-per-page", "more than a granule of 4096 B"),
        ("llama-3.1-8b --hub a/b", "not both"),
    ],
)
def test_wrong_usage_is_reported_with_code_2(estimate, line, words):
    ran = estimate(line if "--budget" in line else f"{line} --budget 1GiB")
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


@pytest.mark.parametrize("name", ["cuda:x", "cuda:", "cuda:-1"])
def test_no_device_is_opened_for_a_name_that_is_refused(estimate, name):
    ran = estimate(f"gpt2 --budget {name}")
    assert ran.code == 2
    assert "unknown backing" in ran.stderr
    assert "opening" not in ran.stderr


def test_a_device_that_is_not_there_is_reported_with_code_4(estimate):
    ran = estimate("gpt2 --budget cuda:99999")
    assert (ran.code, ran.stdout) == (4, "")


def test_the_budget_of_a_device_is_what_it_has_free(run_with_fakecuda):
    ran = run_with_fakecuda(["kv-estimate", "gpt2", "--budget", "cuda:0", "--json"], memory="3GiB")
    ran.assert_clean()
    budget = json.loads(ran.stdout)["budget"]
    assert budget["origin"] == "free on cuda:0, vmtool stand-in GPU 0 (no hardware)"
    assert 2 * GIB < budget["total_bytes"] <= 3 * GIB


def test_a_refusal_leaves_the_file_of_an_earlier_result_alone(estimate, tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("earlier")
    ran = estimate(f"phi-2 --granule 4KiB --policy floor-per-page -o {shlex.quote(str(path))}")
    assert (ran.code, path.read_text()) == (2, "earlier")


def test_a_csv_that_cannot_be_written_is_reported(estimate, tmp_path):
    path = shlex.quote(str(tmp_path / "no" / "where.csv"))
    ran = estimate(f"gpt2 --budget 1GiB --sweep context=1k..2k --csv {path}")
    assert ran.code == 2
    assert "cannot write" in ran.stderr


OPTIONS = st.sampled_from(
    [
        "--dtype",
        "--dtype-v",
        "--budget",
        "--weights",
        "--reserve",
        "--context",
        "--sequences",
        "--in-flight",
        "--granule",
        "--policy",
        "--block",
        "--waste",
        "--compare",
        "--sweep",
        "--as",
        "--state-blocks",
        "--layers",
        "--tp",
        "--dcp",
    ]
)
WORDS = st.one_of(
    st.text(max_size=12),
    st.from_regex(r"(context|dtype|granule|model|policy)=[0-9a-z.,:%]{0,12}", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,22}[.0-9]{0,3}(k|m|GiB|TiB|%|)", fullmatch=True),
    st.sampled_from(
        [
            "auto",
            "cuda:0",
            "vllm",
            "llama.cpp",
            "sglang",
            "paged",
            "head-major",
            "nvfp4",
            "q4_0",
            "fp8_ds_mla",
        ]
    ),
)


@given(st.lists(st.tuples(OPTIONS, WORDS), max_size=3), st.sampled_from(["gpt2", "qwen3.5-27b"]))
def test_every_question_ends_in_an_answer_or_an_error(options, model):
    out, err = io.StringIO(), io.StringIO()
    arguments = [part for option in options for part in option]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["kv-estimate", model, *arguments])
    assert code in (0, 2, 4)
    assert bool(out.getvalue()) == (code == 0)
    assert "Traceback" not in err.getvalue()


@pytest.fixture(params=["\x1b[31mred", "\x9b31m", "a\nb", "\udcff"])
def oddly_named(request, tmp_path):
    """Return a config file whose name would command a terminal, break a line or be no Unicode."""
    path = tmp_path / f"{request.param}.json"
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    try:
        path.write_text(json.dumps({**config, "hidden_size": 256}))
    except (OSError, UnicodeError):
        pytest.skip("this system has no such file names")
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--explain",),
        ("--json", "--explain"),
        ("--compare", "dtype=bf16,fp8"),
        ("--sweep", "context=1k..4k"),
        ("--sweep", "context=1k..4k", "--csv", "-"),
        ("--as", "vllm"),
        ("--tp", "3"),
    ],
)
def test_the_name_of_a_file_cannot_command_the_terminal(vmtool, oddly_named, options):
    ran = vmtool("kv-estimate", oddly_named, "--budget", "1GiB", *options)
    assert ran.code == (2 if "--tp" in options else 0)
    lines = (ran.stdout + ran.stderr).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("b.json") for line in lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--state-blocks align", "goes with --as vllm only"),
        ("--state-blocks nonsense", "goes with --as vllm only"),
        ("--as llama.cpp --state-blocks all", "goes with --as vllm only"),
        ("--unified", "goes with --as llama.cpp only"),
        ("--as vllm --unified", "goes with --as llama.cpp only"),
        ("--as vllm --policy nonsense", "unknown policy"),
        ("--sweep context=1..8 --csv - --json", "neither --json nor --output"),
        ("--sweep context=1..8 --csv - -o x.txt", "neither --json nor --output"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(estimate, line, message):
    ran = estimate(f"llama-3.1-8b --budget 1GiB {line}")
    assert (ran.code, ran.stdout) == (2, "")
    assert message in ran.stderr


# ---- shape ----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["llama-3.1-8b", "mimo-v2-flash --tp 4", "qwen3.5-27b", "phi-2"])
def test_no_number_is_cut_at_any_width(line, monkeypatch):
    from vmtool.cli import kv_estimate
    from vmtool.kv.estimate import Estimate

    seen = []
    monkeypatch.setattr(kv_estimate, "_answer", lambda question, *_, **__: seen.append(question))
    kv_estimate.command.main(
        [*shlex.split(line), "--budget", "40GiB"], standalone_mode=False, prog_name="kv-estimate"
    )
    question = Estimate(seen[0].question())
    report = partial(to_text, question, explain=True)
    wide = printed(report, 240)
    for width in (40, 80, 120):
        narrow = printed(report, width)
        assert max(len(text) for text in narrow) <= width
        assert set(NUMBER.findall(" ".join(wide))) <= set(NUMBER.findall(" ".join(narrow)))


def test_help_opens_with_a_sentence_and_two_examples_that_work(vmtool, estimate):
    text = vmtool("kv-estimate", "-h").stdout
    examples = [line.strip() for line in text.splitlines() if line.strip().startswith("vmtool ")]
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*shlex.split(example)[1:]).code == 0


def test_a_built_in_model_loads_neither_psutil_nor_numpy_nor_json(vmtool_child):
    ran = vmtool_child(
        "kv-estimate",
        "llama-3.1-8b",
        "--budget",
        "16GiB",
        before=(
            "import atexit, sys\n"
            "names = {'psutil', 'cuda', 'numpy', 'json'}\n"
            "atexit.register(lambda: print('loaded', sorted(names & set(sys.modules)), file=sys.stderr))"
        ),
    )
    assert ran.stderr.strip() == "loaded []"
