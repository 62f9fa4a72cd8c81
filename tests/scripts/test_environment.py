"""scripts/run.py and scripts/test.py, with installers that only record their calls."""

import errno
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the scripts."""
    root = tmp_path / "a checkout"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text(
        '[dependency-groups]\ntest = ["pytest"]\ncheck = ["ruff==1"]\n', encoding="utf-8"
    )
    return root


@pytest.fixture
def setup(load, checkout, monkeypatch):
    """The module under test; ``setup.commands`` are the installers that it would have run."""
    module = load("scripts", "_environment")
    monkeypatch.setattr(module, "ROOT", checkout)
    monkeypatch.delenv("VMTOOL_VENV", raising=False)
    module.commands = []
    module.failing = None

    def call(command, **_options):
        module.commands.append(command)
        if "venv" in command:
            python = Path(command[-1]) / ("Scripts/python.exe" if WINDOWS else "bin/python")
            shutil.rmtree(command[-1], ignore_errors=True)
            python.parent.mkdir(parents=True)
            python.touch()
            (Path(command[-1]) / "pyvenv.cfg").touch()
        return int(module.failing is not None and module.failing in command)

    monkeypatch.setattr(module.subprocess, "call", call)
    return module


WINDOWS = sys.platform == "win32"


def test_an_environment_that_cannot_be_read_for_lack_of_memory_is_not_made_again(
    setup, monkeypatch
):
    """Under a small `ulimit -v` a good one would be cleared, and none could be installed."""
    setup.ensure()
    setup.commands.clear()

    def refuse(*_arguments, **_options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        setup.ensure()
    assert not setup.commands


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are set by a shell on Linux")
@pytest.mark.parametrize("limit", ["-v 13200", "-v 13800", "-d 6000", "-d 8000"])
def test_too_little_memory_to_load_the_script_is_one_error(checkout, limit):
    ran = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", sys.executable, "scripts/run.py"],
        cwd=checkout,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "VMTOOL_VENV": str(checkout / "missing")},
    )
    if "Traceback" in ran.stderr and "scripts/" not in ran.stderr:
        pytest.skip("Python itself does not start under this limit")
    assert "Traceback" not in ran.stderr
    assert ran.returncode


def test_the_first_run_makes_and_installs(setup):
    python = setup.ensure("test")
    make, install = setup.commands
    assert make[1:4] == ["-m", "venv", "--clear"]
    assert install[0] == str(python)
    assert install[-3:] == ["--editable", str(setup.ROOT), "pytest"]


def test_a_second_run_installs_nothing(setup):
    setup.ensure("test")
    setup.commands.clear()
    setup.ensure("test")
    setup.ensure()
    assert setup.commands == []


def test_a_further_group_is_added_in_place(setup):
    setup.ensure("test")
    setup.commands.clear()
    setup.ensure("check")
    (install,) = setup.commands
    assert install[-2:] == ["ruff==1", "pytest"]


def test_a_changed_project_is_installed_again(setup):
    setup.ensure()
    setup.commands.clear()
    with (setup.ROOT / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    setup.ensure()
    assert ["pip" in command for command in setup.commands] == [True]


def test_another_python_makes_it_again(setup):
    stamp = setup.ensure().parents[1] / "vmtool-setup.json"
    stamp.write_text(
        json.dumps({**json.loads(stamp.read_text(encoding="utf-8")), "origin": []}),
        encoding="utf-8",
    )
    setup.commands.clear()
    setup.ensure()
    assert "venv" in setup.commands[0]


@pytest.mark.parametrize(("step", "words"), [("venv", "python3-venv"), ("pip", "package index")])
def test_a_failed_installer_is_an_error_with_a_hint_and_the_next_run_starts_afresh(
    setup, capsys, step, words
):
    setup.failing = step
    with pytest.raises(SystemExit) as caught:
        setup.ensure()
    assert caught.value.code == 1
    assert words in capsys.readouterr().err
    setup.failing = None
    setup.commands.clear()
    setup.ensure()
    assert "venv" in setup.commands[0]


def test_a_directory_that_is_no_environment_is_not_emptied(setup):
    other = setup.ROOT / ".venv" / "other"
    other.parent.mkdir()
    other.touch()
    with pytest.raises(SystemExit) as caught:
        setup.ensure()
    assert caught.value.code == 2
    assert [*other.parent.iterdir()] == [other]


@pytest.fixture
def start(checkout):
    """Run a script whose environment has a stand-in for Python that starts with *body*."""
    if WINDOWS:
        pytest.skip("a stand-in for python.exe would have to be compiled")
    (checkout / "scripts" / "_environment.py").write_text(
        "from pathlib import Path\nROOT = Path(__file__).parents[1]\n"
        "def ensure(*_groups): return ROOT / 'python'\n",
        encoding="utf-8",
    )

    def run(body, script, *arguments, **options):
        python = checkout / "python"
        python.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        python.chmod(0o755)
        return subprocess.run(
            [sys.executable, str(checkout / "scripts" / script), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )

    return run


def test_arguments_streams_and_exit_code_are_vmtools(start):
    body = 'cat; printf "<%s>" "$@"; echo talk >&2; exit 7'
    result = start(body, "run.py", "stress", "--size", "a b", "", input="in ")
    assert result.returncode == 7
    assert result.stdout == "in <-P><-m><vmtool><stress><--size><a b><>"
    assert result.stderr == "talk\n"


def test_a_signal_that_ends_vmtool_ends_the_script(start):
    assert start("kill -TERM $$", "run.py").returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "body", "code"),
    [
        ((), "exit 0", 0),
        ((), 'test "$1" = -m', 1),  # the check fails
        ((), 'test "$1" != -m || exit 5', 5),  # pytest fails
        (("--no-checks", "-q"), 'test "$*" = "-m pytest -q"', 0),
    ],
)
def test_a_failed_check_or_test_fails_the_run(start, arguments, body, code):
    assert start(body, "test.py", *arguments).returncode == code


@pytest.mark.parametrize("script", ["run.py", "test.py"])
def test_an_older_python_is_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert caught.value.code == 4
    assert "needs Python 3.11 or newer" in capsys.readouterr().err
