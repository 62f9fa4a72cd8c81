"""Completion in the shell: commands, names of models and methods, files where a file goes."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from vmtool.cli.app import main


def _complete(*words):
    """What bash would be offered, in this process."""
    environment = {"COMP_WORDS": " ".join(("vmtool", *words)), "COMP_CWORD": str(len(words))}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        return BashComplete(main, {}, "vmtool", "_VMTOOL_COMPLETE").complete().split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("kv-e",), "plain,kv-estimate"),
        (("kv-estimate", "qwen3-0"), "plain,qwen3-0.6b"),
        (("kv-estimate", "./conf"), "file,./conf"),
        (("stress", "--method", "pro"), "plain,protect"),
        (("stress", "--pattern", "saw"), "plain,sawtooth"),
        (("kv-estimate", "x", "--as", "vl"), "plain,vllm"),
        (("kv-estimate", "x", "--dtype", "nv"), "plain,nvfp4"),
        (("stress", "--backing", "cu"), "plain,cuda"),
        (("compare", "res"), "file,res"),
        (("schema", "str"), "plain,stress"),
        (("schema", "kv-estimate.v"), "plain,kv-estimate.vllm"),
        (("kv-estimate", "gpt2", "--compare", ""), "plain,dtype="),
        (("kv-replay", "t.csv", "--compare", "on"), "plain,on-refusal="),
    ],
)
def test_names_and_files_are_offered(words, wanted):
    assert wanted in _complete(*words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(vmtool, shell):
    ran = vmtool("completion", shell)

    assert ran.code == 0
    assert "_VMTOOL_COMPLETE" in ran.stdout


def test_a_shell_that_asks_gets_its_answer():
    answer = subprocess.run(
        [sys.executable, "-c", "from vmtool.cli.app import run; run([])"],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env=os.environ
        | {"_VMTOOL_COMPLETE": "bash_complete", "COMP_WORDS": "vmtool kv-e", "COMP_CWORD": "1"},
        timeout=60,
    )
    assert answer.stdout.split() == ["plain,kv-estimate"]
