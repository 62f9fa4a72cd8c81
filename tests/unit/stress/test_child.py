"""Children that only their parent ends."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from vmtool.stress.child import start_child


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_stops_vmtool_stops_no_child_even_before_its_first_line(name):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with start_child("vmtool.stress.probe", "commit", "host", "fixed", "65536") as child:
        child.send_signal(getattr(signal, name))  # it is still loading Python
        stdout, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (0, "")
    assert json.loads(stdout)["works"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
