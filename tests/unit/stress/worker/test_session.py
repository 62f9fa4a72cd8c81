"""A session measures what it is told to, checks what it promises, and gives everything back."""

import mmap
import sys
import threading

import pytest

from vmtool.errors import VmtoolError
from vmtool.memory import host_methods
from vmtool.memory.counters import read_split
from vmtool.memory.governor import Tier
from vmtool.memory.process import window
from vmtool.stress.worker.session import close_session
from vmtool.stress.worker.workloads import PATTERNS
from vmtool.units import KIB, MIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells all four ledgers")


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern_passes_every_check_with_full_verification(run, failed, pattern):
    report = run(pattern=pattern, verify="full", methods=host_methods())
    assert report.complete
    assert failed(report) == {}
    for method in report.methods:
        assert method.cycles == 60
        assert method.phase("commit").summary.samples == 60
        assert method.phase("touch").total_bytes == method.phase("commit").total_bytes
        assert method.phase("release").total_bytes == method.phase("commit").total_bytes


@pytest.mark.parametrize("touch", ["none", "first"])
def test_less_touch_has_fewer_phases_and_still_passes(run, failed, touch):
    report = run(touch=touch)
    assert failed(report) == {}
    assert (report.methods[0].phase("touch") is None) == (touch == "none")
    assert (report.methods[0].phase("verify") is None) == (touch == "none")


def test_warm_up_is_not_counted(run):
    assert run(cycles=3).methods[0].phase("commit").summary.samples == 3


def test_threads_each_do_the_cycles_in_buffers_of_their_own(run, failed):
    report = run(threads=3, methods=host_methods())
    assert failed(report) == {}
    assert len(set(report.base_addresses)) == 3 * len(host_methods())
    assert all(method.cycles == 180 for method in report.methods)


@linux
def test_nothing_is_mapped_afterwards(run):
    report = run()
    spans = [(base, base + 2 * MIB) for base in report.base_addresses]
    assert all(part.address_space_bytes < 2 * MIB for part in read_split(spans)[1])


def test_the_same_seed_does_the_same(run):
    first, second = (run(pattern="random", cycles=40).methods[0] for _ in range(2))
    assert first.phase("commit").total_bytes == second.phase("commit").total_bytes


def test_stop_ends_a_long_run_with_a_valid_partial_report(session, failed):
    begun = session(cycles=10**9)
    begun.prepare()
    timer = threading.Timer(0.3, begun.stop)
    timer.start()
    begun.run()
    report = close_session(begun, begun.journal)
    timer.join()
    assert report.interrupted
    assert not report.complete
    assert failed(report) == {}
    assert 0 < report.methods[0].cycles < 10**9


def test_snapshots_are_taken_between_rounds(session):
    seen = []
    begun = session(cycles=400, snapshot=lambda s: seen.append(s.cycles()))
    begun.prepare()
    begun.run()
    assert seen


def test_a_byte_that_changes_behind_our_back_fails_the_contents(session, failed, monkeypatch):
    begun = session(verify="full", cycles=100)
    begun.prepare()
    seat = begun.seats[0][0]
    memory = window(seat.buffer.base, seat.buffer.capacity)
    write_and_time = seat.lane._contents.write_and_time

    def arrive_and_spoil(first, count, generation):
        took = write_and_time(first, count, generation)
        if generation == 90:
            memory[first * 64 * KIB + 12_345] ^= 0xFF
        return took

    monkeypatch.setattr(seat.lane._contents, "write_and_time", arrive_and_spoil)
    begun.run()
    report = close_session(begun, begun.journal)
    assert list(failed(report)) == ["contents"]
    assert "what was written is not there" in failed(report)["contents"]
    assert not report.failures


@linux
def test_a_leak_in_each_cycle_fails_the_run_and_names_the_ledger(session, failed, monkeypatch):
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._SPACING", 0)
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._FIRST_NS", 0)
    begun = session(cycles=40)
    begun.prepare()
    leaked = []
    seat = begun.seats[0][0]
    commit = seat.buffer.commit

    def commit_and_leak(offset, nbytes):
        leaked.append(mmap.mmap(-1, 256 * KIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        leaked[-1][:] = b"x" * (256 * KIB)
        commit(offset, nbytes)

    monkeypatch.setattr(seat.lane, "_spans", _Spans(commit_and_leak, seat.buffer.release))
    begun.run()
    report = close_session(begun, begun.journal)
    assert {"leak.address_space", "leak.charge", "leak.resident"} <= set(failed(report))
    assert not any(check.startswith("ledger") for check in failed(report))


class _Spans:
    def __init__(self, commit, release):
        self.commit, self.release = commit, release


@linux
def test_a_run_without_a_leak_has_slopes_and_none_is_significant(run, failed, monkeypatch):
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._SPACING", 0)
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._FIRST_NS", 0)
    report = run(cycles=40)
    assert len(report.slopes) == 4
    assert failed(report) == {}


def test_every_checkpoint_is_told_and_none_is_kept(session, monkeypatch):
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._SPACING", 0)
    monkeypatch.setattr("vmtool.stress.worker.checkpoint._FIRST_NS", 0)
    begun = session(cycles=20)
    begun.prepare()
    begun.run()
    report = close_session(begun, begun.journal)
    assert len(begun.notes) == begun.checkpoints.compared > 20
    assert report.checkpoints == ()
    times = [checkpoint.at_ns for checkpoint in begun.notes]
    assert times == sorted(times)


def test_a_budget_that_is_exceeded_fails_the_run(session, failed):
    begun = session(cycles=40)
    begun.prepare()
    begun.governor.set_limit(Tier.HOST, None)  # as if the governor had been left out
    begun.run()
    assert list(failed(close_session(begun, begun.journal))) == ["budget"]


def test_a_lease_that_nobody_holds_fails_the_run(session, failed):
    begun = session(cycles=40, budget_bytes=MIB)
    begun.prepare()
    stray = begun.governor.lease(Tier.HOST, 4096)
    begun.run()
    assert {"leases", "released"} <= set(failed(close_session(begun, begun.journal)))
    stray.release()


def test_the_harness_knows_its_own_overhead(session):
    assert 0 < session().overhead_ns < 10**6


def test_a_defect_in_a_thread_is_raised_and_does_not_hang(session, monkeypatch):
    begun = session(threads=3)
    begun.prepare()

    def broken(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(begun.seats[1][0].lane, "_commit", broken)
    with pytest.raises(ZeroDivisionError):
        begun.run()


def test_a_reservation_that_is_refused_leaves_nothing(session, monkeypatch):
    reserving = "VirtualAlloc2:2" if sys.platform == "win32" else "mmap:2"
    begun = session(methods=host_methods()[:2], inject=(reserving,))
    with pytest.raises(VmtoolError):
        begun.prepare()
    assert begun.governor.ledger(Tier.HOST).used_bytes == 0
    assert begun.faults.applied


def test_a_run_that_is_interrupted_still_tells_its_slopes(session):
    begun = session()
    begun.prepare()
    begun.run()
    for cycle in range(8):
        begun.checkpoints.take_all(cycle, settled=True)
    begun.interrupted = True
    assert close_session(begun, begun.journal).slopes
