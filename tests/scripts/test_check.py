"""scripts/check finds violations that are put into a copy of the project."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if importlib.util.find_spec("importlinter") is None or importlib.util.find_spec("mypy") is None:
    pytest.skip("the dependency group 'check' is not installed", allow_module_level=True)


@pytest.fixture
def project(tmp_path):
    """A copy of the package and of what checks it."""
    for name in ("vmtool", "scripts", "tests/windows/rig"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check(project, *steps):
    return subprocess.run(
        [sys.executable, str(project / "scripts" / "check"), *steps],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def plant(project, module, code):
    path = project.joinpath(*module.split(".")).with_suffix(".py")
    package = project
    for name in path.parent.relative_to(project).parts:
        package /= name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    path.write_text(code, encoding="utf-8")


def test_the_import_rules_hold(project):
    result = check(project, "imports")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "code", "contract"),
    [
        ("vmtool.kv.planted", "import vmtool.cli", "Imports point down"),
        ("vmtool.stress.planted", "import vmtool.report.planted", "Imports point down"),
        ("vmtool.planted", "", "Imports point down"),
        ("vmtool.kv.planted", "import vmtool.memory", "kv knows no memory"),
        ("vmtool.machine", "import ctypes.util", "Only memory calls the operating system"),
        ("vmtool.memory.planted", "import cuda.bindings.driver", "Only memory.cuda.driver"),
        ("vmtool.memory.planted", "import click", "Only cli and report"),
        ("vmtool.stress.planted", "from rich import table", "Only cli and report"),
        ("vmtool.memory.planted", "import psutil", "memory does without psutil"),
    ],
)
def test_a_planted_import_breaks_its_contract(project, module, code, contract):
    plant(project, "vmtool.report.planted", "")  # a package for the planted imports to name
    plant(project, module, code)
    result = check(project, "imports")
    assert result.returncode == 1
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert [line for line in broken if line.startswith(contract)], result.stdout


def test_imports_that_are_allowed_keep_the_contracts(project):
    plant(project, "vmtool.memory.cuda.driver", "import ctypes\nimport cuda.bindings.driver\n")
    plant(
        project, "vmtool.cli.app.planted", "import click\nimport rich.table\nimport vmtool.memory\n"
    )
    plant(project, "vmtool.report.planted", "import rich\n")
    result = check(project, "imports")
    assert result.returncode == 0, result.stdout


def test_every_step_runs_after_one_has_failed(project):
    (project / "scripts" / "planted.py").write_text("import os;x:int=''\n", encoding="utf-8")
    if (ROOT / ".cache" / "mypy-linux").exists():  # only for speed
        shutil.copytree(ROOT / ".cache" / "mypy-linux", project / ".cache" / "mypy-linux")
    result = check(project, "types-linux", "lint", "format", "imports")
    assert result.returncode == 1
    verdicts = dict(
        reversed(line.split()[:2]) for line in result.stdout.splitlines() if line[-2:] == " s"
    )
    assert verdicts == {
        "types-linux": "FAILED",
        "lint": "FAILED",
        "format": "FAILED",
        "imports": "ok",
    }


def test_an_unknown_step_is_refused(project):
    result = check(project, "type")
    assert result.returncode == 2
    assert "unknown step type; the steps are types-linux, " in result.stderr


def test_without_the_tools_it_names_the_script_that_installs_them(project):
    command = [
        sys.executable,
        "-S",
        str(project / "scripts" / "check"),
        "format",
    ]  # -S: no packages
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "mypy" in line
    assert line.endswith("run scripts/test.py first")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no EPIPE")
def test_a_reader_that_has_seen_enough_ends_it_quietly(project):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(project / "scripts" / "check"), "format", "imports"]
    result = subprocess.run(
        command, check=False, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300
    )
    os.close(write)
    assert result.stderr == ""
