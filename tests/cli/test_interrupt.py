"""Two signals at once are one request to stop; a later one means that the user will not wait."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest

from vmtool import __main__
from vmtool.cli.interrupt import watch_signals
from vmtool.cli.output import Output

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")


def send():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_at_once_is_the_same_request():
    times = iter([100.0, 100.02])
    with watch_signals(lambda: next(times)) as interruption:
        send()
        send()
        assert interruption.requested


def test_a_second_signal_later_does_not_wait():
    times = iter([100.0, 101.5])
    with watch_signals(lambda: next(times)), pytest.raises(KeyboardInterrupt):
        send()
        send()


def test_a_block_that_may_wait_for_others_ends_at_the_first_signal():
    with watch_signals() as interruption:
        with pytest.raises(KeyboardInterrupt), interruption.waiting():
            send()
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt), interruption.waiting():
            pytest.fail("the request was made before")


def test_an_interrupted_command_does_not_wait_for_the_reader_of_a_pipe(tmp_path, capsys):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    unwritten = []
    with click.Context(click.Command("x"), obj=unwritten):
        with watch_signals():
            send()
        Output().save(str(path), lambda: "text")
        assert unwritten == [str(path)]
        assert "nothing reads this pipe" in capsys.readouterr().err
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        Output().save(str(path), lambda: "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)


def test_an_interruption_while_a_class_is_made_is_one_also_where_python_hides_it(monkeypatch):
    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def enter():
        type("Made", (), {"attribute": Interrupting()})

    monkeypatch.setitem(sys.modules, "vmtool.cli.app", SimpleNamespace(entry=enter))
    with pytest.raises(SystemExit) as ended:
        __main__.entry()
    assert ended.value.code == 130


def test_nothing_is_loaded_before_interruptions_are_handled():
    """What Python itself has not loaded takes long enough to be interrupted."""
    program = (
        "import sys; before = set(sys.modules); import vmtool.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert ran.stdout.split() == ["__future__", "vmtool", "vmtool.__main__"]


def test_an_interruption_that_python_ignores_comes_again():
    program = """
import sys, time
class Interrupted:
    def __del__(self):
        raise KeyboardInterrupt  # as a signal does in a callback
class Stdin:
    def readline(self):
        Interrupted()
        time.sleep(60)
        return ""
sys.stdin = Stdin()
from vmtool.cli.app import entry
entry()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, "reserve", "1MiB", "--hold"],
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert ran.returncode == 130
    assert b"ignored" not in ran.stderr
