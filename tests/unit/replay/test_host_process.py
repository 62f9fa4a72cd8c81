"""The process with the real memory of a replay."""

import pytest

from vmtool.errors import VmtoolError
from vmtool.memory.children import start_child
from vmtool.replay import host_process as replays


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
