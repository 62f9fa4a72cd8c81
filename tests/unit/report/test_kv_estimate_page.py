"""The pages of ``vmtool kv-estimate``: each kind of result makes one."""

import re
import shlex

import pytest

from vmtool.cli.app import run


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("qwen3-8b", "147,456 B a token"),
        ("qwen3-8b --budget 40GiB --sequences 4 --context 8k", "4 sequences of 8,192 tokens fit"),
        ("qwen3-8b --compare tp=1,3 --budget 40GiB", "not possible: tp 3"),
        ("qwen3-8b --compare tp=1,2 --budget 40GiB", "tp 2 is best; "),
        ("qwen3-8b --sweep context=8k..16k", "Committed for one sequence"),
        ("gpt2 --sweep context=1..8 --budget 1GiB", "sequences of 8 tokens"),
        ("qwen3-8b --as vllm --budget 40GiB", "GPU KV cache size: 291,264 tokens"),
        ("qwen3-8b --as sglang --budget 40GiB", "max_total_num_tokens=291271"),
        ("qwen3-8b --as llama.cpp", "llama_kv_cache: size = 5760.00 MiB"),
        ("qwen3-8b --as trtllm --budget 40GiB", "primary blocks=9102"),
    ],
)
def test_each_result_has_a_page(tmp_path, line, words):
    path = tmp_path / "page.html"
    words = words.replace("<", "&lt;")
    arguments = [*shlex.split(line), "--weights", "none", "--html", str(path)]
    assert run(["kv-estimate", *arguments, "-o", str(tmp_path / "text")]) == 0
    text = path.read_text(encoding="utf-8")
    assert words in text
    assert "Download vmtool-kv-estimate.json" in text
    assert "<script" not in text


def test_the_title_cuts_no_word_and_so_no_number(tmp_path):
    path = tmp_path / "page.html"
    arguments = ["kv-estimate", "gemma-3-12b", "--budget", "40GiB", "--html", str(path)]
    assert run([*arguments, "-o", str(tmp_path / "text")]) == 0
    text = path.read_text(encoding="utf-8")
    title = re.search("<title>vmtool kv-estimate: (.*?), 20", text)[1]
    verdict = re.search('class="state[^>]*>(.*?)</p>', text, re.DOTALL)[1]
    assert title.endswith("...")
    assert set(title.removesuffix("...").split()) <= set(verdict.split())
