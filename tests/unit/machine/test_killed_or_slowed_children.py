"""A SIGKILL is attributed to what the kernel counted meanwhile, and slow tasks to a memory.high."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from vmtool.machine.cgroups import CgroupFacts, CgroupLevel
from vmtool.machine.facts import MachineFacts, MemoryFacts, SystemFacts
from vmtool.machine.kernel_files import KernelFiles, MemoryPressure
from vmtool.machine.killed_or_slowed_children import (
    HighWatch,
    diagnose_hang,
    diagnose_kill,
    read_state,
)
from vmtool.units import GIB, MIB

BEFORE = MachineFacts(
    system=SystemFacts("Linux", "6.8", "x86_64", None, 2, 2, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(4 * GIB, GIB, 0, 0, oom_kills=5),
    cgroup=CgroupFacts(
        (
            CgroupLevel("/cg/a/b", 2, 256 * MIB, None, 0, 0, oom_kills=0, limit_hits=3),
            CgroupLevel("/cg/a", 2, GIB, None, 0, 0, oom_kills=0, limit_hits=3),
            CgroupLevel("/cg", 2, None, None, 0, 0, oom_kills=7, limit_hits=3),
        )
    ),
)


def after(*, machine=5, counts=(0, 0, 7), hits=(3, 3, 3), limits=(256 * MIB, GIB, None)):
    levels = tuple(
        replace(level, oom_kills=kills, limit_hits=hit, limit_bytes=limit)
        for level, kills, hit, limit in zip(BEFORE.cgroup.levels, counts, hits, limits, strict=True)
    )
    return replace(
        BEFORE, memory=replace(BEFORE.memory, oom_kills=machine), cgroup=CgroupFacts(levels)
    )


@pytest.mark.parametrize(
    ("later", "kind", "words"),
    [
        (after(), "killed", "kill -9"),
        (after(hits=(9, 9, 9)), "killed", "kill -9"),
        (after(machine=6), "oom-kill", "1 GiB available"),
        # Version 2 counts in the groups above as well.
        (
            after(machine=6, counts=(1, 1, 8), hits=(4, 4, 4)),
            "cgroup-limit",
            "256 MiB of control group /cg/a/b",
        ),
        (
            after(machine=6, counts=(1, 1, 8), hits=(3, 9, 9)),
            "cgroup-limit",
            "1 GiB of control group /cg/a",
        ),
        # Version 1 counts kills in the victim's group alone, whosever limit it was.
        (
            after(machine=6, counts=(1, 0, 7), hits=(3, 9, 3), limits=(None, GIB, None)),
            "cgroup-limit",
            "1 GiB of control group /cg/a",
        ),
        (
            after(machine=6, counts=(1, 0, 7), hits=(3, 9, 3), limits=(4 * GIB, GIB, None)),
            "cgroup-limit",
            "1 GiB of control group /cg/a",
        ),
        # No group was at its limit: the machine ran out of memory, or a group that is hidden.
        (after(machine=6, counts=(1, 1, 8)), "oom-kill", "because the machine had no memory left"),
        (after(machine=6, counts=(0, 0, 8)), "oom-kill", "machine"),
    ],
)
def test_the_limit_that_was_hit_names_the_cause(later, kind, words):
    diagnosis = diagnose_kill(BEFORE, later)
    assert diagnosis.kind == kind
    assert words in diagnosis.cause + diagnosis.remedy
    assert diagnosis.remedy


def test_a_machine_with_memory_left_may_have_a_limit_that_is_not_visible():
    """A pod has a group above its containers', which they do not see."""
    later = after(machine=6, counts=(1, 0, 7))
    later = replace(later, memory=replace(later.memory, available_bytes=3 * GIB))
    assert "a control group that is not visible here" in diagnose_kill(BEFORE, later).cause


@pytest.mark.parametrize("readable", [True, False])
def test_a_group_without_an_oom_killer_makes_a_child_wait(readable):
    """The group of which the limit is marks those below; in it not even a file can be opened."""
    own, above, root = BEFORE.cgroup.levels
    start = replace(BEFORE, cgroup=CgroupFacts((own, replace(above, oom_killer_off=True), root)))
    levels = [replace(each, under_oom=True) for each in start.cgroup.levels[:2]]
    later = replace(BEFORE, cgroup=CgroupFacts((*levels, root) if readable else ()))
    found = diagnose_hang(start, later, "D" if readable else None)
    assert found.kind == "cgroup-oom-disabled"
    assert "control group /cg/a has no memory left of 1 GiB" in found.cause
    assert "echo 0 > /cg/a/memory.oom_control" in found.remedy
    assert diagnose_hang(start, start, "S").kind == "hang"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("limit", "cpu_s", "kind"),
    [
        (1, 1.01, "cpu-limit"),
        (1, 0.8, "cpu-limit"),
        (1, 0.5, "killed"),
        (10, 1.0, "killed"),
        (-1, 99.0, "killed"),
    ],
)
def test_the_cpu_limit_is_blamed_where_the_child_had_used_it_up(monkeypatch, limit, cpu_s, kind):
    soft = None if limit < 0 else limit
    monkeypatch.setattr("vmtool.machine.killed_or_slowed_children.soft_limit", lambda _name: soft)
    found = diagnose_kill(BEFORE, after(), cpu_s)
    assert found.kind == kind
    assert ("RLIMIT_CPU is 1 s" in found.cause) == (kind == "cpu-limit")


