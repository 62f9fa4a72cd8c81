"""``vmtool kv-estimate --compare`` and ``--sweep``: their tables, documents and CSV."""

import csv
import io
import re
import shlex
from functools import partial

import pytest
from printed import printed

from vmtool.units import GIB, MIB

NUMBER = re.compile(r"\d[\d,.]*\d|\d")


def test_compare_marks_the_best(estimate):
    ran = estimate(
        "llama-3.1-8b --budget 16GiB --compare dtype=bf16,fp8 --compare granule=64KiB,2MiB"
    )
    marked = [line.split()[:2] for line in ran.stdout.splitlines() if line.endswith("best")]
    assert marked == [["fp8", "64KiB"], ["fp8", "2MiB"]]


def test_best_is_what_holds_most_sequences_of_the_length_asked_about(estimate):
    models = "model=llama-3.1-8b,gemma-3-12b,deepseek-v3"
    text = estimate(f"--compare {models} --budget 16GiB --context 8192").stdout
    title, same, table = text.split("\n\n")
    assert " ".join(title.split()) == (
        "bf16, 2 MiB granules, per-tensor, sequences of 8,192 tokens; best: most sequences, then most"
        " tokens in a single one"
    )
    # After its weights each would have less.
    assert same == "The same in every row: KV memory 16 GiB"
    # Gemma 3 12B: 40 layers keep a window of 1024 tokens of 8 KiB.
    assert [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()] == [
        ["model", "B/token", "fixed", "1 token", "wasted", "max tokens", "max sequences"],
        ["llama-3.1-8b", "131,072", "0 B", "128 MiB", "0 B (0 %)", "131,072", "16"],
        ["gemma-3-12b", "65,536", "320 MiB", "192 MiB", "0 B (0 %)", "257,024", "19"],
        ["deepseek-v3", "70,272", "0 B", "122 MiB", "61 MiB (10 %)", "243,939", "26", "best"],
    ]


def test_none_is_best_where_lengths_differ_or_nothing_fits(estimate):
    both = "--compare model=llama-3.1-8b,qwen3-8b --budget"
    text = estimate(f"{both} 16GiB").stdout
    assert "none is best, as the lengths differ: use --context N to compare at one" in " ".join(
        text.split()
    )
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
        "                                                       max        max",
        "dtype  granule  B/token  1 token           wasted   tokens  sequences",
        "bf16   64KiB    147,456  4.5 MiB        0 B (0 %)  160,192          3",
        "bf16   2MiB     147,456  144 MiB        0 B (0 %)  159,744          3",
        "q8_0   64KiB     78,336  4.5 MiB        0 B (0 %)  301,537          7  best",
        "q8_0   2MiB      78,336  144 MiB  108 MiB (3.4 %)  300,694          7",
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
    from vmtool.report import kv_estimate_compare

    def call(line, width):
        real, seen = kv_estimate_compare.compare_text, []
        with monkeypatch.context() as patch:
            patch.setattr(
                kv_estimate_compare, "compare_text", lambda result, _: seen.append(result)
            )
            assert estimate(line).code == 0
        return printed(partial(real, *seen), width)

    return call


def test_compare_tells_what_is_not_possible(estimate):
    ran = estimate("llama-3.1-8b --budget 1GiB --compare dtype=bf16,fp8_ds_mla --json")
    bf16, other = ran.document["rows"]
    assert bf16["best"] is True
    assert "it is a format of latent" in other["problem"]


def test_compare_models_needs_no_other_model(estimate):
    body = estimate("--budget 8GiB --compare model=llama-3.1-8b,qwen3-8b --json").document
    assert [row["model"] for row in body["rows"]] == ["llama-3.1-8b", "qwen3-8b"]
    both = estimate("qwen3-8b --budget 8GiB --compare model=llama-3.1-8b --json").document
    assert [row["model"] for row in both["rows"]] == ["qwen3-8b", "llama-3.1-8b"]


def test_compare_policies(estimate):
    body = estimate(
        "qwen2.5-14b --dtype fp16 --budget 8GiB --compare policy=head-major,per-tensor,token-major --json"
    ).document
    floors = [row["answer"]["floor_bytes"] // (2 * MIB) for row in body["rows"]]
    assert floors == [768, 96, 1]


def test_sweep_doubles_and_writes_csv(estimate, tmp_path):
    path = tmp_path / "sweep.csv"
    ran = estimate(
        f"llama-3-8b --budget 16GiB --sweep context=1k..8k --csv {shlex.quote(str(path))}"
    )
    assert "1,024 █" in ran.stdout
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [int(row["context_tokens"]) for row in rows] == [1024, 2048, 4096, 8192]
    assert [int(row["max_sequences"]) for row in rows] == [128, 64, 32, 16]
    assert [int(row["committed_bytes"]) for row in rows] == [n * 128 * MIB for n in (1, 2, 4, 8)]


def test_csv_on_stdout_takes_the_place_of_the_table(estimate):
    ran = estimate("llama-3-8b --budget 16GiB --compare dtype=bf16,nvfp5x --csv -")
    assert ran.code == 2
    ran = estimate("llama-3-8b --budget 16GiB --compare dtype=bf16,fp8_ds_mla --csv -")
    possible, other = csv.DictReader(io.StringIO(ran.stdout))
    assert (possible["format_k"], possible["problem"]) == ("bf16", "")
    assert "it is a format of latent" in other["problem"]


def test_sweep_steps_and_ends_where_it_is_told(estimate):
    body = estimate("llama-3-8b --budget 16GiB --sweep context=1k..4000:1k --json").document
    assert [row["context_tokens"] for row in body["rows"]] == [1024, 2048, 3072, 4000]


def test_an_impossible_comparison_fails_as_its_first_row_does(estimate):
    line = "llama-3.1-70b --weights auto --budget"
    alone = estimate(f"{line} 10GiB")
    ran = estimate("llama-3.1-70b --weights auto --compare budget=10GiB,20GiB --budget 1GiB")
    assert (ran.code, ran.stdout, ran.stderr) == (5, "", alone.stderr)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_rows_with_and_without_a_devices_name_are_treated_alike(estimate, engine):
    line = f"llama-3.1-70b --tp 2 --context 8k --as {engine} --compare budget=85520809984,h100"
    ran = estimate(f"{line} --json")
    size, device = ran.document["rows"]
    assert size["budget_bytes"] == device["budget_bytes"] < 40 * GIB
    assert size["best"] == device["best"]
    assert "one budget names a device, so the weights and the engine's share" in ran.stderr


def test_a_mark_that_every_row_has_is_not_among_what_is_the_same(estimate):
    text = estimate("qwen3-8b --compare sequences=1,64 --budget 40GiB").stdout
    same = " ".join(text.partition("The same in every row: ")[2].partition("\n\n")[0].split())
    assert same.endswith("max tokens 290,816; max sequences 7")


def test_lengths_that_are_compared_have_one_column(estimate):
    out = estimate("qwen3-8b --compare context=1k,2k").stdout.splitlines()
    assert out[0].endswith("sequences of each length")
    # 147,456 B a token.
    assert [line.split() for line in out[-3:]] == [
        ["context", "needed"],
        ["1,024", "144", "MiB"],
        ["2,048", "288", "MiB"],
    ]
