"""What is checked where two counters of the process are all that is told; not run on macOS.

Linux's own counters stand in for macOS's, without those that macOS lacks.
"""

import mmap
import sys
from types import SimpleNamespace

import pytest

from vmtool.memory.counters import Counters, read_process
from vmtool.stress.worker.session import close_session
from vmtool.units import KIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its counters stand in for others")


@pytest.fixture
def macos(monkeypatch):
    def read_split(ranges):
        process = read_process()
        told = Counters(process.address_space_bytes, None, process.resident_bytes, None)
        return told, tuple(Counters() for _ in ranges)

    monkeypatch.setattr("vmtool.stress.worker.host.sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr("vmtool.stress.worker.host.read_split", read_split)
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._SPACING", 0)
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._FIRST_NS", 0)


def verdicts(report):
    return {v.check: v for v in report.verdicts}


def test_a_run_without_a_leak_passes_and_says_what_was_not_looked_at(macos, run, failed):
    report = run(methods=("fixed",), cycles=40)
    assert failed(report) == {}
    found = verdicts(report)
    assert found["leak.address_space"].passed
    assert found["leak.resident"].passed
    for check in ("leak.charge", "leak.mappings", "ledger.resident", "ledger.address_space"):
        assert found[check].passed is None
        assert found[check].detail == "this platform does not tell it"
    assert found["released"].passed
    assert "is not told here" in found["released"].detail


@pytest.mark.parametrize("method", ["protect", "advise"])
def test_pages_that_may_stay_are_no_leak(macos, run, failed, method):
    report = run(methods=(method,), cycles=40)
    assert failed(report) == {}
    found = verdicts(report)
    assert found["leak.address_space"].passed
    assert found["leak.resident"].passed is None


def test_a_leak_is_found_in_the_counters_of_the_process(macos, session, failed, monkeypatch):
    begun = session(methods=("fixed",), cycles=40)
    begun.prepare()
    seat, leaked = begun.seats[0][0], []
    commit = seat.buffer.commit

    def commit_and_leak(offset, nbytes):
        leaked.append(mmap.mmap(-1, 256 * KIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        leaked[-1][:] = b"x" * (256 * KIB)
        commit(offset, nbytes)

    spans = SimpleNamespace(commit=commit_and_leak, release=seat.buffer.release)
    monkeypatch.setattr(seat.lane, "_spans", spans)
    begun.run()
    report = close_session(begun, begun.journal)
    assert set(failed(report)) == {"leak.address_space", "leak.resident"}
