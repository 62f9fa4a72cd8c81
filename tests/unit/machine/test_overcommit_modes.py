"""Modes of the whole machine, really changed for some milliseconds: only when asked for.

``VMTOOL_TEST_MODES=1 pytest tests/unit/machine/test_overcommit_modes.py`` as root; every other process
on the machine sees the change as well.
"""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from vmtool.machine import read_facts
from vmtool.machine.doctor.examine import examine
from vmtool.machine.doctor.findings import Rating
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.errors import OutOfMemoryError
from vmtool.units import GIB, align_up

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these modes are Linux's"),
    pytest.mark.skipif(
        not os.environ.get("VMTOOL_TEST_MODES"),
        reason="changes the whole machine for a moment: set VMTOOL_TEST_MODES=1 to allow it",
    ),
]


@contextmanager
def changed(path, value):
    """Give *path* another value for the length of the block."""
    before = path.read_text(encoding="ascii").strip()
    if "[" in before:
        before = before[before.index("[") + 1 : before.index("]")]
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        pytest.skip(f"{path} can't be written: {error.strerror}")
    try:
        yield
    finally:
        path.write_text(before, encoding="ascii")


def raised():
    """Return the kinds that the doctor would raise now."""
    return {check.kind for check in examine(read_facts()) if check.rating is not Rating.OK}


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        (THP, "always", "huge-pages-always"),
        (THP, "never", "huge-pages-never"),
        (OVERCOMMIT, "1", "always-overcommit"),
        (OVERCOMMIT, "2", "commit-limit"),
    ],
)
def test_a_mode_is_found_by_the_doctor_and_by_nothing_else(path, value, kind):
    if not path.exists():
        pytest.skip(f"{path} is not there")
    raised()  # imports first: the change is as short as it can be
    with changed(path, value):
        found = raised()
    modes = {"huge-pages-always", "huge-pages-never", "always-overcommit", "commit-limit"}
    assert found & modes == {kind}


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_a_commit_over_the_limit_is_refused_and_the_error_names_the_limit(method):
    backing = open_backing(method=method)
    commit = read_facts().commit
    nbytes = align_up(max(commit.headroom_bytes, 0) + GIB, backing.granularity)
    reservation = backing.reserve(nbytes)
    error = None
    try:
        with changed(OVERCOMMIT, "2"):
            try:
                backing.commit(reservation, 0, nbytes)
            except OutOfMemoryError as caught:
                error = caught
    finally:
        backing.unreserve(reservation)
    assert "vm.overcommit_memory is 2" in error.cause
    assert "vm.overcommit_ratio" in error.hint


def test_a_writable_reservation_is_charged_as_a_whole():
    backing = open_backing(method="advise")
    headroom = max(read_facts().commit.headroom_bytes, 0)
    nbytes = align_up(headroom + GIB, backing.granularity)
    backing.unreserve(backing.reserve(nbytes))
    error = None
    with changed(OVERCOMMIT, "2"):
        try:
            backing.reserve(nbytes)
        except OutOfMemoryError as caught:
            error = caught
    assert "vm.overcommit_memory is 2" in error.cause


def test_where_everything_may_be_committed_nothing_is_refused():
    backing = open_backing()
    nbytes = align_up(2 * read_facts().memory.total_bytes, backing.granularity)
    reservation = backing.reserve(nbytes)
    try:
        with changed(OVERCOMMIT, "1"):
            backing.commit(reservation, 0, nbytes)
            backing.release(reservation, 0, nbytes)
    finally:
        backing.unreserve(reservation)
