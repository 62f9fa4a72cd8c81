"""Each condition is found by exactly one check, rated, with one remedy."""

from dataclasses import replace

import pytest

from vmtool.machine.cgroups import CgroupFacts, CgroupLevel, GroupLimit
from vmtool.machine.doctor.examine import examine
from vmtool.machine.doctor.findings import Rating
from vmtool.machine.facts import (
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    LimitFacts,
    MachineFacts,
    MemoryFacts,
    NumaNode,
    SystemFacts,
)
from vmtool.machine.kernel_files import MemoryPressure
from vmtool.memory.counters import ProcessLimits
from vmtool.memory.rlimits_and_privileges import ResourceLimit
from vmtool.units import GIB, KIB, MIB

HEALTHY = MachineFacts(
    system=SystemFacts("Linux", "6.8.0-40-generic", "x86_64", "cpu", 8, 8, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(32 * GIB, 20 * GIB, 8 * GIB, 8 * GIB, oom_kills=0),
    huge_pages=HugePageFacts("madvise", "madvise", 2 * MIB),
    commit=CommitFacts(0, 50, 16 * GIB, 2 * GIB),
    cgroup=CgroupFacts((CgroupLevel("/cg/app", 2),)),
    process=ProcessLimits(
        mappings=100, max_mappings=1 << 20, address_space_bytes=GIB, data_bytes=MIB
    ),
)
#: The checks whose wording differs from the healthy machine's, for one change of its facts.
CONDITIONS = [
    ("available-memory", "problem", {"memory": replace(HEALTHY.memory, available_bytes=100 * MIB)}),
    ("unknown-memory", "note", {"memory": MemoryFacts()}),
    ("no-swap", "note", {"memory": replace(HEALTHY.memory, swap_total_bytes=0)}),
    ("swap-full", "note", {"memory": replace(HEALTHY.memory, swap_free_bytes=0)}),
    ("oom-kills", "note", {"memory": replace(HEALTHY.memory, oom_kills=3)}),
    (
        "oom-kills",
        "note",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 2, oom_kills=1),))},
    ),
    ("always-overcommit", "note", {"commit": replace(HEALTHY.commit, mode=1)}),
    ("commit-limit", "note", {"commit": replace(HEALTHY.commit, mode=2)}),
    (
        "commit-limit",
        "problem",
        {"commit": CommitFacts(2, 50, 16 * GIB, 16 * GIB - 100 * MIB)},
    ),
    ("commit-limit", "problem", {"commit": CommitFacts(2, 50, 16 * GIB, 17 * GIB)}),
    (
        "cgroup-limit",
        "note",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 2, 4 * GIB, None, GIB),))},
    ),
    (
        "cgroup-limit",
        "problem",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 1, 4 * GIB, None, 4 * GIB),))},
    ),
    (
        "cgroup-limit",  # 20 MiB are left, of which 12 would be safe
        "problem",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 2, 64 * MIB, None, 44 * MIB),))},
    ),
    (
        "cgroup-limit",  # 42.7 MiB are left, of which 5 MiB less are by the time that stress plans
        "problem",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 1, 56 * MIB, None, 13 * MIB),))},
    ),
    (
        "cgroup-limit",
        "note",
        {"cgroup": CgroupFacts((CgroupLevel("/cg/app", 1, 60 * MIB, None, 13 * MIB),))},
    ),
    ("mapping-limit", "note", {"process": replace(HEALTHY.process, max_mappings=65530)}),
    ("mapping-limit", "problem", {"process": replace(HEALTHY.process, max_mappings=300)}),
    ("task-limit", "problem", {"cgroup": CgroupFacts(tasks=GroupLimit("/cg/app", 6, 3))}),
    ("task-limit", "note", {"cgroup": CgroupFacts(tasks=GroupLimit("/cg/app", 7, 3))}),
    (
        "task-limit",
        "problem",
        {"limits": LimitFacts(tasks=ResourceLimit(20, 20), tasks_used=18)},
    ),
    # What is not known is not called unlimited.
    ("task-limit", "note", {"limits": LimitFacts(tasks=ResourceLimit(20, 20))}),
    (
        "task-limit",
        "problem",
        {"limits": LimitFacts(tasks=ResourceLimit(None, None), threads_refused=True)},
    ),
    (
        "descriptor-limit",
        "problem",
        {"limits": LimitFacts(descriptors=ResourceLimit(32, 32), descriptors_used=4)},
    ),
    ("locked-limit", "note", {"limits": LimitFacts(locked_memory=ResourceLimit(8 * MIB, None))}),
    ("cpu-limit", "note", {"limits": LimitFacts(cpu_s=ResourceLimit(60, 60))}),
    (
        "mapping-limit",
        "problem",
        {"process": replace(HEALTHY.process, max_mappings=65530, mappings=65000)},
    ),
    (
        "address-space-limit",
        "problem",
        {"process": replace(HEALTHY.process, address_space_limit_bytes=16 * GIB)},
    ),
    (
        "address-space-limit",
        "note",
        {"process": replace(HEALTHY.process, address_space_limit_bytes=1 << 40)},
    ),
    ("data-limit", "problem", {"process": replace(HEALTHY.process, data_limit_bytes=GIB)}),
    ("data-limit", "note", {"process": replace(HEALTHY.process, data_limit_bytes=100 * GIB)}),
    ("huge-pages-always", "note", {"huge_pages": HugePageFacts("always", pmd_bytes=2 * MIB)}),
    ("huge-pages-never", "note", {"huge_pages": HugePageFacts("never", pmd_bytes=2 * MIB)}),
    ("no-huge-pages", "note", {"huge_pages": HugePageFacts()}),
    (
        "huge-pages-disabled",
        "note",
        {"huge_pages": replace(HEALTHY.huge_pages, thp_disabled_here=True)},
    ),
    (
        "reserved-huge-pages",
        "note",
        {"huge_pages": replace(HEALTHY.huge_pages, pools=(HugePool(GIB, 8, 8),))},
    ),
    (
        "reserved-huge-pages",
        "note",
        {"huge_pages": replace(HEALTHY.huge_pages, pools=(HugePool(2 * MIB, 8, 8, works=False),))},
    ),
    (
        "huge-page-group",
        "note",
        {
            "huge_pages": replace(HEALTHY.huge_pages, pools=(HugePool(2 * MIB, 8, 8),)),
            "cgroup": CgroupFacts(huge_pages=(GroupLimit("/cg/app", 0, 0, 2 * MIB),)),
        },
    ),
    ("huge-pages-unknown", "note", {"huge_pages": HugePageFacts(hidden=True, advice_works=True)}),
    ("page-size", "note", {"page_bytes": 16 * KIB}),
    ("allocation-granularity", "note", {"allocation_bytes": 64 * KIB}),
    ("old-kernel", "note", {"system": replace(HEALTHY.system, kernel="5.10.0-28-amd64")}),
    ("container", "note", {"environment": EnvironmentFacts(container="docker")}),
    ("wsl", "note", {"environment": EnvironmentFacts(wsl=2)}),
    ("wsl", "note", {"environment": EnvironmentFacts(wsl=1)}),
    ("gvisor", "note", {"environment": EnvironmentFacts(gvisor=True)}),
]


