"""A plan is held against every limit before anything is mapped, and the safe number is named."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import ExitCode, RefusedError
from vmtool.machine.cgroups import CgroupFacts, CgroupLevel, GroupLimit
from vmtool.machine.facts import (
    CommitFacts,
    HugePool,
    LimitFacts,
    MachineFacts,
    MemoryFacts,
    SystemFacts,
)
from vmtool.machine.memory_limit_sentences import BOUND_WORDS, describe_safe
from vmtool.machine.preflight import (
    WORKER_BYTES,
    Demand,
    Severity,
    SizeOption,
    check,
    page_table_bytes,
    refuse_unsafe,
    refuse_without_memory,
    safe_for_workers,
)
from vmtool.memory.counters import ProcessLimits
from vmtool.memory.rlimits_and_privileges import ResourceLimit
from vmtool.units import GIB, KIB, MIB, TIB

ROOMY = MachineFacts(
    system=SystemFacts("Linux", "6.1", "x86_64", "cpu", 8, 8, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(32 * GIB, 20 * GIB, 0, 0),
    commit=CommitFacts(0, 50, 16 * GIB, 2 * GIB),
    process=ProcessLimits(
        mappings=100, max_mappings=65530, address_space_bytes=GIB, data_bytes=MIB
    ),
)


def kinds(demand, facts):
    return [(finding.kind, finding.severity) for finding in check(demand, facts)]


def test_a_modest_plan_meets_no_limit():
    demand = Demand(reserve_bytes=TIB, commit_bytes=GIB, mappings=1000, largest_commit_bytes=GIB)
    assert check(demand, ROOMY) == ()
    refuse_unsafe(check(demand, ROOMY))


def test_more_than_the_safe_part_of_ram_is_refused_with_a_number_that_passes():
    (finding,) = check(Demand(commit_bytes=19 * GIB), ROOMY)
    assert (finding.kind, finding.severity) == ("available-memory", Severity.REFUSE)
    assert 15 * GIB < finding.safe < 16 * GIB
    assert check(Demand(commit_bytes=finding.safe), ROOMY) == ()
    with pytest.raises(RefusedError, match="19 GiB") as caught:
        refuse_unsafe([finding])
    assert caught.value.exit_code == ExitCode.REFUSED
    assert str(finding.safe) in caught.value.hint


@pytest.mark.parametrize(
    "facts",
    [
        replace(ROOMY, memory=MemoryFacts(32 * GIB, 0)),
        replace(ROOMY, process=replace(ROOMY.process, address_space_limit_bytes=1)),
        replace(ROOMY, process=replace(ROOMY.process, data_limit_bytes=1)),
        replace(ROOMY, process=replace(ROOMY.process, max_mappings=1)),
    ],
)
def test_where_nothing_is_safe_no_hint_says_use_nothing(facts):
    (finding,) = check(Demand(reserve_bytes=GIB, commit_bytes=GIB, mappings=9), facts)
    assert finding.safe == 0
    assert not re.search(r"\b0 ", finding.remedy)
    assert finding.remedy


def test_the_cgroup_binds_before_ram():
    level = CgroupLevel("/sys/fs/cgroup/app", 2, limit_bytes=2 * GIB, used_bytes=GIB)
    facts = replace(ROOMY, cgroup=CgroupFacts((level,)))
    (finding,) = check(Demand(commit_bytes=GIB), facts)
    assert finding.kind == "cgroup-limit"
    assert "/sys/fs/cgroup/app" in finding.message


def test_where_a_small_cgroup_leaves_nothing_the_hint_is_to_raise_it():
    level = CgroupLevel("/sys/fs/cgroup/app", 2, limit_bytes=64 * MIB, used_bytes=63 * MIB)
    (finding,) = check(Demand(commit_bytes=MIB), replace(ROOMY, cgroup=CgroupFacts((level,))))
    assert finding.safe == 0
    assert "raise the limit of that control group: /sys/fs/cgroup/app/memory.max" in finding.remedy


def test_the_commit_limit_binds_only_in_mode_2():
    tight = CommitFacts(2, 50, 4 * GIB, 3 * GIB)
    assert kinds(Demand(commit_bytes=GIB), replace(ROOMY, commit=tight)) == [
        ("commit-limit", Severity.REFUSE)
    ]
    assert kinds(Demand(commit_bytes=GIB), replace(ROOMY, commit=replace(tight, mode=1))) == []


def test_page_tables_are_part_of_the_need():
    facts = replace(ROOMY, memory=MemoryFacts(32 * GIB, 10 * GIB))
    exact = facts.safe_bytes
    assert check(Demand(commit_bytes=exact, page_table_bytes=0), facts) == ()
    (finding,) = check(Demand(commit_bytes=exact), facts)
    assert finding.safe < exact
    assert check(Demand(commit_bytes=finding.safe), facts) == ()


@given(st.integers(1, 1 << 50), st.integers(0, 1 << 40), st.sampled_from([4096, 16384, 65536]))
def test_the_safe_number_is_always_safe(commit, available, page):
    facts = replace(ROOMY, page_bytes=page, memory=MemoryFacts(available, available))
    for finding in check(Demand(commit_bytes=commit), facts):
        assert finding.safe < commit
        assert check(Demand(commit_bytes=finding.safe), facts) == ()


def test_page_tables_take_8_bytes_a_page():
    assert page_table_bytes(GIB, 4096) == 2 * MIB
    assert page_table_bytes(1, 64 * KIB) == 8


def test_too_many_areas_are_refused_and_the_safe_number_passes():
    (finding,) = check(Demand(mappings=65530), ROOMY)
    assert finding.kind == "mapping-limit"
    assert check(Demand(mappings=finding.safe), ROOMY) == ()
    assert check(Demand(mappings=finding.safe + 1), ROOMY) != ()


def test_a_reservation_over_rlimit_as_is_refused():
    facts = replace(ROOMY, process=replace(ROOMY.process, address_space_limit_bytes=4 * GIB))
    (finding,) = check(Demand(reserve_bytes=4 * GIB), facts)
    assert finding.kind == "address-space-limit"
    assert check(Demand(reserve_bytes=finding.safe), facts) == ()


def test_more_addresses_than_a_processor_has_is_only_a_warning():
    assert kinds(Demand(reserve_bytes=200 * TIB), ROOMY) == [("no-address-range", Severity.WARN)]


def test_rlimit_data_counts_per_process():
    facts = replace(ROOMY, process=replace(ROOMY.process, data_limit_bytes=2 * GIB))
    assert check(Demand(commit_bytes=3 * GIB, processes=2), facts) == ()
    assert kinds(Demand(commit_bytes=2 * GIB), facts) == [("data-limit", Severity.REFUSE)]
    assert facts.safe_bytes < 2 * GIB


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("available-memory", {"memory": MemoryFacts(32 * GIB, 3 * GIB)}),
        ("cgroup-limit", {"cgroup": CgroupFacts((CgroupLevel("/cg", 2, 3 * GIB),))}),
        ("cgroup-limit", {"cgroup": CgroupFacts((CgroupLevel("/cg", 2, None, 3 * GIB),))}),
        ("commit-limit", {"commit": CommitFacts(2, 50, 16 * GIB, 13 * GIB)}),
        (
            "address-space-limit",
            {"process": replace(ROOMY.process, address_space_limit_bytes=4 * GIB)},
        ),
        ("data-limit", {"process": replace(ROOMY.process, data_limit_bytes=3 * GIB + MIB)}),
    ],
)
def test_whatever_binds_bounds_what_is_available_and_safe(kind, changes):
    facts = replace(ROOMY, **changes)
    assert facts.available_bytes == 3 * GIB
    assert facts.limiting_bound == kind
    assert kind in BOUND_WORDS
    safe = facts.safe_bytes
    assert 2 * GIB < safe < 3 * GIB

    def demand(nbytes):
        return Demand(reserve_bytes=nbytes, commit_bytes=nbytes, page_table_bytes=0)

    assert check(demand(safe), facts) == ()
    assert kinds(demand(safe + MIB), facts) == [(kind, Severity.REFUSE)]


def test_a_writable_reservation_counts_whole_where_it_is_private_memory_that_is_limited():
    demand = Demand(reserve_bytes=8 * GIB, commit_bytes=GIB, writable_bytes=8 * GIB)
    assert check(demand, ROOMY) == ()
    limited = replace(ROOMY, process=replace(ROOMY.process, data_limit_bytes=4 * GIB))
    assert kinds(demand, limited) == [("data-limit", Severity.REFUSE)]
    strict = replace(ROOMY, commit=CommitFacts(2, 50, 8 * GIB, GIB))
    (finding,) = check(demand, strict)
    assert (finding.kind, finding.severity) == ("commit-limit", Severity.REFUSE)
    assert check(replace(demand, writable_bytes=finding.safe), strict) == ()
    assert check(replace(demand, writable_bytes=None), strict) == ()


def test_one_commit_over_ram_and_swap_is_refused_in_the_heuristic_mode_only():
    demand = Demand(largest_commit_bytes=33 * GIB)
    assert kinds(demand, ROOMY) == [("heuristic-overcommit", Severity.REFUSE)]
    assert kinds(demand, replace(ROOMY, commit=replace(ROOMY.commit, mode=1))) == []


def test_device_memory_is_compared_with_what_is_free():
    assert check(Demand(device_bytes=9 * GIB, device_free_bytes=10 * GIB), ROOMY) == ()
    (finding,) = check(Demand(device_bytes=10 * GIB, device_free_bytes=10 * GIB), ROOMY)
    assert (finding.kind, finding.safe) == ("device-memory", 9 * GIB)


def test_unknown_facts_allow_a_gibibyte_and_warn_beyond():
    unknown = MachineFacts(system=ROOMY.system, page_bytes=4096)
    assert check(Demand(commit_bytes=900 * MIB), unknown) == ()
    assert kinds(Demand(commit_bytes=2 * GIB), unknown) == [("unknown", Severity.WARN)]


def test_refusals_come_before_warnings():
    demand = Demand(reserve_bytes=200 * TIB, mappings=10**6)
    assert [finding.severity for finding in check(demand, ROOMY)] == [
        Severity.REFUSE,
        Severity.WARN,
    ]


def test_a_hint_names_the_option_and_a_value_that_it_takes():
    option = SizeOption("--capacity", 2 * MIB, times=3)
    assert option.advise(203 * MIB) == f"use --capacity {66 * MIB} (66 MiB) or less"
    # Two processes share what this one option gives them.
    assert (
        replace(option, times=Fraction(1, 2)).advise(MIB)
        == f"use --capacity {2 * MIB} (2 MiB) or less"
    )
    assert option.advise(5 * MIB) is None  # three buffers of a granule each do not fit
    assert "use a smaller --context: 5 MiB (5242880 bytes)" in SizeOption("--context").advise(
        5 * MIB
    )


def test_where_not_even_a_granule_is_safe_the_hint_is_to_raise_the_limit():
    facts = replace(ROOMY, process=replace(ROOMY.process, address_space_limit_bytes=GIB + 3 * MIB))
    demand = Demand(reserve_bytes=GIB, reserve_option=SizeOption("--capacity", 2 * MIB))
    (finding,) = check(demand, facts)
    assert finding.safe == MIB
    assert finding.remedy.startswith("ulimit -v unlimited")


def small(**changes):
    """Return a machine on which hardly anything is left."""
    return replace(ROOMY, **changes)


def test_workers_own_memory_is_part_of_the_plan():
    """100 workers in a group of 1 GiB, of which the OOM killer ended 13."""
    level = CgroupLevel("/cg/app", 2, limit_bytes=GIB, used_bytes=0)
    facts = small(cgroup=CgroupFacts((level,)))
    plan = Demand(commit_bytes=64 * MIB, processes=100, worker_bytes=WORKER_BYTES)
    (shortage,) = check(plan, facts)
    assert (shortage.kind, shortage.severity) == ("cgroup-limit", Severity.REFUSE)
    assert "100 workers need 20 MiB each of their own" in shortage.message
    assert "fewer --workers" in shortage.remedy
    assert check(replace(plan, processes=20), facts) == ()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (small(cgroup=CgroupFacts(tasks=GroupLimit("/cg/app", 32, 20))), "pids.max"),
        (small(limits=LimitFacts(tasks=ResourceLimit(32, 32), tasks_used=20)), "RLIMIT_NPROC"),
    ],
)
def test_processes_and_threads_are_counted(facts, words):
    assert check(Demand(tasks=12), facts) == ()
    (shortage,) = check(Demand(tasks=13, processes=2, threads=2), facts)
    assert (shortage.kind, shortage.safe) == ("task-limit", 12)
    assert words in shortage.message
    assert shortage.remedy.startswith("use fewer --workers or --threads, or ")
    (shortage,) = check(Demand(tasks=13, threads=9), facts)
    assert shortage.remedy.startswith("use fewer --threads, or ")
    (shortage,) = check(Demand(tasks=13), facts)
    assert "fewer" not in shortage.remedy


@pytest.mark.parametrize("name", ["address_space", "data"])
def test_the_stacks_of_threads_are_counted(name):
    limits = {f"{name}_limit_bytes": 120 * MIB, f"{name}_bytes": 20 * MIB}
    facts = small(process=replace(ROOMY.process, **limits))
    kind = f"{name}-limit".replace("_", "-")
    plan = Demand(
        reserve_bytes=40 * MIB, writable_bytes=40 * MIB, worker_bytes=MIB, own_stack_bytes=100 * MIB
    )
    assert check(replace(plan, stack_bytes=60 * MIB), facts) == ()
    (shortage,) = check(replace(plan, stack_bytes=80 * MIB), facts)
    assert (shortage.kind, shortage.safe) == (kind, 20 * MIB)
    assert "beside 80 MiB for the stacks of threads" in shortage.message
    assert "make stacks smaller: ulimit -s 1024" in shortage.remedy
    (shortage,) = check(replace(plan, own_stack_bytes=101 * MIB, processes=9), facts)
    assert shortage.kind == kind
    assert "the threads that read from the workers need 101 MiB" in shortage.message
    assert shortage.remedy.startswith("use fewer --workers, or make stacks smaller")


def test_root_may_start_more_than_its_limit():
    limits = LimitFacts(tasks=ResourceLimit(32, 32), tasks_used=32, tasks_exempt=True)
    assert check(Demand(tasks=13), small(limits=limits)) == ()


def test_workers_take_of_the_machine_and_not_of_each_processs_limit():
    level = CgroupLevel("/cg/app", 2, limit_bytes=GIB, used_bytes=0)
    grouped = small(cgroup=CgroupFacts((level,)))
    assert safe_for_workers(grouped, 2) == 768 * MIB - 2 * WORKER_BYTES
    process = replace(ROOMY.process, data_limit_bytes=50 * MIB, data_bytes=14 * MIB)
    assert safe_for_workers(small(process=process), 2) == 18 * MIB


def test_the_hint_for_one_worker_does_not_say_to_use_fewer():
    limits = LimitFacts(descriptors=ResourceLimit(16, 16), descriptors_used=4)
    (shortage,) = check(Demand(descriptors=19), small(limits=limits))
    assert (shortage.kind, shortage.safe) == ("descriptor-limit", 4)
    assert "RLIMIT_NOFILE is 16, 4 are open" in shortage.message
    assert "workers" not in shortage.remedy


def test_the_reserve_scales_with_what_there_is():
    """A group of 250 MiB with 237 MiB free, in which nothing at all was safe."""
    level = CgroupLevel("/cg/app", 2, limit_bytes=250 * MIB, used_bytes=13 * MIB)
    facts = small(cgroup=CgroupFacts((level,)))
    assert facts.safe_bytes == 142 * MIB
    words, _ = describe_safe(facts)
    assert words.endswith("; 95 MiB of it is kept in reserve")
    refuse_without_memory(facts)


def test_where_nothing_is_safe_the_limit_is_named():
    level = CgroupLevel("/cg/app", 2, limit_bytes=64 * MIB, used_bytes=64 * MIB)
    with pytest.raises(RefusedError, match="control group /cg/app leaves 0 B of 64 MiB") as caught:
        refuse_without_memory(small(cgroup=CgroupFacts((level,))))
    assert "/cg/app/memory.max" in caught.value.hint


def test_a_small_limit_of_memory_areas_leaves_most_of_them():
    process = replace(ROOMY.process, max_mappings=300, mappings=130)
    (shortage,) = check(Demand(mappings=134), small(process=process))
    assert shortage.safe == 133


def test_reserved_huge_pages_are_counted_apart_from_other_memory():
    """What is in the pool cannot be committed otherwise, and nothing else can be committed in it."""
    pools = (HugePool(2 * MIB, total=40, free=20, available=16),)
    facts = replace(
        ROOMY, memory=MemoryFacts(32 * GIB, GIB), huge_pages=replace(ROOMY.huge_pages, pools=pools)
    )
    fits = Demand(commit_bytes=32 * MIB, huge_page_bytes=2 * MIB)
    assert check(fits, facts) == ()
    (shortage,) = check(replace(fits, commit_bytes=64 * MIB), facts)
    assert (shortage.kind, shortage.safe) == ("huge-page-pool", 32 * MIB)
    assert "the pool of huge pages of 2 MiB has 32 MiB free" in shortage.message
    assert "echo 56 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages" in shortage.remedy
    small = CgroupFacts(huge_pages=(GroupLimit("/cg/app", 8 * MIB, 2 * MIB, 2 * MIB),))
    (shortage,) = check(fits, replace(facts, cgroup=small))
    assert (shortage.kind, shortage.safe) == ("huge-page-group", 6 * MIB)
    assert "control group /cg/app leaves 6 MiB of 8 MiB" in shortage.message
