"""The journals are placed in a usable folder, and the last output of a dead worker is read completely."""

import errno
import io
import os
import queue
import tempfile
from contextlib import closing

import pytest

from vmtool.errors import VmtoolError
from vmtool.stress.parent.journal_folder import JournalFolder
from vmtool.stress.parent.worker_process import read_messages


@pytest.fixture
def full(monkeypatch, tmp_path):
    """Return a function that makes the next *writes* fail as on a full file system."""

    def fill(writes):
        left = [writes]
        write = os.write

        def refuse(descriptor, data):
            if left[0]:
                left[0] -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr("vmtool.stress.worker.journal.os.write", refuse)

    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return fill


def test_a_full_shared_memory_makes_it_another_folder(full, tmp_path):
    full(1)
    with closing(JournalFolder([1, 2], (str(tmp_path / "shm"), None))) as folder:
        assert [path.parent.parent for path in folder.paths] == [tmp_path] * 2
        assert [journal.threads for journal in folder.journals] == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["shm"]
    assert list((tmp_path / "shm").iterdir()) == []


def test_no_place_at_all_is_an_error_with_a_hint_and_leaves_nothing(full, tmp_path):
    full(2)
    with pytest.raises(VmtoolError, match="No space left") as caught:
        JournalFolder([1], (str(tmp_path / "shm"), None))
    assert "TMPDIR" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["shm"]


def test_half_a_message_does_not_keep_its_reader_from_the_end():
    inbox = queue.Queue()
    said = io.StringIO('{"message":"ready","value":null}\n{"message":"pha')
    read_messages("worker", said, inbox)
    assert [inbox.get_nowait()[1]["message"] for _ in range(2)] == ["ready", "end"]
