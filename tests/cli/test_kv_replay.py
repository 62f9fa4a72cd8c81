"""``vmtool kv-replay`` as its users run it."""

import pytest

from vmtool.cli import kv_replay as module

SMALL = ("synthetic:requests=40,rate=20", "--model", "qwen3-0.6b", "--budget", "1GiB")


def test_the_text_says_what_happened(vmtool):
    ran = vmtool("kv-replay", *SMALL)
    assert ran.code == 0
    assert ran.stderr == ""
    for words in ("live", "committed", "reserved", "wasted", "queue", "commits", "releases"):
        assert words in ran.stdout
    assert "█" in ran.stdout


def test_the_same_seed_gives_the_same_document(vmtool):
    first = vmtool("kv-replay", *SMALL, "--json").document
    assert (first["schema"], first["version"]) == ("vmtool.kv-replay", 1)
    assert first == vmtool("kv-replay", *SMALL, "--json").document
    other = vmtool("kv-replay", *SMALL, "--json", "--seed", "1").document
    assert other["usage"] != first["usage"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no TRACE"),
        (("a", "b"), "more than one TRACE"),
        (("synthetic:",), "no MODEL"),
        (("synthetic:", "--model", "qwen3-0.6b", "--policy", "pagd"), "did you mean paged"),
        (("synthetic:", "--model", "qwen3-0.6b", "--tokens-per-second", "0"), "tokens a second"),
        (("synthetic:", "--model", "qwen3-0.6b", "--prefill-rate", "nan"), "tokens a second"),
        (("/nowhere", "--model", "qwen3-0.6b"), "cannot be read"),
    ],
)
def test_wrong_usage_is_2(vmtool, arguments, words):
    ran = vmtool("kv-replay", *arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert words in ran.stderr


def test_bad_lines_are_told_by_number(vmtool, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt_len": 5, "output_len": 5}\n{"prompt_len": -5, "output_len": 5}\n')
    ran = vmtool("kv-replay", str(path), *SMALL[1:])
    assert ran.code == 0
    assert "1 lines are no requests: line 2 prompt_len -5 is not from 0" in " ".join(
        ran.stdout.split()
    )
    assert vmtool("kv-replay", str(path), *SMALL[1:], "--max-bad-lines", "0").code == 2


def examples():
    """Return the arguments of the examples in the help."""
    lines = (line.strip() for line in module.command.help.splitlines())
    return [line.split()[1:] for line in lines if line.startswith("vmtool ")]


def test_help_examples_work(vmtool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,9,9,18,b\n"
    (tmp_path / "trace.csv").write_text(rows)
    assert len(examples()) == 2
    for example in examples():
        assert vmtool(*example).code == 0
