"""The process with the real memory of a replay."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from vmtool.errors import VmtoolError
from vmtool.memory.children import start_child
from vmtool.replay import replay_process as replays


def test_a_process_that_nobody_can_listen_to_is_ended(monkeypatch):
    """Nothing would have read what it wrote, and both would have waited for ever."""
    started = []

    def start(module):
        started.append(start_child(module))
        return started[0]

    def refuse(_target):
        raise VmtoolError("a thread cannot be started")

    monkeypatch.setattr(replays, "start_child", start)
    monkeypatch.setattr(replays, "start_thread", refuse)
    with pytest.raises(VmtoolError, match="a thread cannot be started"):
        replays.replay_in_child(None, lambda: False)
    assert started[0].poll() is not None


def test_a_replay_ends_if_there_is_no_memory_to_read_what_its_process_writes(monkeypatch):
    """The process waited for a reader, and vmtool for the end of the process."""
    writes = "while True: print('{}', flush=True)"

    def start(_module):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", writes]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def refuse(_line):
        raise MemoryError

    monkeypatch.setattr(replays, "start_child", start)
    monkeypatch.setattr(replays, "msgspec", SimpleNamespace(json=SimpleNamespace(decode=refuse)))
    with pytest.raises(MemoryError):
        replays.replay_in_child(None, lambda: False)
