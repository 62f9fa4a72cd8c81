"""tests/windows/rig without Wine: what it makes again, and what it refuses."""

import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def rig(load, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda program: program)
    return load("tests/windows/rig", "rig").Rig(tmp_path)


@pytest.fixture
def windows_python(load, monkeypatch):
    module = load("tests/windows/rig", "interpreter")
    monkeypatch.setattr(module.sys, "version_info", (3, 11, 0, "final", 0))
    return module


def test_a_part_is_made_once_for_what_it_is_made_from(rig):
    made = []

    def make(directory):
        made.append(directory)
        directory.mkdir()

    for key in ("one", "one", "two"):
        rig.make_part("part", key, make)
    assert made == [rig.directory / "part"] * 2


def test_a_half_made_part_is_made_again_from_nothing(rig):
    def fail(directory):
        directory.mkdir()
        (directory / "half").touch()
        raise KeyboardInterrupt

    rig.make_part("part", "key", lambda directory: directory.mkdir())
    with pytest.raises(KeyboardInterrupt):
        rig.make_part("part", "another", fail)
    rig.make_part("part", "key", lambda directory: directory.mkdir())
    assert [*(rig.directory / "part").iterdir()] == []


@pytest.mark.parametrize("already_there", [True, False])
def test_a_wheel_with_another_digest_is_refused_and_removed(
    windows_python, monkeypatch, tmp_path, capsys, already_there
):
    wheel = tmp_path / "panda3d-1.10.16-cp311-cp311-win_amd64.whl"

    def download(_purpose, _command, **_options):
        wheel.write_bytes(b"another")

    if already_there:
        download("", [])
    monkeypatch.setattr(windows_python.tools, "run", download)
    with pytest.raises(SystemExit):
        windows_python.fetch_wheel(tmp_path)
    assert "not the expected file" in capsys.readouterr().err
    assert not wheel.exists()


def test_a_python_without_a_windows_build_is_refused(windows_python, monkeypatch):
    monkeypatch.setattr(windows_python.sys, "version_info", (3, 99, 0, "final", 0))
    with pytest.raises(SystemExit) as caught:
        windows_python.minor_version()
    assert caught.value.code == 4


def test_numpy_and_what_needs_it_stay_out(windows_python):
    names = [line.partition(">")[0] for line in windows_python.requirements()]
    assert {"click", "pytest", "hypothesis", "colorama", "cuda-bindings"} <= {*names}
    assert not {"numpy", "gguf", "onnx", "cuda-python"} & {*names}


def test_wines_environment_is_free_of_this_pythons(load, monkeypatch, tmp_path):
    for name in ("DISPLAY", "PYTHONPATH", "PYTEST_ADDOPTS", "VMTOOL_WINE", "WINEPATH"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "1")
    variables = load("tests/windows/rig", "wine").variables(tmp_path / "wine64", tmp_path)
    assert variables["KEPT"] == "1"
    assert variables["WINEPREFIX"] == str(tmp_path)
    assert not {"DISPLAY", "PYTHONPATH", "PYTEST_ADDOPTS", "VMTOOL_WINE", "WINEPATH"} & {*variables}


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
def test_a_refused_limit_of_open_files_is_no_error(load, monkeypatch):
    """Only root may raise the hard limit, to which Wine raises its own."""
    import resource

    limits = {}

    def set_limit(which, pair):
        if which == resource.RLIMIT_NOFILE:
            assert pair[0] == pair[1] >= 1 << 16
            raise ValueError("not allowed to raise maximum limit")
        limits[which] = pair

    monkeypatch.setattr(resource, "setrlimit", set_limit)
    load("tests/windows/rig", "rig").set_limits()
    assert limits == {resource.RLIMIT_DATA: (4 << 30, 4 << 30)}


@pytest.mark.parametrize(
    ("arguments", "code", "stdout", "stderr"),
    [
        (["packages"], 0, "gcc-mingw-w64-x86-64-win32 patchelf\n", ""),
        (["mend"], 2, "", "rig: error: no command 'mend'\n  hint: try --help\n"),
    ],
)
def test_the_command_line(pytestconfig, arguments, code, stdout, stderr):
    program = pytestconfig.rootpath / "tests" / "windows" / "rig" / "rig.py"
    result = subprocess.run(
        [sys.executable, str(program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (code, stdout, stderr)


def test_missing_programs_are_named_by_their_packages(rig, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shutil, "which", lambda program: program if program == "patchelf" else None)
    with pytest.raises(SystemExit) as caught:
        rig.make_part("part", "key", lambda directory: directory.mkdir())
    assert caught.value.code == 4
    assert "sudo apt install gcc-mingw-w64-x86-64-win32\n" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
