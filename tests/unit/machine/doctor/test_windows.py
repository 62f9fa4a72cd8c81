"""What doctor says about Windows and Wine, from recorded facts; runs on every platform."""

from dataclasses import replace

import pytest

from vmtool.machine.doctor.examine import examine
from vmtool.machine.doctor.findings import Rating
from vmtool.machine.facts import (
    CommitFacts,
    HugePageFacts,
    MachineFacts,
    MemoryFacts,
    SystemFacts,
)
from vmtool.units import GIB, MIB

HEALTHY = MachineFacts(
    system=SystemFacts("Windows", "11", "AMD64", "cpu", 8, None, "3.11.9", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(32 * GIB, 20 * GIB, 16 * GIB),
    huge_pages=HugePageFacts(large_bytes=2 * MIB, large_privilege=True),
    commit=CommitFacts(limit_bytes=48 * GIB, charge_bytes=12 * GIB, enforced=True),
)
WINE = replace(
    HEALTHY,
    system=replace(HEALTHY.system, os="Wine", kernel="10.0"),
    memory=MemoryFacts(32 * GIB, 20 * GIB),
    commit=replace(HEALTHY.commit, enforced=False),
)


def raised(facts):
    return [(c.kind, c.rating.value) for c in examine(facts) if c.rating is not Rating.OK]


def test_a_healthy_machine_has_nothing_to_change():
    kinds = {check.kind for check in examine(HEALTHY)}
    assert raised(HEALTHY) == []
    assert {"commit-limit", "page-file", "large-pages"} <= kinds
    assert not {"no-swap", "swap", "swap-full"} & kinds


@pytest.mark.parametrize(
    ("kind", "rating", "changes"),
    [
        ("no-page-file", "note", {"memory": replace(HEALTHY.memory, swap_total_bytes=0)}),
        (
            "large-page-privilege",
            "note",
            {"huge_pages": replace(HEALTHY.huge_pages, large_privilege=False)},
        ),
    ],
)
def test_a_condition_is_one_finding_with_one_remedy(kind, rating, changes):
    facts = replace(HEALTHY, **changes)
    assert raised(facts) == [(kind, rating)]
    assert all(check.remedy for check in examine(facts) if check.rating is not Rating.OK)


def test_the_commit_limit_binds_what_is_safe():
    tight = replace(HEALTHY, commit=replace(HEALTHY.commit, charge_bytes=46 * GIB))
    assert tight.machine_available_bytes == 2 * GIB
    assert WINE.machine_available_bytes == 20 * GIB


def test_nothing_of_this_is_said_elsewhere():
    system = replace(HEALTHY.system, os="Darwin")
    other = replace(HEALTHY, system=system, huge_pages=HugePageFacts())
    kinds = {check.kind for check in examine(other)}
    assert not {"page-file", "large-pages", "large-page-privilege"} & kinds


def test_the_commit_limit_is_rated_by_what_is_left():
    full = replace(HEALTHY, commit=replace(HEALTHY.commit, charge_bytes=48 * GIB - MIB))
    assert raised(full) == [("commit-limit", "problem")]
    (check,) = [check for check in examine(full) if check.kind == "commit-limit"]
    assert "page file" in check.remedy


def test_wine_is_not_taken_for_windows():
    assert "wine" in [check.kind for check in examine(WINE)]
