"""The summary that tests/conftest.py adds: what was not run here, by what it needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLANTED = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(2))
def test_on_a_device(number):
    pytest.skip("no driver")

@pytest.mark.wine
@pytest.mark.skip(reason="not asked for")
def test_on_windows(): pass

@pytest.mark.gpu
def test_that_runs(): pass

@pytest.mark.gpu
@pytest.mark.xfail(reason="planted")
def test_that_fails(): raise ValueError

def test_without_a_marker():
    pytest.skip("no reason to count it")
"""


def test_tests_not_run_are_counted_by_marker_and_reason(tmp_path):
    tests = Path(__file__).resolve().parents[1]
    shutil.copy(tests / "conftest.py", tmp_path)
    (tmp_path / "test_planted.py").write_text(PLANTED, encoding="utf-8")
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.skip('as a whole', allow_module_level=True)\n", encoding="utf-8"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n gpu\n wine\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        check=False,
        cwd=tmp_path,
        # For the plugins that the conftest names.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line for line in result.stdout.splitlines() if line.startswith("not run here")] == [
        "not run here: 2 gpu tests (no driver)",
        "not run here: 1 wine test (not asked for)",
    ]
    assert "1 passed, 5 skipped, 1 xfailed" in result.stdout
