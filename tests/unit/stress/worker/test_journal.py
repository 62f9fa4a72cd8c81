"""The journal is one file that two processes see, an entry for each thread."""

import subprocess
import sys

from vmtool.stress.worker.journal import (
    COMMIT,
    CYCLE,
    GRANULE,
    METHOD,
    OPERATION,
    RELEASE,
    Entry,
    Journal,
)

_WRITER = """
import os, signal, sys
from pathlib import Path
from vmtool.stress.worker.journal import Journal, RELEASE
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