def test_a_healthy_machine_has_nothing_to_change():
    checks = examine(HEALTHY)
    assert {check.rating for check in checks} == {Rating.OK}
    assert all(check.remedy is None for check in checks)
    assert len(checks) > 8


@pytest.mark.parametrize(
    ("kind", "rating", "changes"),
    CONDITIONS,
    ids=[f"{i}-{c[0]}-{c[1]}" for i, c in enumerate(CONDITIONS)],
)
def test_a_condition_is_one_finding_with_one_remedy(kind, rating, changes):
    raised = [c for c in examine(replace(HEALTHY, **changes)) if c.rating is not Rating.OK]
    assert [(check.kind, check.rating.value) for check in raised] == [(kind, rating)]
    assert raised[0].remedy


def test_kinds_are_listed_once():
    kinds = [check.kind for check in examine(HEALTHY)]
    assert len(kinds) == len(set(kinds))


def test_the_finding_names_the_numbers():
    facts = replace(HEALTHY, process=replace(HEALTHY.process, max_mappings=65530, mappings=530))
    (check,) = [c for c in examine(facts) if c.kind == "mapping-limit"]
    assert "530 of 65,530" in check.message
    assert "31,988 scattered granules" in check.message
    assert check.remedy == "sysctl -w vm.max_map_count=262144"


