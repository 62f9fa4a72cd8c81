"""Two signals at once are one request to stop; a later one means that the user will not wait."""

import os
import signal
import sys

import pytest

from vmtool.cli.interrupt import watch_signals

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
