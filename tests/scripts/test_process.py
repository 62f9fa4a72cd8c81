"""How the scripts run other programs: failures, time limits, signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def process(load_script):
    return load_script("_process")


@pytest.fixture
def quietly(process):
    """Run a Python program quietly; return the exit code that a script would have."""

    def run(program, **options):
        command = [sys.executable, "-c", program]
        return process.run_guarded(
            lambda: bool(process.run_quietly("work", command, hint="try again", **options)) - 1
        )

    return run


def test_a_program_that_succeeds_is_not_heard(quietly, capfd):
    assert quietly("print('word')") == 0
    assert capfd.readouterr() == ("", "")


def test_a_program_that_fails_is_heard_on_stderr(quietly, capfd):
    assert quietly("import sys; print('out'); sys.exit('err')") == 1
    out, err = capfd.readouterr()
    assert out == ""
    words, _, verdict = err.partition("vmtool: ")
    assert sorted(words.splitlines()) == ["err", "out"]
    assert verdict.startswith("error: could not work: ")
    assert verdict.endswith("ended with exit code 1; its words are above\n  hint: try again\n")


def test_a_program_that_takes_too_long_is_ended(quietly, capfd):
    assert quietly("import time; time.sleep(600)", timeout=0.5) == 1
    assert "was ended after" in capfd.readouterr().err


@pytest.fixture
def parent():
    """A process in its own session that waits for a child through run_child."""
    if sys.platform == "win32":
        pytest.skip("no signal can be sent to one process there")
    child = """if True:
        import signal
        try:
            print("ready", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            raise SystemExit(9)"""
    parent = """if True:
        import sys, _process
        sys.exit(_process.run_child([sys.executable, "-c", sys.argv[1]]))"""
    with subprocess.Popen(
        [sys.executable, "-c", parent, child],
        cwd=SCRIPTS,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process


def test_ctrl_c_goes_to_both_and_the_parent_waits_for_the_childs_verdict(parent):
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(60) == 9


def test_a_signal_to_the_parent_alone_is_passed_on(parent):
    parent.terminate()
    assert parent.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("stream", ["closed", "full"])
def test_what_stderr_does_not_take_goes_nowhere_else(process, capfd, monkeypatch, stream):
    class Full:
        def write(self, _text):
            raise OSError(28, "No space left on device")

        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", None if stream == "closed" else Full())
    process.say("half a word")
    with pytest.raises(process.SetupError):
        process.run_quietly("work", [sys.executable, "-c", "exit('err')"], hint="try again")
    assert capfd.readouterr() == ("", "")