def test_the_remedy_names_the_file_that_binds():
    level = CgroupLevel("/cg/app", 2, limit_bytes=8 * GIB, high_bytes=4 * GIB, used_bytes=0)
    facts = replace(HEALTHY, cgroup=CgroupFacts((level,)))
    (check,) = [c for c in examine(facts) if c.kind == "cgroup-limit"]
    assert check.remedy.startswith(
        "raise /cg/app/memory.high: MemoryHigh= of the unit; Docker has no"
    )
    v1 = replace(level, version=1, high_bytes=None)
    facts = replace(HEALTHY, cgroup=CgroupFacts((v1,)))
    (check,) = [c for c in examine(facts) if c.kind == "cgroup-limit"]
    assert check.remedy.startswith("raise /cg/app/memory.limit_in_bytes: MemoryMax= of the unit")


def found(kind, **changes):
    """Return the one finding of a kind on the healthy machine with *changes*."""
    (finding,) = [each for each in examine(replace(HEALTHY, **changes)) if each.kind == kind]
    return finding


def test_a_process_with_the_capability_is_exempt_from_the_limit_of_locked_memory():
    limits = LimitFacts(locked_memory=ResourceLimit(8 * MIB, None), locked_exempt=True)
    (check,) = [c for c in examine(replace(HEALTHY, limits=limits)) if c.kind == "locked-limit"]
    assert check.rating is Rating.OK
    assert "CAP_IPC_LOCK exempts" in check.message


def test_high_slows_down_and_only_max_kills():
    high = CgroupLevel("/cg/app", 2, limit_bytes=8 * GIB, high_bytes=4 * GIB)
    assert "slowed down, not killed" in found("cgroup-limit", cgroup=CgroupFacts((high,))).message
    limit = replace(high, high_bytes=None)
    assert "a process is killed" in found("cgroup-limit", cgroup=CgroupFacts((limit,))).message


def test_the_report_shows_cache_in_a_group_and_waiting_for_memory():
    level = CgroupLevel(
        "/cg/app",
        2,
        8 * GIB,
        used_bytes=6 * GIB,
        reclaimable_bytes=5 * GIB,
        pressure=MemoryPressure(12.3, 4.0),
    )
    message = found("cgroup-limit", cgroup=CgroupFacts((level,))).message
    assert "7 GiB left" in message
    assert "6 GiB used, of which 5 GiB is cache that is dropped first" in message
    assert "tasks waited for memory 12 % of the last 10 s" in message


def test_the_cache_of_zfs_is_available():
    memory = MemoryFacts(32 * GIB, 100 * MIB, 0, 0, oom_kills=0, arc_bytes=10 * GIB)
    finding = found("available-memory", memory=memory)
    assert finding.rating is Rating.OK
    assert "10 GiB of ZFS' cache" in finding.message
    assert replace(HEALTHY, memory=memory).available_bytes == 10 * GIB + 100 * MIB


