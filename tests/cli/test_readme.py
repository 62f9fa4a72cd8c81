"""The examples of README.md and docs/ are run, and print what is shown.

``--update-golden`` writes what they print now into the pages; read the diff.
"""

import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from vmtool.cli.app import COMMANDS
from vmtool.errors import ExitCode
from vmtool.kv.sources.builtin import config_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
# What these print depends neither on the machine nor on the moment, but for the page size.
EXACT = {"kv-estimate", "kv-replay", "schema", "completion"}
WITH_PAGES_OF_4_KIB = (
    "import mmap, runpy, sys; mmap.PAGESIZE = 4096; sys.argv[:1] = [];"
    "runpy.run_module('vmtool', run_name='__main__', alter_sys=True)"
)
LEFT_OUT = "..."  # a line of an example that stands for lines that are not shown


def examples(text):
    """Return (command, output) of each ``$ vmtool`` in the ``console`` blocks of a page."""
    parts = [
        part.partition("\n")
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    return [(command, output.rstrip("\n")) for command, _, output in parts]


def run(command, cwd, vmtool=None):
    """Run one example; its output is stdout, of which *command* may ask for the first lines.

    With ``2>&1`` it is stderr too, and the command may be refused. *vmtool* runs here what needs no
    process of its own.
    """
    command, _, head = command.partition(" | head -")
    command, errors, _ = command.partition(" 2>&1")
    command, _, given = command.partition(" < ")
    words = shlex.split(command)
    assert words[0] == "vmtool"
    if vmtool and words[1] == "kv-estimate" and not given:
        done = vmtool(*words[1:])
        return done, _lines(done, head=head, errors=errors)
    how = ["-c", WITH_PAGES_OF_4_KIB] if words[1] in EXACT else ["-m"]
    done = subprocess.run(
        [sys.executable, *how, *words],
        cwd=cwd,
        input=(cwd / given).read_text() if given else None,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    return done, _lines(done, head=head, errors=errors)


def code_of(done):
    return done.code if hasattr(done, "code") else done.returncode


def _lines(done, *, head, errors):
    text = done.stderr + done.stdout if errors else done.stdout
    lines = [line.rstrip() for line in text.splitlines()]
    return lines[: int(head)] if head else lines


def labels(lines):
    """Return the words that lines begin with; figures change from run to run."""
    found = (re.match(r"[a-zA-Z][a-zA-Z ,()-]*?(?=  |:|$)", line) for line in lines)
    return {match.group().strip() for match in found if match and match.group() != "vmtool"}


def shown(printed, output):
    """Whether *printed* is *output*, in which a line of ``...`` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == LEFT_OUT else re.escape(f"{line}\n") for line in output
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


@pytest.fixture
def files(tmp_path):
    """A folder with the files that examples name: a checkpoint, and a GGUF file without tensors."""
    config = config_of("qwen3-8b")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 16_381_470_720}, "weight_map": {}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))

    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    numbers = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
    }
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 1)
    data += string("general.architecture") + struct.pack("<I", 8) + string("qwen3")
    for key, value in numbers.items():
        data += string(f"qwen3.{key}") + struct.pack("<II", 4, value)
    (tmp_path / "model.gguf").write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_print_what_it_shows(page, files, request, vmtool, monkeypatch):
    monkeypatch.setattr("mmap.PAGESIZE", 4096)
    monkeypatch.chdir(files)
    text = page.read_text(encoding="utf-8")
    for command, output in examples(text):
        if shlex.split(command)[1] not in EXACT and sys.platform != "linux":
            continue  # other systems have other limits
        done, printed = run(command, files, vmtool)
        refused = {ExitCode.USAGE, ExitCode.REFUSED} if " 2>&1" in command else set()
        assert code_of(done) in {ExitCode.DONE, *refused}, (command, done.stderr)
        if request.config.getoption("--update-golden"):
            if LEFT_OUT not in output.splitlines():
                before = f"$ {command}\n" + (f"{output}\n" if output else "")
                after = "".join(f"{line}\n" for line in [f"$ {command}", *printed])
                text = text.replace(before, after, 1)
                page.write_text(text, encoding="utf-8", newline="\n")
        elif shlex.split(command)[1] in EXACT:
            assert shown(printed, output.splitlines()), (command, "\n".join(printed))
        else:
            assert labels(output.splitlines()) - labels(printed) == set(), command


def test_the_shell_examples_and_the_table_of_commands_of_the_readme_work_in_their_order(tmp_path):
    text = README.read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    for line in lines + re.findall(r"^\| `(vmtool [^`]*)` \|", text, re.MULTILINE):
        # The tests of check run it once for all, as it takes 12 s.
        if not line.startswith("vmtool ") or line.startswith("vmtool check"):
            continue
        command = line.partition("  #")[0].strip()
        if command.startswith("vmtool stress "):
            command += " --duration 500ms"  # of 3 s
        if command.startswith("vmtool matrix "):
            command += " --duration 500ms --method fixed"  # of 20 s
        done, _ = run(command, tmp_path)
        expected = {ExitCode.DONE}
        if "--fail-on" in command:
            expected.add(ExitCode.CHECK_FAILED)
        if "--backing cuda" in command:
            expected.add(ExitCode.UNAVAILABLE)
        assert done.returncode in expected, (command, done.stderr)


def test_the_library_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, cwd=ROOT)


def test_the_table_of_commands_is_complete():
    rows = re.findall(r"^\| `vmtool (\w[\w-]*)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_exit_codes_match_the_programs():
    rows = re.findall(r"^\| (\d+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for code in rows} == {int(code) for code in ExitCode}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for link, path in re.findall(r"\]\(([^)#:]+)[)#]|`((?:scripts|tests|docs)/[\w./]+)`", text):
        target = page.parent / link if link else ROOT / path
        assert target.exists(), link or path
