"""Whatever ends a worker becomes a result that names the operation in flight."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vmtool.errors import VmtoolError
from vmtool.json_documents import decode
from vmtool.machine import read_facts
from vmtool.machine.cgroups import CgroupFacts, CgroupLevel
from vmtool.machine.killed_or_slowed_children import KILLED_BY_VMTOOL
from vmtool.memory.backing_by_name import host_methods
from vmtool.memory.children import end_child
from vmtool.results.stress import Checkpoint, Outcome
from vmtool.stress.messages import WorkerPlan, WorkerReport
from vmtool.stress.parent import worker_process
from vmtool.stress.parent.run_workers import CycleCount, WorkerRefusedError, run_stress, run_workers
from vmtool.units import MIB

SECOND = 10**9
posix = pytest.mark.skipif(sys.platform == "win32", reason="the faults name POSIX calls")


@pytest.fixture
def stress(make):
    """Return a function that runs settings in worker processes."""

    def start(*, hang_ns=60 * SECOND, stopping=lambda: False, **options):
        return run_stress(make(**options), read_facts(), hang_ns=hang_ns, stopping=stopping)

    return start


def test_a_run_in_a_worker_passes_every_check(stress):
    result = stress(methods=host_methods(), cycles=40)
    assert result.outcome is Outcome.COMPLETE
    assert result.passed
    assert [method.method for method in result.methods] == list(host_methods())
    assert result.recommendation.method in host_methods()
    assert result.machine["page_bytes"] > 0


@posix
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGKILL", "SIGABRT"])
def test_a_signal_names_the_operation_in_flight(stress, name):
    # mmap reserves once; the third commit is the fourth call.
    result = stress(inject=(f"mmap:4={name}",), methods=("fixed",))
    assert result.outcome is Outcome.CRASHED
    (accident,) = result.accidents
    assert (accident.kind, accident.signal) == ("signal", name)
    assert (accident.operation, accident.granule, accident.cycle) == ("commit", 2, 2)
    assert accident.method == "fixed"
    assert "--inject" in accident.cause


def test_a_run_ends_if_there_is_no_memory_to_read_what_a_worker_sends(stress, monkeypatch):
    """The watch waited for ever for the end of the messages (seen with RLIMIT_AS of 117 MiB)."""
    read = iter([json.loads] * 2)  # it is ready, and one message more

    def run_out(line):
        return next(read, refuse)(line)

    def refuse(line):
        raise MemoryError

    monkeypatch.setattr(worker_process, "json", SimpleNamespace(loads=run_out))
    result = stress(cycles=1000)
    assert result.outcome is Outcome.HUNG
    (accident,) = result.accidents
    assert "no memory left to read what the worker sent" in accident.cause


@posix
def test_a_hang_is_ended_and_named(stress):
    result = stress(inject=("mmap:5=HANG",), methods=("fixed",), hang_ns=SECOND)
    assert result.outcome is Outcome.HUNG
    (accident,) = result.accidents
    assert (accident.kind, accident.operation, accident.granule) == ("hang", "commit", 3)


@posix
def test_a_slow_handler_of_a_signal_does_not_end_the_watch(make):
    """Before Python 3.13, a SimpleQueue waits for ever if a handler takes longer than its timeout."""
    timers = []

    def interrupt(cycles):
        if cycles >= 3:  # the next call hangs, and the worker sends nothing any more
            target = threading.main_thread().ident
            timers.append(threading.Timer(0.05, signal.pthread_kill, (target, signal.SIGUSR1)))
            timers[-1].start()

    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.2))
    try:
        plan = WorkerPlan(make(inject=("mmap:5=HANG",), methods=("fixed",)), 0, checks=False)
        (ending,), _ = run_workers([plan], hang_ns=SECOND, progress=interrupt)
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert ending.accident.kind == "hang"


@posix
def test_a_worker_that_cannot_be_killed_is_given_up(make, monkeypatch):
    """As one that is stuck in a driver: vmtool must not hang with it."""
    children = []

    def have_no_effect(child):
        children.append(child)

    monkeypatch.setattr(subprocess.Popen, "kill", have_no_effect)
    plan = WorkerPlan(make(inject=("mmap:1=HANG",), methods=("fixed",)), 0)
    try:
        (ending,), _ = run_workers([plan], hang_ns=SECOND // 2, kill_ns=SECOND // 10)
    finally:
        monkeypatch.undo()
        for child in set(children):
            end_child(child)
    assert ending.accident.kind == "hang"
    assert "cannot be killed: it is stuck in the driver" in ending.accident.cause


@posix
def test_the_first_call_may_hang_no_longer_than_any_other(stress):
    result = stress(inject=("mmap:1=HANG",), methods=("fixed",), hang_ns=SECOND // 2)
    assert result.outcome is Outcome.HUNG
    assert result.accidents[0].operation == "reserve"
    assert result.wall_ns < 50 * SECOND  # loading Python may take 60 s


@posix
def test_a_hang_while_closing_is_named_as_such(stress):
    result = stress(inject=("munmap:1=HANG",), methods=("protect",), hang_ns=SECOND)
    assert result.outcome is Outcome.HUNG
    assert result.accidents[0].operation == "unreserve"


@posix
def test_a_failed_call_is_a_failure_and_not_an_accident(stress):
    result = stress(inject=("mmap:4",), methods=("fixed",))
    assert result.outcome is Outcome.CALL_FAILED
    (failure,) = result.failures
    assert (failure.call, failure.symbol, failure.operation) == ("mmap", "ENOMEM", "commit")
    assert (failure.granule, failure.injected) == (2, True)
    assert result.passed


@posix
def test_one_worker_may_die_while_another_continues(make):
    plans = [
        WorkerPlan(make(methods=("fixed",), inject=inject), worker)
        for worker, inject in enumerate([("mmap:4=SIGKILL",), ()])
    ]
    endings, interrupted = run_workers(plans, hang_ns=60 * SECOND)
    assert not interrupted
    assert endings[0].accident.worker == 0
    assert endings[1].accident is None
    assert endings[1].report.complete


@pytest.mark.skipif(sys.platform != "linux", reason="finds children in /proc")
def test_what_a_killed_worker_sent_before_is_kept(make, monkeypatch):
    seen, killed = set(), []

    def decode_and_note(kind, value):
        found = decode(kind, value)
        if kind is Checkpoint or (kind is WorkerReport and found.methods[0].cycles):
            seen.add(kind)
        return found

    def kill(_progress):
        if seen == {Checkpoint, WorkerReport} and not killed:
            killed.extend(_children(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr("vmtool.stress.parent.run_workers.decode", decode_and_note)
    result = run_stress(
        make(duration_ns=600 * SECOND), read_facts(), hang_ns=60 * SECOND, progress=kill
    )
    assert result.outcome is Outcome.CRASHED
    assert result.accidents[0].signal == "SIGKILL"
    (method,) = result.methods
    assert [phase.phase for phase in method.phases] == ["commit", "touch", "verify", "release"]
    assert method.phases[0].summary.samples == method.cycles > 0
    assert result.checkpoints


def test_stopping_ends_early_and_keeps_a_valid_result(make):
    cycles = [0]
    result = run_stress(
        make(duration_ns=600 * SECOND),
        read_facts(),
        hang_ns=60 * SECOND,
        stopping=lambda: cycles[0] > 1000,
        progress=lambda progress: cycles.append(progress.cycles) or cycles.pop(0),
    )
    assert result.outcome is Outcome.INTERRUPTED
    assert result.passed
    assert result.methods[0].cycles > 0


def test_progress_never_goes_back_nor_beyond_what_was_requested():
    count = CycleCount()
    shown = [count.seen(64)]  # of one worker alone, for the scaling
    for cycles in ([40, 164, 10], [30, 100]):  # with the warm-up, and then as it was measured
        count.begin(100)
        shown += map(count.seen, cycles)
    assert shown == [0, 40, 100, 100, 130, 200]
    count.begin(None)
    assert [count.seen(64), count.seen(20), count.seen(500)] == [264, 264, 700]


def test_stopping_before_it_began_is_an_empty_result_and_no_accident(stress):
    result = stress(duration_ns=600 * SECOND, stopping=lambda: True)
    assert result.outcome is Outcome.INTERRUPTED
    assert result.accidents == ()
    assert all(method.cycles == 0 for method in result.methods)


def test_a_worker_that_ends_first_does_not_stop_the_others(make):
    plans = [WorkerPlan(make(cycles=cycles), worker) for worker, cycles in enumerate([1, 3000])]
    endings, _ = run_workers(plans, hang_ns=60 * SECOND)
    assert [ending.report.methods[0].cycles for ending in endings] == [1, 3000]
    assert all(ending.report.complete for ending in endings)


def test_workers_and_threads_are_compared_with_one(stress):
    result = stress(workers=2, threads=2, cycles=30)
    assert result.outcome is Outcome.COMPLETE
    assert result.methods[0].cycles == 2 * 2 * 30
    assert len(set(result.base_addresses[:2])) == 2
    (scaling,) = result.scaling
    assert scaling.speedup == pytest.approx(scaling.cycles_per_s / scaling.single_cycles_per_s)


@posix
def test_a_worker_that_cannot_start_says_why_with_its_exit_code(stress):
    with pytest.raises(WorkerRefusedError, match="mmap") as caught:
        stress(inject=("mmap:1",), methods=("fixed",))
    assert caught.value.exit_code == 1


@pytest.mark.skipif(sys.platform != "linux", reason="finds children in /proc")
def test_no_process_and_no_file_is_left(stress, tmp_path, monkeypatch):
    make_folder = tempfile.mkdtemp
    monkeypatch.setattr(
        tempfile, "mkdtemp", lambda **given: make_folder(**{**given, "dir": tmp_path})
    )
    stress(inject=("mmap:4=SIGKILL",), methods=("fixed",))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(sys.platform != "linux", reason="kills the parent and looks for the child")
def test_a_worker_does_not_outlive_its_parent():
    import subprocess

    program = (
        "from vmtool.cli.app import run\n"
        "run(['stress', '--duration', '10m', '--capacity', '4MiB', '--granule', '64KiB'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        child = _wait_for(lambda: _children(parent.pid))
        _wait_for(lambda: _has_journal(child[0], "journal-0 (deleted)"))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert _wait_for(lambda: _zombie(child[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="kills the parent and looks for the child")
@pytest.mark.parametrize("stop", [False, True], ids=["hung", "stopped"])
def test_a_worker_whose_first_call_hangs_does_not_outlive_its_parent(stop):
    import subprocess

    program = (
        "from vmtool.cli.app import run\n"
        "run(['stress', '--capacity', '4MiB', '--method', 'fixed', '--inject', 'mmap:1=HANG'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        (child,) = _wait_for(lambda: _children(parent.pid))
        _wait_for(lambda: _has_journal(child))
        if stop:
            os.kill(child, signal.SIGSTOP)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert _wait_for(lambda: _zombie(child))


def test_each_worker_commits_its_whole_share_of_the_budget(stress):
    result = stress(workers=2, budget_bytes=2 * MIB, cycles=64)
    (budget,) = (check for check in result.checks if check.name == "budget")
    assert budget.values["peak_bytes"] == budget.values["limit_bytes"] == MIB
    assert result.peak_committed_bytes == 2 * MIB
    assert result.budget_reached


def test_runs_are_kept_apart_and_joined(stress):
    result = stress(methods=host_methods(), cycles=41, runs=3)
    assert result.outcome is Outcome.COMPLETE
    assert [run.index for run in result.runs] == [0, 1, 2]
    for name in host_methods():
        parts = [run.method(name) for run in result.runs]
        assert sum(part.cycles for part in parts) == result.method(name).cycles == 41
        assert [run.methods[0].method for run in result.runs] == [host_methods()[0]] * 3
        commits = [part.phase("commit").histogram.count for part in parts]
        assert sum(commits) == result.method(name).phase("commit").histogram.count
    assert all(sorted(run.order) == sorted(host_methods()) for run in result.runs)
    assert {point.run for point in result.checkpoints} == {0, 1, 2}
    # Wine does not count the charge of a process.
    charge = {"leak.charge"} if sys.platform == "win32" else set()
    assert {check.name for check in result.checks if check.outcome.value == "not done"} <= charge


@posix
def test_a_run_that_fails_is_the_last(stress):
    result = stress(inject=("mmap:4=SIGKILL",), methods=("fixed",), runs=3)
    assert result.outcome is Outcome.CRASHED
    assert len(result.runs) == 1


def test_a_result_says_when_and_where_it_was_made(stress):
    result = stress(cycles=1)
    assert result.conditions.started.endswith("Z")
    assert result.conditions.host


def test_a_worker_that_cannot_be_started_says_which_limits_to_look_at(stress, monkeypatch):
    def refuse(*_arguments, **_options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("vmtool.memory.children.subprocess.Popen", refuse)
    with pytest.raises(VmtoolError, match="cannot be started: Resource") as caught:
        stress()
    assert "pids.max of a control group, RLIMIT_NPROC" in caught.value.cause
    assert "vmtool doctor" in caught.value.hint
    assert "fewer" not in caught.value.hint  # there is one worker


def _has_journal(pid, name="journal-0"):
    try:
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            return any(name in line for line in maps)
    except OSError:
        return False


def _wait_for(condition):
    for _ in range(300):
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen within 30 s")


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except OSError:
        return []


def _zombie(pid):
    """Tell whether a process is gone, but for its entry that nobody has collected."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().split()[2] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="states are read from /proc")
