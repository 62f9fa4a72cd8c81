"""Whole reports of ``vmtool kv-estimate``, as they are printed."""

import shlex

import pytest
from printed import printed

from vmtool.cli.app import run
from vmtool.kv.sources.builtin import names

WIDTH = 80


@pytest.fixture
def report(monkeypatch):
    """Return a function that gives what a command line prints, as a function of a console."""

    def of(line):
        seen = []
        monkeypatch.setattr("mmap.PAGESIZE", 4096)
        monkeypatch.setattr("vmtool.cli.output.Output.emit", lambda _, *parts: seen.extend(parts))
        assert run(["kv-estimate", *shlex.split(line)]) == 0
        _, render = seen
        return render

    return of


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "kv-estimate",
            "qwen3.5-27b --budget 8x80GB --context 32k --sequences 8 --packing --explain",
        ),
        ("kv-estimate-windows", "gemma-4-26b-a4b --budget 64GiB --context 32k"),
        ("kv-estimate-compare", "llama-3.1-70b --compare tp=1,2,8 --budget h100 --context 8k"),
        ("kv-estimate-sweep", "gemma-3-27b --budget 80GiB --sweep context=8k..64k"),
        ("kv-estimate-vllm", "qwen3.5-27b --as vllm --budget h100 --tp 2 --context 32k"),
        ("kv-estimate-sglang", "gemma-3-27b --as sglang --budget 40GiB"),
        ("kv-estimate-llama.cpp", "qwen3.5-27b --as llama.cpp --context 32k --dtype q8_0"),
        ("kv-estimate-trtllm", "llama-3.1-70b --as trtllm --budget h100 --tp 4 --context 32k"),
    ],
)
def test_a_report_is_printed_as_it_was(golden, report, name, line):
    golden(name, report(line), width=WIDTH)


#: Cross attention takes a line more for each kind of layer, and T5Gemma L-L says that its weights were
#: computed; Phi-4-mini-flash and Nemotron 51B have five kinds. Puzzle fills an H200, and each row that asks for tokens
#: says that there is no memory for one.
LONGER = {
    **{name: 16 for name in names() if name.startswith("t5gemma")},
    "t5gemma-l-l": 17,
    "nemotron-3-puzzle-75b-a9b": 17,
    "phi-4-mini-flash": 16,
    "llama-3.1-nemotron-51b": 17,
}


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--budget h100",
        "--budget 8xh100 --tp 8",
        "--sequences 64 --context 8192 --budget h200",
        "--as vllm --budget 8xh100 --sequences 64 --draft-tokens 3",
        "--as sglang --budget 8xh100",
        "--as llama.cpp --budget 40GiB --context 8192",
        "--as trtllm --budget 8xh100",
    ],
)
def test_no_built_in_model_takes_more_than_15_lines(monkeypatch, capsys, options):
    answered = {}
    for name in names():
        seen = []
        monkeypatch.setattr(
            "vmtool.cli.output.Output.emit", lambda _, *parts, seen=seen: seen.extend(parts)
        )
        if run(["kv-estimate", name, *shlex.split(options)]) == 0:
            answered[name] = len(printed(seen[1], WIDTH))
    assert len(answered) > 200  # the engine refuses the others, or their weights are too large
    assert {name: lines for name, lines in answered.items() if lines > LONGER.get(name, 15)} == {}
