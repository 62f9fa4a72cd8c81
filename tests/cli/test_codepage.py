"""Results on streams that cannot show every character."""

import os
import subprocess
import sys

import pytest

from vmtool.cli.streams import result_encoding
from vmtool.errors import ExitCode


@pytest.fixture
def ask(monkeypatch):
    """Return a function that asks for an encoding and returns what results then look like."""

    def encode(asked, text):
        monkeypatch.setenv("PYTHONIOENCODING", asked)
        name, errors = result_encoding()
        return text.encode(name, errors)

    return encode


def test_results_are_utf_8_by_default(monkeypatch):
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    assert result_encoding()[0] == "utf-8"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("cp437", "182-262 µs █▌-.·"),  # has whole and half blocks
        ("cp1252", "182\N{EN DASH}262 µs #=-.·"),  # has none
        ("ascii", "182-262 us #=-.."),
    ],
)
def test_what_a_code_page_lacks_becomes_the_nearest_ascii(ask, encoding, shown):
    assert ask(encoding, "182\N{EN DASH}262 µs █▌▍▏·").decode(encoding) == shown


def test_characters_without_a_likeness_become_question_marks(ask):
    assert ask("ascii", "Modell 火") == b"Modell ?"


def test_an_encoding_that_does_not_exist_is_ignored(ask):
    assert ask("klingon", "µ") == "µ".encode()


COMMANDS = (
    ("grow", "--to", "4MiB", "--against", "nothing"),
    ("granularity", "--backing", "host"),
    ("reserve", "1GiB"),
    ("kv-estimate", "llama-3.1-8b", "--budget", "16GiB"),
)


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp1252", "cp850:strict"])
def test_no_command_crashes_on_a_code_page(encoding):
    program = f"from vmtool.cli.app import run; print([run(list(a)) for a in {COMMANDS}])"
    child = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=60,
    )
    shown = child.stdout.decode(encoding.partition(":")[0])
    assert child.returncode == 0, child.stderr
    assert shown.splitlines()[-1] == str([ExitCode.DONE] * len(COMMANDS))
