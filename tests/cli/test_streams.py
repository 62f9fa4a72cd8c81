"""Streams that are closed, full, or read by someone who has enough: the exit code still counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "vmtool"]
CSV = "kv-estimate gpt2 --budget 1GiB --sweep context=1..8 --csv -"
COMMANDS = ["granularity", "granularity --json", "reserve 1GiB", "grow --to 1MiB", "doctor", CSV]
REFUSED = "grow --to 100TiB"  # exit code 5 on every machine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


def shell(command, redirections):
    """Run ``vmtool COMMAND REDIRECTIONS`` in a shell; the code is that of vmtool."""
    script = f'"$@" {redirections}'
    ran = subprocess.run(
        ["bash", "-c", script, "bash", *PROGRAM, *command.split()],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    return ran


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_without_a_stdout_is_an_error(command):
    ran = shell(command, ">&-")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "cannot write stdout: it is closed" in ran.stderr


def test_a_closed_stdout_does_not_matter_to_a_file(tmp_path):
    path = tmp_path / "result.json"
    assert shell(f"reserve 1MiB --json -o {path}", ">&-").returncode == 0
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == "vmtool.reserve"


@pytest.mark.parametrize(
    ("command", "code"),
    [*((command, 2) for command in COMMANDS), ("--help", 1), ("--version", 1), ("grow -h", 1)],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_is_an_error(command, code):
    ran = shell(command, ">/dev/full")
    assert ran.returncode == code
    assert "No space left on device" in ran.stderr


@pytest.mark.parametrize("command", [*COMMANDS, "--help", "--version", "grow --help"])
def test_a_reader_that_has_enough_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*PROGRAM, *command.split()],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", "2> >(true)"])
@pytest.mark.parametrize(("command", "code"), [(REFUSED, 5), ("reserve nonsense", 2)])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(redirections, command, code):
    if "full" in redirections and not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    assert shell(command, redirections).returncode == code


def test_a_name_that_is_no_text_is_escaped_in_json(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    try:
        Path(os.fsdecode(path)).touch()
    except OSError as error:
        pytest.skip(f"this file system wants text: {error}")
    ran = subprocess.run(
        [*PROGRAM, "reserve", "1MiB", "--json", "-o", path],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    document = json.loads(Path(os.fsdecode(path)).read_text(encoding="utf-8"))
    assert os.fsencode(document["command"][-1]) == path
