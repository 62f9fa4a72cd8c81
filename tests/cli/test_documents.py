"""Every JSON document of every command matches its published schema in every key."""

import pytest
from stored_runs import described

MODEL = ("kv-estimate", "llama-3.1-8b", "--budget", "16GiB")
COMMANDS = {
    "granularity": ("granularity",),
    "granularity of a model": (
        "granularity",
        "--model",
        "llama-3.1-8b",
        "--bytes-per-token",
        "2048",
    ),
    "granularity, proven": ("granularity", "--prove"),
    "doctor": ("doctor",),
    "reserve": ("reserve", "1GiB"),
    "grow": ("grow", "--to", "8MiB", "--step", "1MiB"),
    "grow, sawtooth": ("grow", "--to", "4MiB", "--pattern", "sawtooth", "--against", "nothing"),
    "estimate": MODEL,
    "estimate, explained": (*MODEL, "--explain"),
    "estimate of a hybrid": ("kv-estimate", "qwen3-next-80b-a3b", "--budget", "200GiB"),
    "models": ("kv-estimate", "--list"),
    "comparison of dtypes": (*MODEL, "--compare", "dtype=bf16,q8_0"),
    "sweep": (*MODEL, "--sweep", "context=1k..8k"),
    "vllm": (*MODEL, "--as", "vllm"),
    "llama.cpp": (*MODEL, "--as", "llama.cpp"),
}  # limits, guards and all of stress are in test_stress.py, as a run of them takes seconds


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_every_key_of_a_document_is_in_its_schema(vmtool, arguments):
    ran = vmtool(*arguments, "--json")
    assert ran.code in {0, 3}, ran.stderr
    assert ran.document["command"] == ["vmtool", *arguments, "--json"]
    described(ran.document)


def test_text_in_a_file_that_is_called_json_is_remarked(vmtool, tmp_path):
    assert "x.json will contain text" in vmtool("doctor", "-o", str(tmp_path / "x.json")).stderr
    assert (
        "will contain text" not in vmtool("doctor", "--json", "-o", str(tmp_path / "x.json")).stderr
    )
