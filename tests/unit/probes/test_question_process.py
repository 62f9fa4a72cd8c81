"""Child processes that only their parent ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys

import pytest

from vmtool.errors import VmtoolError
from vmtool.memory.backing_by_name import methods_of
from vmtool.memory.children import start_child
from vmtool.memory.counter_types import MemoryLimits
from vmtool.memory.threads import start_thread
from vmtool.probes.question_process import ask
from vmtool.units import MIB


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_stops_vmtool_stops_no_child_even_before_its_first_line(name):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with start_child("vmtool.probes.question_process", "commit", "host", "fixed", "65536") as child:
        child.send_signal(getattr(signal, name))  # it is still loading Python
        stdout, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (0, "")
    assert json.loads(stdout)["works"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_child_writes_what_is_read_whatever_encoding_the_user_set(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "utf-16")
    assert ask("commit", "host", methods_of("host")[0], 65536).works


def _refused(monkeypatch, error):
    def refuse(*_arguments, **_options):
        raise error

    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(VmtoolError, match="cannot be started") as caught:
        start_child("vmtool.probes.question_process")
    return caught.value


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_start_that_meets_a_limit_names_its_cause_and_a_remedy(monkeypatch, number):
    refused = _refused(monkeypatch, OSError(number, os.strerror(number)))
    assert refused.cause
    assert refused.hint
    assert sys.executable not in refused.hint


def test_the_commit_limit_of_windows_is_recognised_without_an_errno(monkeypatch):
    error = OSError(errno.EINVAL, "The paging file is too small")
    error.winerror = 1455
    assert "not enough memory" in _refused(monkeypatch, error).cause


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT])
def test_a_start_that_fails_for_another_reason_names_the_interpreter(monkeypatch, number):
    hint = _refused(monkeypatch, OSError(number, os.strerror(number))).hint
    words, found, _ = hint.partition(sys.executable)
    assert found
    assert "limit" not in words


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (
            MemoryLimits(address_space_bytes=30 * MIB, address_space_limit_bytes=36 * MIB),
            "RLIMIT_AS",
        ),
        (MemoryLimits(data_bytes=30 * MIB, data_limit_bytes=36 * MIB), "RLIMIT_DATA"),
        (MemoryLimits(data_bytes=30 * MIB, data_limit_bytes=90 * MIB), "pids.max"),
        (MemoryLimits(), "pids.max"),
    ],
)
def test_a_thread_whose_stack_does_not_fit_is_not_blamed_on_the_task_limit(
    monkeypatch, limits, cause
):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    monkeypatch.setattr("vmtool.memory.threads.read_limits", lambda: limits)
    monkeypatch.setattr("vmtool.memory.threads.soft_limit", lambda _name: 8 * MIB)
    with pytest.raises(VmtoolError, match="cannot be started") as caught:
        start_thread(print)
    assert cause in caught.value.cause
    assert ("a thread's stack of 8 MiB does not fit" in caught.value.cause) == (cause != "pids.max")
