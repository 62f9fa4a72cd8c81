"""A session measures what was requested, checks its promises, and gives everything back."""

import mmap
import sys
import threading

import pytest

from vmtool.errors import VmtoolError
from vmtool.memory.addresses import window
from vmtool.memory.backing_by_name import host_methods
from vmtool.memory.counters import read_split
from vmtool.memory.governor import Tier
from vmtool.stress.workloads import PATTERNS
from vmtool.units import KIB, MIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all four counters")


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
    report = begun.close()
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


def test_a_byte_that_changes_behind_our_back_fails_the_contents(session, failed):
    begun = session(verify="full", cycles=100)
    begun.prepare()
    item = begun.buffers[0][0]
    memory = window(item.buffer.base, item.buffer.capacity)
    write_and_time = item.runner.contents.write_and_time

    def write_and_change(first, count, generation):
        took = write_and_time(first, count, generation)
        if generation == 90:
            memory[first * 64 * KIB + 12_345] ^= 0xFF
        return took

    item.runner.contents.write_and_time = write_and_change
    begun.run()
    report = begun.close()
    assert list(failed(report)) == ["contents"]
    assert "what was written is not there" in failed(report)["contents"]
    assert not report.failures


@linux
def test_a_leak_in_each_cycle_is_found_and_the_counter_named(session, failed, leaks, always):
    begun = session(checkpoints=always, cycles=40)
    begun.prepare()
    leaked = []
    item = begun.buffers[0][0]
    commit = item.buffer.commit

    def commit_and_leak(offset, nbytes):
        # Much more than a collection of what other tests left in this process may give back.
        leaked.append(mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        leaked[-1][:] = b"x" * MIB
        commit(offset, nbytes)

    item.runner.spans = _Spans(commit_and_leak, item.buffer.release)
    begun.run()
    assert failed(begun.close()) == {}  # the buffers themselves are as they must be
    _, checks = leaks(begun)
    assert {name for name, check in checks.items() if check.failed} >= {
        "leak.address_space",
        "leak.charge",
        "leak.resident",
    }


class _Spans:
    def __init__(self, commit, release):
        self.commit, self.release = commit, release


@linux
def test_a_run_without_a_leak_has_slopes_and_none_is_significant(session, leaks, always):
    begun = session(checkpoints=always, cycles=40)
    begun.prepare()
    begun.run()
    begun.close()
    slopes, checks = leaks(begun)
    assert len(slopes) == 4
    assert not any(check.failed for check in checks.values())


def test_every_checkpoint_is_sent_and_none_is_kept(session, always):
    begun = session(checkpoints=always, cycles=20)
    begun.prepare()
    begun.run()
    report = begun.close()
    assert len(begun.notes) == begun.checkpoints.count > 20
    assert report.checkpoints == ()
    times = [checkpoint.at_ns for checkpoint in begun.notes]
    assert times == sorted(times)


@pytest.mark.parametrize("options", [{"cycles": 40}, {"duration_ns": 2 * 10**9}])
def test_even_a_short_run_has_checkpoints_for_a_slope(session, leaks, options):
    begun = session(**options)
    begun.prepare()
    begun.run()
    begun.close()
    assert len(begun.notes) >= 4


def test_the_whole_budget_is_held_once_and_checked(session, failed):
    begun = session(cycles=1, hold=True, budget_bytes=MIB, verify="full")
    begun.prepare()
    begun.run()
    report = begun.close()
    assert failed(report) == {}
    assert report.hold.bytes == report.hold.budget_bytes == MIB
    assert report.peak_committed_bytes == MIB
    assert report.methods[0].cycles == 1


def test_a_budget_that_is_exceeded_fails_the_run(session, failed):
    begun = session(cycles=40)
    begun.prepare()
    begun.governor.set_limit(Tier.HOST, None)  # as if the governor had been left out
    begun.run()
    assert list(failed(begun.close())) == ["budget"]


def test_a_lease_that_nobody_holds_fails_the_run(session, failed):
    begun = session(cycles=40, budget_bytes=MIB)
    begun.prepare()
    stray = begun.governor.lease(Tier.HOST, 4096)
    begun.run()
    assert {"leases", "released"} <= set(failed(begun.close()))
    stray.release()


def test_the_harness_measures_its_own_overhead(session):
    assert 0 < session().overhead_ns < 10**6


def test_a_defect_in_a_thread_is_raised_and_does_not_hang(session):
    begun = session(threads=3)
    begun.prepare()

    def broken(*_arguments):
        raise ZeroDivisionError

    item = begun.buffers[1][0]
    item.runner.spans = _Spans(broken, item.buffer.release)
    with pytest.raises(ZeroDivisionError):
        begun.run()


def test_a_reservation_that_is_refused_leaves_nothing(session):
    reserving = "VirtualAlloc2:2" if sys.platform == "win32" else "mmap:2"
    begun = session(methods=host_methods()[:2], inject=(reserving,))
    with pytest.raises(VmtoolError):
        begun.prepare()
    assert begun.governor.ledger(Tier.HOST).used_bytes == 0
    assert begun.faults.applied
