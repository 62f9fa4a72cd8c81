"""Each condition is found by exactly one check, rated, with one remedy."""

from dataclasses import replace

import pytest

from vmtool.machine.doctor import Rating, examine
from vmtool.machine.facts import (
    CgroupFacts,
    CgroupLevel,
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    MachineFacts,
    MemoryFacts,
    SystemFacts,
)
from vmtool.memory.counters import ProcessLimits
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
    ("mapping-limit", "note", {"process": replace(HEALTHY.process, max_mappings=65530)}),
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
    assert "32,500 scattered granules" in check.message
    assert check.remedy == "sysctl -w vm.max_map_count=262144"


def test_the_remedy_names_the_file_that_binds():
    level = CgroupLevel("/cg/app", 2, limit_bytes=8 * GIB, high_bytes=4 * GIB, used_bytes=0)
    facts = replace(HEALTHY, cgroup=CgroupFacts((level,)))
    (check,) = [c for c in examine(facts) if c.kind == "cgroup-limit"]
    assert "/cg/app/memory.high" in check.remedy
    v1 = replace(level, version=1, high_bytes=None)
    facts = replace(HEALTHY, cgroup=CgroupFacts((v1,)))
    (check,) = [c for c in examine(facts) if c.kind == "cgroup-limit"]
    assert "/cg/app/memory.limit_in_bytes" in check.remedy


WINDOWS = MachineFacts(
    system=SystemFacts("Windows", "10", "AMD64", "cpu", 8, None, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(32 * GIB, 20 * GIB, 16 * GIB),
    commit=CommitFacts(limit_bytes=48 * GIB, charge_bytes=10 * GIB, enforced=True),
)


def test_the_commit_limit_of_windows_is_rated_by_what_is_left():
    assert {check.rating for check in examine(WINDOWS)} == {Rating.OK}
    full = replace(WINDOWS.commit, charge_bytes=48 * GIB - MIB)
    (check,) = [c for c in examine(replace(WINDOWS, commit=full)) if c.rating is not Rating.OK]
    assert (check.kind, check.rating) == ("commit-limit", Rating.PROBLEM)
    assert "page file" in check.remedy


def test_wine_is_not_taken_for_windows():
    wine = replace(WINDOWS, system=replace(WINDOWS.system, os="Wine", kernel="10.0"))
    assert "wine" in [check.kind for check in examine(wine)]


def test_a_machine_that_tells_nothing_is_not_rated_beyond_its_pages():
    silent = MachineFacts(system=replace(HEALTHY.system, os="Darwin"), page_bytes=16 * KIB)
    assert [check.kind for check in examine(silent)] == ["page-size", "not-available"]


def test_what_macos_tells_is_rated_and_what_it_lacks_is_named():
    facts = MachineFacts(
        system=replace(HEALTHY.system, os="Darwin"),
        page_bytes=16 * KIB,
        memory=MemoryFacts(16 * GIB, 8 * GIB, 0, 0),
        process=ProcessLimits(address_space_bytes=400 * GIB),
    )
    found = {check.kind: check for check in examine(facts)}
    assert found["swap"].rating is Rating.OK
    assert "macOS makes more as it needs it" in found["swap"].message
    assert found["address-space-limit"].rating is Rating.OK
    assert found["not-available"].rating is Rating.NOTE
    for word in ("commit limit", "control groups", "huge pages", "memory areas"):
        assert word in found["not-available"].message


def test_the_heuristic_mode_names_what_it_refuses():
    (check,) = [c for c in examine(HEALTHY) if c.kind == "overcommit"]
    assert "40 GiB" in check.message  # 32 GiB of RAM and 8 GiB of swap
