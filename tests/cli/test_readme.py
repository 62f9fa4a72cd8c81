"""The README's examples are run, and print what it shows."""

from __future__ import annotations

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
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Nothing in the output of these depends on the machine or the moment, but for the page size.
EXACT = {"kv-estimate", "kv-replay"}
WITH_PAGES_OF_4_KIB = (
    "import mmap, runpy, sys; mmap.PAGESIZE = 4096; sys.argv[:1] = [];"
    "runpy.run_module('vmtool', run_name='__main__', alter_sys=True)"
)


def sessions():
    """Yield (command, output) of every ``console`` block."""
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output.rstrip("\n")


def shell_commands():
    """Yield the commands of every ``sh`` block that start vmtool."""
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("vmtool "):
                yield line.partition("  #")[0].strip()


def run(command, cwd):
    words = shlex.split(command)
    assert words[0] == "vmtool"
    how = ["-c", WITH_PAGES_OF_4_KIB] if words[1] in EXACT else ["-m"]
    return subprocess.run(
        [sys.executable, *how, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def labels(output):
    """The words that a line of a result begins with; figures change from run to run."""
    found = []
    for line in output.splitlines():
        label = re.match(r"[a-zA-Z][a-zA-Z ,()-]*?(?=  |:|$)", line)
        if label and not line.startswith(("  ", "vmtool:")):  # warnings come and go
            found.append(label.group().strip())
    return found


@pytest.mark.parametrize(("command", "output"), list(sessions()), ids=[c for c, _ in sessions()])
def test_an_example_prints_what_the_readme_shows(command, output, tmp_path):
    done = run(command, tmp_path)
    assert done.returncode == ExitCode.DONE, done.stderr
    if shlex.split(command)[1] in EXACT:
        assert [line.rstrip() for line in done.stdout.splitlines()] == output.splitlines()
    elif sys.platform == "linux":  # on other systems there are other limits to name
        assert set(labels(output)) - set(labels(done.stdout)) == set()


def test_the_shell_examples_work_in_their_order(tmp_path):
    for command in shell_commands():
        if command.startswith("vmtool stress"):
            command += " --duration 1s"  # noqa: PLW2901 - the same example, shorter
        done = run(command.replace("commit.p99<5ms", "commit.p99<60s"), tmp_path)
        expected = (
            {ExitCode.DONE, ExitCode.CHECK_FAILED} if "--fail-on" in command else {ExitCode.DONE}
        )
        assert done.returncode in expected, (command, done.stderr)


def test_the_library_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, cwd=ROOT)


def test_the_readme_has_an_example_of_every_command():
    shown = {shlex.split(command)[1] for command, _ in sessions()}
    shown |= {shlex.split(command)[1] for command in shell_commands()}
    assert set(COMMANDS) - shown <= {"doctor"}
    assert "vmtool doctor" in README


def test_the_exit_codes_are_those_of_the_program():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert listed == {int(code) for code in ExitCode}


def test_the_files_it_names_exist():
    for name in re.findall(r"\]\(([^)#:]+)\)|`((?:scripts|tests|docs)/[\w./]+)`", README):
        path = name[0] or name[1]
        assert (ROOT / path).exists(), path
