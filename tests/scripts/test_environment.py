"""The private environment of scripts/run.py and scripts/test.py, with a fake pip."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def setup(load_script, monkeypatch, tmp_path):
    """The module under test, in a checkout of its own."""
    _environment = load_script("_environment")
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "pyproject.toml").write_text(
        '[dependency-groups]\ntest = ["pytest"]\ncheck = ["ruff==1"]\n', encoding="utf-8"
    )
    monkeypatch.setattr(_environment, "ROOT", root)
    monkeypatch.delenv("VMTOOL_VENV", raising=False)
    return _environment


@pytest.fixture
def guarded(load_script):
    """Run something as the scripts do: return the exit code, with the error on stderr."""
    return load_script("_process").run_guarded


@pytest.fixture
def installers(setup, monkeypatch):
    """The installers' command lines, of which none is run."""
    commands = []

    def record(_purpose, command, **_options):
        commands.append(command)
        python = setup.Environment(setup.ROOT / ".venv").python
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    monkeypatch.setattr(setup, "run_quietly", record)
    return commands


def test_the_first_run_makes_and_installs(setup, installers):
    environment = setup.ensure(("test",))
    make, install = installers
    assert make[1:] == ["-I", "-m", "venv", str(environment.directory)]
    assert install[0] == str(environment.python)
    assert install[-3:] == ["--editable", str(setup.ROOT), "pytest"]


def test_a_second_run_installs_nothing(setup, installers):
    setup.ensure(("test",))
    installers.clear()
    setup.ensure(("test",))
    setup.ensure()
    assert installers == []


def test_a_further_group_is_added_in_place(setup, installers):
    environment = setup.ensure(("test",))
    kept = environment.directory / "kept"
    kept.touch()
    installers.clear()
    setup.ensure(("check",))
    (install,) = installers
    assert install[-2:] == ["ruff==1", "pytest"]
    assert kept.exists()


def test_a_changed_project_is_installed_again(setup, installers):
    setup.ensure()
    installers.clear()
    with (setup.ROOT / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    setup.ensure()
    assert ["pip" in command for command in installers] == [True]


@pytest.mark.parametrize("field", ["python", "root"])
def test_another_interpreter_or_place_makes_it_again(setup, installers, field):
    environment = setup.ensure()
    stamp = json.loads(environment.stamp.read_text(encoding="utf-8"))
    environment.stamp.write_text(json.dumps({**stamp, field: "another"}), encoding="utf-8")
    installers.clear()
    setup.ensure()
    assert "venv" in installers[0]


@pytest.mark.parametrize("stamp", ["", "{", "{}", "[]", '{"groups": []}', '{"groups": 1}'])
def test_a_damaged_stamp_makes_it_again(setup, installers, stamp):
    environment = setup.ensure()
    environment.stamp.write_text(stamp, encoding="utf-8")
    installers.clear()
    setup.ensure()
    assert "venv" in installers[0]


def test_a_lost_interpreter_makes_it_again(setup, installers):
    environment = setup.ensure()
    environment.python.unlink()
    try:
        environment.python.symlink_to(setup.ROOT / "gone")
    except OSError as exc:
        pytest.skip(f"no symbolic links here: {exc}")
    installers.clear()
    setup.ensure()
    assert "venv" in installers[0]


def test_an_interrupted_set_up_is_made_again_from_nothing(setup, guarded, installers, monkeypatch):
    def interrupt(_purpose, command, **_options):
        installers.append(command)
        if "pip" in command:
            raise KeyboardInterrupt

    fake = setup.run_quietly
    monkeypatch.setattr(setup, "run_quietly", interrupt)
    assert guarded(lambda: bool(setup.ensure())) == 130
    half_made = setup.ROOT / ".venv" / "half-made"
    half_made.mkdir()
    monkeypatch.setattr(setup, "run_quietly", fake)
    setup.ensure()
    assert not half_made.exists()


def test_a_run_waits_for_another_and_then_finds_the_work_done(
    setup, installers, monkeypatch, capsys
):
    environment = setup.ensure()
    stamp = environment.stamp.read_bytes()
    environment.stamp.unlink()  # another run is at work
    program = """if True:
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        import _environment
        with _environment.locked(Path(sys.argv[2])):
            print("held", flush=True)
            sys.stdin.readline()
        """
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(SCRIPTS), str(environment.lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout.readline().strip() == b"held"

        def finish_the_other(_seconds):
            environment.stamp.write_bytes(stamp)
            other.communicate(b"\n", timeout=60)

        monkeypatch.setattr(setup, "time", SimpleNamespace(sleep=finish_the_other))
        installers.clear()
        setup.ensure()
    assert installers == []
    assert "waiting for another run" in capsys.readouterr().err


def test_somebody_elses_directory_is_not_emptied(setup, installers):
    theirs = setup.ROOT / ".venv" / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    with pytest.raises(setup.SetupError, match="not made by this script") as caught:
        setup.ensure()
    assert caught.value.code == 2
    assert [*theirs.parent.iterdir()] == [theirs]


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_a_missing_module_is_named_with_its_package(
    setup, guarded, installers, monkeypatch, capsys, missing
):
    find_spec = setup.importlib.util.find_spec
    monkeypatch.setattr(
        setup.importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    assert guarded(lambda: bool(setup.ensure())) == 4
    error = capsys.readouterr().err
    assert f"comes without {missing}\n" in error
    assert "apt install python3-venv" in error
    assert installers == []


def test_a_place_that_cannot_be_written_says_what_to_set(
    setup, guarded, installers, monkeypatch, capsys
):
    monkeypatch.setenv("VMTOOL_VENV", str(setup.ROOT / "pyproject.toml" / "venv"))
    assert guarded(lambda: bool(setup.ensure())) == 1
    assert "set VMTOOL_VENV=DIR" in capsys.readouterr().err
