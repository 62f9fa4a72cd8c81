"""A SIGKILL is put down to what the kernel counted meanwhile."""

import sys
from dataclasses import replace

import pytest

from vmtool.machine.facts import CgroupFacts, CgroupLevel, MachineFacts, MemoryFacts, SystemFacts
from vmtool.machine.kills import diagnose_kill
from vmtool.units import GIB, MIB

BEFORE = MachineFacts(
    system=SystemFacts("Linux", "6.8", "x86_64", None, 2, 2, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(4 * GIB, GIB, 0, 0, oom_kills=5),
    cgroup=CgroupFacts(
        (
            CgroupLevel("/cg/a/b", 2, 256 * MIB, None, 0, 0, oom_kills=0),
            CgroupLevel("/cg/a", 2, GIB, None, 0, 0, oom_kills=0),
            CgroupLevel("/cg", 2, None, None, 0, 0, oom_kills=7),
        )
    ),
)


def after(*, machine=5, counts=(0, 0, 7)):
    levels = tuple(
        replace(level, oom_kills=count)
        for level, count in zip(BEFORE.cgroup.levels, counts, strict=True)
    )
    return replace(
        BEFORE, memory=replace(BEFORE.memory, oom_kills=machine), cgroup=CgroupFacts(levels)
    )


@pytest.mark.parametrize(
    ("later", "kind", "words"),
    [
        (after(), "killed", "kill -9"),
        (after(machine=6), "oom-kill", "1 GiB available"),
        (after(machine=6, counts=(1, 1, 8)), "cgroup-limit", "256 MiB of control group /cg/a/b"),
        (after(machine=6, counts=(0, 1, 8)), "cgroup-limit", "1 GiB of control group /cg/a"),
        (after(machine=6, counts=(0, 0, 8)), "oom-kill", "machine"),
    ],
)
def test_the_counter_that_grew_names_the_cause(later, kind, words):
    diagnosis = diagnose_kill(BEFORE, later)
    assert diagnosis.kind == kind
    assert words in diagnosis.cause + diagnosis.remedy
    assert diagnosis.remedy


def test_unknown_counters_accuse_nobody():
    silent = replace(BEFORE, memory=MemoryFacts(), cgroup=CgroupFacts())
    assert diagnose_kill(silent, silent).kind == "killed"


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
    import resource

    unlimited = resource.RLIM_INFINITY
    soft = unlimited if limit < 0 else limit
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: {resource.RLIMIT_CPU: (soft, unlimited)}[which]
    )
    found = diagnose_kill(BEFORE, after(), cpu_s)
    assert found.kind == kind
    assert ("RLIMIT_CPU is 1 s" in found.cause) == (kind == "cpu-limit")
