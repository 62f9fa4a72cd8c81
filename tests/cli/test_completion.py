"""Completion in the shell: commands, names of models and methods, files where a file goes."""

import os
import subprocess
import sys

import pytest

_PROGRAM = "from vmtool.cli.app import run; run([])"


def _complete(*words):
    environment = {
        "_VMTOOL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("vmtool", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | environment,
        timeout=60,
    )
    return ran.stdout.split()


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
    ],
)
def test_names_and_files_are_offered(words, wanted):
    assert wanted in _complete(*words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(vmtool, shell):
    ran = vmtool("completion", shell)

    assert ran.code == 0
    assert "_VMTOOL_COMPLETE" in ran.stdout