def test_a_hard_limit_is_raised_where_it_was_set(monkeypatch):
    monkeypatch.setattr("vmtool.memory.rlimits_and_privileges.has_capability", lambda _: False)
    process = replace(HEALTHY.process, address_space_limit_bytes=GIB)
    hard = LimitFacts(address_space=ResourceLimit(GIB, GIB))
    remedy = found("address-space-limit", process=process, limits=hard).remedy
    assert remedy.startswith("raise the hard limit of 1 GiB: `as` in /etc/security/limits.conf")
    soft = LimitFacts(address_space=ResourceLimit(GIB, None))
    remedy = found("address-space-limit", process=process, limits=soft).remedy
    assert remedy.startswith("ulimit -v unlimited")


def test_without_sys_huge_pages_are_tried_and_not_called_missing():
    facts = HugePageFacts(hidden=True, advice_works=True)
    assert "--huge works" in found("huge-pages-unknown", huge_pages=facts).message


def test_a_fork_in_mode_2_needs_the_charge_of_this_process():
    commit = CommitFacts(2, 50, 16 * GIB, 12 * GIB)
    process = replace(HEALTHY.process, data_bytes=5 * GIB)
    finding = found("fork-headroom", commit=commit, process=process)
    assert finding.rating is Rating.PROBLEM
    assert "charged another 5 GiB, and 4 GiB of the commit limit is left" in finding.message


def test_numa_nodes_are_listed():
    one = replace(HEALTHY.memory, nodes=(NumaNode(0, 32 * GIB, 20 * GIB),))
    assert found("numa", memory=one).message == "one NUMA node"
    two = replace(one, nodes=(*one.nodes, NumaNode(1, 32 * GIB, GIB)))
    assert found("numa", memory=two).message == "2 NUMA nodes, free: node 0 20 GiB, node 1 1 GiB"


def test_a_machine_without_facts_is_rated_by_its_pages_only():
    silent = MachineFacts(system=replace(HEALTHY.system, os="Darwin"), page_bytes=16 * KIB)
    assert [check.kind for check in examine(silent)] == ["page-size", "not-available"]


def test_facts_of_macos_are_rated_and_missing_ones_named():
    facts = MachineFacts(
        system=replace(HEALTHY.system, os="Darwin"),
        page_bytes=16 * KIB,
        memory=MemoryFacts(16 * GIB, 8 * GIB, 0, 0),
        process=ProcessLimits(address_space_bytes=400 * GIB),
    )
    found = {check.kind: check for check in examine(facts)}
    assert found["swap"].rating is Rating.OK
    assert "macOS adds more as needed" in found["swap"].message
    assert found["address-space-limit"].rating is Rating.OK
    assert found["not-available"].rating is Rating.NOTE
    for word in ("commit limit", "control groups", "huge pages", "memory areas"):
        assert word in found["not-available"].message


def test_the_heuristic_mode_names_what_it_refuses():
    (check,) = [c for c in examine(HEALTHY) if c.kind == "overcommit"]
    assert "40 GiB" in check.message  # 32 GiB of RAM and 8 GiB of swap


def test_without_proc_tasks_are_not_called_unlimited():
    blind = replace(
        HEALTHY, limits=LimitFacts(tasks=ResourceLimit(None, None)), memory=MemoryFacts()
    )
    (found,) = [each for each in examine(blind) if each.kind == "task-limit"]
    assert found.rating is Rating.NOTE
    assert "is unknown: /proc is missing or hidden" in found.message


def test_a_process_that_has_loaded_all_is_rated_by_what_is_left():
    """Such as that of `vmtool check`, in which a group of 60 MiB has 41 left and is enough."""
    tight = replace(HEALTHY, cgroup=CgroupFacts((CgroupLevel("/a", 1, 60 * MIB, None, 19 * MIB),)))
    for later, rating in ((0, Rating.NOTE), (6 * MIB, Rating.PROBLEM)):
        findings = examine(tight, loaded_later_bytes=later)
        assert [f.rating for f in findings if f.kind == "cgroup-limit"] == [rating]
