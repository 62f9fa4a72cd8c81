"""Injected faults fail the call that they name, once or from then on, and are parsed strictly."""

import ctypes
import errno
import signal
import sys
from dataclasses import dataclass

import pytest

from vmtool.errors import UsageError
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import Fault, FaultyCalls, call_names

if sys.platform == "win32":
    pytest.skip("the faults of Windows are in tests/windows", allow_module_level=True)


@dataclass(frozen=True)
class Table:
    mmap: object
    munmap: object
    prctl: object = None


def _table():
    made = []

    def mmap(*arguments):
        made.append(("mmap", arguments))
        return 4096

    def munmap(*arguments):
        made.append(("munmap", arguments))
        return 0

    return Table(mmap, munmap), made


def test_an_unknown_call_is_refused_and_the_valid_are_named():
    table, _ = _table()
    with pytest.raises(UsageError, match="cuMemMap") as caught:
        FaultyCalls([Fault("cuMemMap", 1, False, "CUDA_ERROR_OUT_OF_MEMORY")]).wrap(table)
    assert caught.value.hint == "use one of mmap, munmap"
    assert call_names(table) == ("mmap", "munmap")


def test_the_nth_call_fails_with_its_errno_and_is_not_made():
    table, made = _table()
    faulty = FaultyCalls([parse_fault("mmap:2=EAGAIN")])
    calls = faulty.wrap(table)
    assert [calls.mmap(0), calls.munmap(0), calls.mmap(0)] == [4096, 0, -1]
    assert ctypes.get_errno() == errno.EAGAIN
    assert calls.mmap(0) == 4096
    assert len(made) == 3
    assert faulty.counts == {"mmap": 3, "munmap": 1}
    assert faulty.applied == [parse_fault("mmap:2=EAGAIN")]


def test_from_the_nth_on_every_call_fails():
    table, made = _table()
    calls = FaultyCalls([parse_fault("munmap:2+")]).wrap(table)
    assert [calls.munmap(0) for _ in range(4)] == [0, -1, -1, -1]
    assert len(made) == 1


def test_a_skipped_call_reports_success_and_does_nothing():
    table, made = _table()
    calls = FaultyCalls([parse_fault("munmap:1=SKIP"), parse_fault("mmap:1=SKIP")]).wrap(table)
    assert calls.munmap(5, 6) == 0
    assert calls.mmap(8192, 1) == 8192
    assert made == []


def test_a_new_range_cannot_be_pretended():
    table, made = _table()
    calls = FaultyCalls([parse_fault("mmap:1=SKIP")]).wrap(table)
    assert calls.mmap(0, 1) == 4096
    assert len(made) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this platform has no SIGUSR1")
def test_a_signal_reaches_this_process_before_the_call():
    table, made = _table()
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: got.append((number, len(made))))
    try:
        FaultyCalls([parse_fault("mmap:1=SIGUSR1")]).wrap(table).mmap(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [(signal.SIGUSR1, 0)]


def test_a_table_without_faults_is_the_same_but_counted():
    table, made = _table()
    faulty = FaultyCalls([])
    calls = faulty.wrap(table)
    assert calls.prctl is None
    assert calls.mmap(1, 2) == 4096
    assert made == [("mmap", (1, 2))]
    assert faulty.counts == {"mmap": 1}
