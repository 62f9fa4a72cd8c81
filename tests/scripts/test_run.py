"""scripts/run.py and scripts/test.py as programs."""

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
    """A copy of the scripts with an environment in which ``vmtool`` is a stand-in."""
    if sys.platform == "win32":
        pytest.skip("a stand-in for vmtool.exe would have to be compiled")
    root = tmp_path / "a checkout"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SCRIPTS.parent / "pyproject.toml", root)
    (root / ".venv" / "bin").mkdir(parents=True)
    stand_in(root, "python", f"exec '{sys.executable}' \"$@\"")
    program = """if True:
        import dataclasses, json, _environment as e
        stamp = e._wanted_stamp(("check", "test"))
        e.Environment(e.ROOT / ".venv").stamp.write_text(json.dumps(dataclasses.asdict(stamp)))
        """
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root / "scripts")
    return root


def start(checkout, script, *arguments, **options):
    return subprocess.run(
        [sys.executable, str(checkout / "scripts" / script), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def stand_in(checkout, name, body):
    program = checkout / ".venv" / "bin" / name
    program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    program.chmod(0o755)


def test_arguments_streams_and_exit_code_are_vmtools(checkout):
    stand_in(checkout, "vmtool", 'cat; printf "<%s>" "$@"; echo talk >&2; exit 7')
    result = start(checkout, "run.py", "stress", "--size", "a b", "", input="in ")
    assert (result.returncode, result.stdout, result.stderr) == (
        7,
        "in <stress><--size><a b><>",
        "talk\n",
    )


def test_a_signal_that_ends_vmtool_ends_the_script(checkout):
    stand_in(checkout, "vmtool", "kill -TERM $$")
    assert start(checkout, "run.py").returncode == -signal.SIGTERM


def test_pytest_gets_the_arguments_and_its_exit_code_is_the_scripts(checkout):
    (checkout / "test_planted.py").write_text("def test(): assert False", encoding="utf-8")
    result = start(checkout, "test.py", "--no-checks", "-q", "test_planted.py")
    assert result.returncode == 1
    assert "1 failed" in result.stdout
    assert "check failed" not in result.stderr


def test_a_failed_check_fails_a_run_whose_tests_pass(checkout):
    (checkout / "test_planted.py").write_text("def test(): pass", encoding="utf-8")
    (checkout / "scripts" / "check").write_text("raise SystemExit(1)", encoding="utf-8")
    result = start(checkout, "test.py", "-q", "test_planted.py")
    assert result.returncode == 1
    assert "1 passed" in result.stdout
    assert "a check failed" in result.stderr


@pytest.mark.parametrize("script", ["run.py", "test.py"])
def test_an_older_python_is_told_so(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert caught.value.code == 4
    assert "Python 3.11 or newer is needed" in capsys.readouterr().err


def test_a_set_up_without_an_index_says_so_and_leaves_no_stamp(checkout):
    (checkout / ".venv" / "vmtool-setup.json").unlink()
    (checkout / ".venv" / "vmtool-setup.lock").touch()
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(checkout / "empty")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    result = start(checkout, "run.py", env=environment)
    assert result.returncode == 1
    assert "could not install vmtool" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (checkout / ".venv" / "vmtool-setup.json").exists()
