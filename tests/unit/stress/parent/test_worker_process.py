"""The last output of a dead worker is read completely, and signals have their names."""

import io
import queue
import signal

from vmtool.memory.children import signal_name
from vmtool.stress.parent.worker_process import read_messages


def test_half_a_message_does_not_keep_its_reader_from_the_end():
    inbox = queue.Queue()
    said = io.StringIO('{"message":"ready","value":null}\n{"message":"pha')
    read_messages("worker", said, inbox)
    assert [inbox.get_nowait()[1]["message"] for _ in range(2)] == ["ready", "end"]


def test_signals_have_their_names():
    assert signal_name(int(signal.SIGTERM)) == "SIGTERM"


def test_a_signal_without_a_name_is_reported_by_number():
    assert signal_name(10_000) == "signal 10000"