def test_a_stopped_worker_is_called_stopped(make):
    stopped = []

    def stop_one(progress):
        if not stopped and progress.cycles:  # before, a worker may take a minute to start
            stopped.extend(_children(os.getpid()))
            os.kill(stopped[0], signal.SIGSTOP)

    plan = make(duration_ns=600 * SECOND)
    result = run_stress(plan, read_facts(), hang_ns=SECOND, progress=stop_one)
    (accident,) = result.accidents
    assert accident.kind == "hang"
    assert "is stopped (state T)" in accident.cause


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows an ended process has no signal")
def test_a_worker_that_vmtool_killed_is_not_blamed_on_others(make):
    def interrupt(_cycles):
        raise KeyboardInterrupt

    plans = [WorkerPlan(make(duration_ns=600 * SECOND), 0, checks=False)]
    (ending,), interrupted = run_workers(plans, hang_ns=60 * SECOND, progress=interrupt)
    assert interrupted
    assert ending.accident.cause == KILLED_BY_VMTOOL.cause


@pytest.mark.skipif(sys.platform != "linux", reason="finds children in /proc")
@pytest.mark.parametrize("interrupt", [False, True])
def test_workers_that_memory_high_slows_down_are_all_ended(make, monkeypatch, tmp_path, interrupt):
    """Whoever explains it first is slowed down itself, as long as they hold so much."""
    level = CgroupLevel(str(tmp_path), 2, high_bytes=150 * MIB, high_hits=0)
    facts = replace(read_facts(), cgroup=CgroupFacts((level,)))
    monkeypatch.setattr("vmtool.stress.parent.run_workers.read_facts", lambda: facts)
    (tmp_path / "memory.high").write_text(f"{150 * MIB}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{160 * MIB}\n", encoding="ascii")
    (tmp_path / "memory.events").write_text("high 0\n", encoding="ascii")
    hits, stuck = itertools.count(1), []

    def slow_down(cycles):
        (tmp_path / "memory.events").write_text(f"high {next(hits)}\n", encoding="ascii")
        if cycles and not stuck:
            stuck.extend(_children(os.getpid()))
            for worker in stuck:
                os.kill(worker, signal.SIGSTOP)

    plans = [WorkerPlan(make(duration_ns=600 * SECOND), worker, checks=False) for worker in (0, 1)]
    endings, interrupted = run_workers(
        plans,
        hang_ns=600 * SECOND if interrupt else 2 * SECOND,
        progress=slow_down,
        stopping=lambda: interrupt and bool(stuck),
    )
    assert interrupted == interrupt
    for ending in endings:
        assert "is above memory.high, 150 MiB, with 160 MiB in use" in ending.accident.cause
        assert ending.accident.kind == "hang"
