"""What is checked if only two counters of the process are available; not run on macOS.

Linux's own counters stand in for macOS's, without those that macOS lacks.
"""

import mmap
import sys
from types import SimpleNamespace

import pytest

from vmtool.memory.counters import Counters, read_process
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import KIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its counters stand in for others")


@pytest.fixture
def macos(monkeypatch):
    def read_split(ranges):
        process = read_process()
        known = Counters(process.address_space_bytes, None, process.resident_bytes, None)
        return known, tuple(Counters() for _ in ranges)

    monkeypatch.setattr("vmtool.stress.worker.host_counters.read_split", read_split)


def test_a_run_without_a_leak_passes_and_says_what_was_not_looked_at(
    macos, session, failed, leaks, always
):
    begun = session(checkpoints=always, methods=("fixed",), cycles=40)
    begun.prepare()
    begun.run()
    report = begun.close()
    assert failed(report) == {}
    _, found = leaks(begun)
    found |= {check.name: check for check in report.checks}
    assert found["leak.address_space"].outcome is CheckOutcome.PASSED
    assert found["leak.resident"].outcome is CheckOutcome.PASSED
    for check in ("leak.charge", "leak.mappings", "counters.resident", "counters.address_space"):
        assert found[check].outcome is CheckOutcome.NOT_DONE
        assert found[check].values["reason"] == "not available"
    assert found["released"].outcome is CheckOutcome.PASSED
    assert found["released"].values["mapped"] is None


@pytest.mark.parametrize("method", ["protect", "advise"])
def test_pages_that_may_stay_are_no_leak(macos, session, failed, leaks, always, method):
    begun = session(checkpoints=always, methods=(method,), cycles=40)
    begun.prepare()
    begun.run()
    assert failed(begun.close()) == {}
    _, found = leaks(begun)
    assert found["leak.address_space"].outcome is CheckOutcome.PASSED
    assert found["leak.resident"].outcome is CheckOutcome.NOT_DONE


def test_a_leak_is_found_in_the_counters_of_the_process(macos, session, leaks, always):
    begun = session(checkpoints=always, methods=("fixed",), cycles=40)
    begun.prepare()
    item, leaked = begun.buffers[0][0], []
    commit = item.buffer.commit

    def commit_and_leak(offset, nbytes):
        leaked.append(mmap.mmap(-1, 256 * KIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        leaked[-1][:] = b"x" * (256 * KIB)
        commit(offset, nbytes)

    item.runner.spans = SimpleNamespace(commit=commit_and_leak, release=item.buffer.release)
    begun.run()
    begun.close()
    _, found = leaks(begun)
    failed = {name for name, check in found.items() if check.failed}
    assert failed == {"leak.address_space", "leak.resident"}
