"""The journal is one file that two processes see, an entry for each thread, in a usable folder."""

import errno
import os
import subprocess
import sys
import tempfile
from contextlib import closing

import pytest

from vmtool.errors import VmtoolError
from vmtool.stress.journal import (
    COMMIT,
    CYCLE,
    GRANULE,
    METHOD,
    OPERATION,
    RELEASE,
    Entry,
    Journal,
    JournalFolder,
)

_WRITER = """
import os, signal, sys
from pathlib import Path
from vmtool.stress.journal import Journal, RELEASE
journal = Journal(Path(sys.argv[1]), 2)
slot = journal.slot(1)
slot[0], slot[1], slot[2], slot[3] = RELEASE, 42, 7, 2
os._exit(9)
"""


def test_entries_of_threads_are_apart(tmp_path):
    with Journal(tmp_path / "j", 3) as journal:
        slot = journal.slot(1)
        slot[OPERATION], slot[GRANULE], slot[CYCLE], slot[METHOD] = COMMIT, 5, 6, 1
        assert journal.read(1) == Entry("commit", 5, 6, 1)
        assert journal.read(0) == journal.read(2) == Entry("idle", 0, 0, 0)
        slot.release()


def test_what_a_dead_process_wrote_can_be_read(tmp_path):
    with Journal(tmp_path / "j", 2) as journal:
        done = subprocess.run([sys.executable, "-c", _WRITER, str(tmp_path / "j")], check=False)
        assert done.returncode == 9
        assert journal.read(1) == Entry("release", 42, 7, 2)


def test_an_unknown_operation_does_not_break_the_reader(tmp_path):
    with Journal(tmp_path / "j", 1) as journal:
        slot = journal.slot(0)
        slot[OPERATION] = 2**63
        assert journal.read(0).operation == "unreserve"
        slot[OPERATION] = RELEASE
        slot.release()


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

        monkeypatch.setattr("vmtool.stress.journal.os.write", refuse)

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
