"""Every number that can end a process has a name, or says that it has none."""

import signal

from vmtool.memory.children import signal_name


def test_signals_have_their_names():
    assert signal_name(int(signal.SIGTERM)) == "SIGTERM"


def test_a_signal_without_a_name_is_reported_by_number():
    assert signal_name(10_000) == "signal 10000"
