"""The examples of README.md and docs/ are run, and print what is shown.

``--update-golden`` writes what they print now into the pages; read the diff.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vmtool.cli.app import COMMANDS
from vmtool.errors import ExitCode

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


def run(command, cwd):
    """Run one example; its output is stdout, of which *command* may ask for the first lines."""
    command, _, head = command.partition(" | head -")
    words = shlex.split(command)
    assert words[0] == "vmtool"
    how = ["-c", WITH_PAGES_OF_4_KIB] if words[1] in EXACT else ["-m"]
    done = subprocess.run(
        [sys.executable, *how, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return done, lines[: int(head)] if head else lines


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_print_what_it_shows(page, tmp_path, request):
    text = page.read_text(encoding="utf-8")
    for command, output in examples(text):
        if shlex.split(command)[1] not in EXACT and sys.platform != "linux":
            continue  # other systems have other limits
        done, printed = run(command, tmp_path)
        assert done.returncode == ExitCode.DONE, (command, done.stderr)
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


def test_the_shell_examples_of_the_readme_work_in_their_order(tmp_path):
    for block in re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("vmtool "):
                command = line.partition("  #")[0].strip()
                done, _ = run(command, tmp_path)
                gate = "--fail-on" in command or "--assert" in command
                expected = {ExitCode.DONE, ExitCode.CHECK_FAILED} if gate else {ExitCode.DONE}
                assert done.returncode in expected, (command, done.stderr)


def test_the_library_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, cwd=ROOT)


def test_the_table_of_commands_is_complete():
    rows = re.findall(r"^\| `vmtool ([\w-]+)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_exit_codes_are_those_of_the_program():
    rows = re.findall(r"^\| (\d+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for code in rows} == {int(code) for code in ExitCode}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for link, path in re.findall(r"\]\(([^)#:]+)[)#]|`((?:scripts|tests|docs)/[\w./]+)`", text):
        target = page.parent / link if link else ROOT / path
        assert target.exists(), link or path