def hit(**counts):
    """Return the facts before and after, in which the tightest group counted *counts*."""
    level = replace(BEFORE.cgroup.levels[0], limit_hits=10, high_hits=10)
    later = replace(level, **counts)
    return tuple(replace(BEFORE, cgroup=CgroupFacts((each,))) for each in (level, later))


@pytest.mark.parametrize(
    ("facts", "state", "kind", "words"),
    [
        (hit(), "T", "stopped", "SIGSTOP or a debugger"),
        (hit(limit_hits=3910), "R", "cgroup-reclaim", "its limit of 256 MiB 3,900 times"),
        (
            hit(
                high_hits=510,
                high_bytes=60 * MIB,
                used_bytes=61 * MIB,
                pressure=MemoryPressure(90.0, 80.0),
            ),
            "S",
            "cgroup-throttled",
            "61 MiB in use: the kernel slowed its tasks down 500 times; its tasks waited 90 %",
        ),
        (hit(limit_hits=20), "D", "uninterruptible", "state D"),
        (hit(), "S", "hang", "a lock, reclaim, or a device"),
        (hit(), None, "hang", "a lock, reclaim, or a device"),
    ],
)
def test_a_child_that_does_not_move_has_a_cause(facts, state, kind, words):
    found = diagnose_hang(*facts, state)
    assert found.kind == kind
    assert words in found.cause
    assert found.remedy


def test_a_machine_without_memory_makes_a_child_wait():
    after = replace(BEFORE, memory=replace(BEFORE.memory, pressure=MemoryPressure(80.0, 40.0)))
    assert diagnose_hang(BEFORE, after, "R").kind == "memory-pressure"


def test_the_state_of_a_process_is_read_behind_its_name(recorded):
    files = recorded({"/proc/7/stat": "7 (a) b (c) T 1 7 7 0", "/proc/8/stat": "nonsense"})
    assert read_state(7, files) == "T"
    assert read_state(8, files) is None
    assert read_state(9, files) is None


@pytest.mark.skipif(sys.platform != "linux", reason="states are read from /proc")
def test_a_stopped_process_is_read_as_stopped():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert read_state(child.pid, KernelFiles()) == "T"
    finally:
        child.kill()
        child.communicate()


SECOND = 10**9


@pytest.fixture
def group(tmp_path):
    """Return a function that sets what a group says; it begins far below its memory.high."""

    def say(used, hits, high=150 * MIB):
        for name, text in (
            ("current", used),
            ("high", high),
            ("max", "max"),
            ("events", f"low 0\nhigh {hits}\nmax 0\noom 0\noom_kill 0"),
        ):
            (tmp_path / f"memory.{name}").write_text(f"{text}\n", encoding="ascii")

    say(20 * MIB, 10)
    return say


@pytest.fixture
def watch(group, tmp_path):
    level = CgroupLevel(str(tmp_path), 2, high_bytes=150 * MIB, used_bytes=20 * MIB, high_hits=10)
    watch = HighWatch([level])
    yield watch
    watch.close()


def test_the_time_above_is_counted_without_a_break(group, watch):
    assert watch.slowed_ns(0) == 0
    for second, hits in enumerate(range(11, 21)):
        group(160 * MIB, hits)
        assert watch.slowed_ns(second * SECOND) == second * SECOND
    group(149 * MIB, 21)  # the kernel could reclaim enough
    assert watch.slowed_ns(10 * SECOND) == 0
    group(160 * MIB, 22)
    assert watch.slowed_ns(11 * SECOND) == 0
    assert watch.slowed_ns(12 * SECOND) == SECOND


def test_a_group_without_delays_causes_no_finding(group, watch):
    """A task is delayed by 2 s at most, after which the kernel counts again."""
    group(160 * MIB, 11)
    assert [watch.slowed_ns(at * SECOND) for at in (0, 4, 6, 8)] == [0, 4 * SECOND, 0, 0]


def test_a_limit_that_was_raised_is_noticed(group, watch):
    group(160 * MIB, 11)
    assert watch.slowed_ns(0) == watch.slowed_ns(SECOND) - SECOND == 0
    group(160 * MIB, 12, high="max")
    assert watch.slowed_ns(2 * SECOND) == 0


def test_the_reason_has_the_use_before_the_workers_were_ended(group, watch):
    group(163 * MIB, 510)
    watch.slowed_ns(0)
    group(20 * MIB, 510)
    found = watch.diagnose()
    assert found.kind == "cgroup-throttled"
    assert "is above memory.high, 150 MiB, with 163 MiB in use" in found.cause
    assert "the kernel slowed its tasks down 500 times" in found.cause
    assert "raise memory.high" in found.remedy


def test_groups_without_a_memory_high_or_that_cannot_be_read_are_left_alone(tmp_path):
    gone = CgroupLevel(str(tmp_path / "gone"), 2, high_bytes=MIB)
    watch = HighWatch([CgroupLevel(str(tmp_path), 2), gone])
    assert watch.slowed_ns(0) == 0
    watch.close()
