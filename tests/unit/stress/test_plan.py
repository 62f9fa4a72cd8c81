"""Plans fill gaps, refuse what contradicts itself, and know what they need at most."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vmtool.errors import RefusedError, UsageError
from vmtool.machine.facts import CommitFacts, MachineFacts, MemoryFacts, SystemFacts
from vmtool.machine.preflight import check
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.counters import ProcessLimits
from vmtool.memory.errors import MisalignedError
from vmtool.memory.threads import stack_bytes
from vmtool.results.stress import StressSettings
from vmtool.stress.demand import demand
from vmtool.stress.plan import (
    alone,
    device_peers,
    live_limit,
    method_names,
    run_settings,
    settle,
    with_huge,
)
from vmtool.stress.safe_memory import Room
from vmtool.units import GIB, KIB, MIB, TIB


def _settings(safe_bytes=8 * GIB, bound=None, how_to_raise=None, **options):
    settings = StressSettings(**{"methods": host_methods()[:1], **options})
    room = Room(safe_bytes, bound=bound, how_to_raise=how_to_raise)
    return settle(settings, open_backing(), room)


def test_the_default_run_is_short_and_small():
    settings = _settings()
    assert settings.duration_ns <= 5 * 10**9
    assert settings.cycles is None
    assert settings.budget_bytes == settings.capacity_bytes == 256 * MIB
    assert settings.granule_bytes == 2 * MIB


def test_a_huge_capacity_commits_only_a_safe_part():
    settings = _settings(capacity_bytes=TIB)
    assert settings.budget_bytes == 4 * GIB
    assert live_limit(settings) * settings.granule_bytes == 4 * GIB


def test_the_budget_is_shared_by_workers_and_threads():
    settings = _settings(workers=2, threads=4, budget_bytes=64 * MIB)
    assert live_limit(settings) == 4
    needs = demand(settings)
    assert needs.commit_bytes == 64 * MIB
    # The first of a worker's threads has the process's own stack; one more listens. Two read from
    # each worker.
    assert (needs.stack_bytes, needs.own_stack_bytes) == (4 * stack_bytes(), 2 * 2 * stack_bytes())
    one = alone(settings)
    assert (one.workers, one.threads, live_limit(one)) == (1, 1, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"cycles": 0},
        {"cycles": -1},
        {"duration_ns": 0},
        {"runs": 101},
        {"threads": 0},
        {"workers": 0},
        {"threads": 10**6},
        {"pattern": "zigzag"},
        {"touch": "none", "verify": "full"},
        {"capacity_bytes": MIB, "granule_bytes": 2 * MIB},
        {"budget_bytes": GIB, "capacity_bytes": 2 * MIB},
    ],
)
def test_what_can_never_work_is_wrong_usage(options):
    with pytest.raises(UsageError):
        _settings(**options)


@pytest.mark.parametrize(
    ("options", "legal"),
    [
        ({"granule_bytes": 2 * MIB + 1}, 2 * MIB + open_backing().granularity),
        ({"granule_bytes": 1}, open_backing().granularity),
        ({"granule_bytes": 2 * MIB, "capacity_bytes": 5 * MIB}, 6 * MIB),
    ],
)
def test_a_misaligned_size_names_a_legal_one(options, legal):
    with pytest.raises(MisalignedError) as caught:
        _settings(**options)
    assert caught.value.legal == legal
    assert str(legal) in caught.value.hint


def test_a_budget_below_one_granule_a_thread_is_refused_with_what_would_do():
    with pytest.raises(RefusedError) as caught:
        _settings(threads=4, budget_bytes=7 * MIB)
    assert str(8 * MIB) in caught.value.hint


def test_a_machine_without_memory_is_refused():
    with pytest.raises(RefusedError):
        _settings(safe_bytes=MIB)


def test_half_of_what_is_safe_is_refused_if_it_holds_no_granule():
    with pytest.raises(
        RefusedError, match=r"half of what is safe to commit here, 1\.5 MiB"
    ) as caught:
        _settings(
            safe_bytes=3 * MIB, bound="RLIMIT_AS is 34 MiB", how_to_raise="ulimit -v unlimited"
        )
    assert caught.value.cause == "RLIMIT_AS is 34 MiB"
    assert caught.value.hint.endswith("or a smaller granule, or ulimit -v unlimited")


def test_nothing_to_verify_switches_verification_off():
    assert _settings(touch="none").verify == "off"


def test_scattered_patterns_demand_an_area_for_each_granule():
    random = demand(_settings(pattern="random", granule_bytes=64 * KIB)).mappings
    tail = demand(_settings(pattern="tail", granule_bytes=64 * KIB)).mappings
    assert random > 2000
    assert tail < 10


def test_the_reservations_of_advise_are_writable_as_a_whole():
    def writable(*methods):
        plan = _settings(
            methods=methods, threads=2, capacity_bytes=256 * MIB, budget_bytes=64 * MIB
        )
        return demand(plan).writable_bytes

    assert writable("fixed") == 64 * MIB
    assert writable("advise") == 512 * MIB
    assert writable("fixed", "advise") == 576 * MIB


def test_a_run_of_few_cycles_demands_few_areas():
    granule = open_backing().granularity
    few = demand(_settings(pattern="random", granule_bytes=granule, cycles=10))
    assert few.mappings <= 21
    assert few.commit_bytes <= 10 * granule


@pytest.mark.parametrize(("runs", "cycles"), [(5, 23), (3, 3), (1, 7), (4, 1000)])
def test_runs_share_the_cycles_to_the_last_one(runs, cycles):
    settings = _settings(runs=runs, cycles=cycles)
    shares = [run_settings(settings, run).cycles for run in range(settings.runs)]
    assert sum(shares) == cycles
    assert max(shares) - min(shares) <= 1


def test_runs_share_the_time_and_shuffle_the_methods():
    settings = _settings(methods=host_methods(), runs=20)
    shares = [run_settings(settings, run) for run in range(20)]
    assert sum(share.duration_ns for share in shares) <= settings.duration_ns
    assert {share.runs for share in shares} == {1}
    assert len({share.methods for share in shares}) > 1
    assert all(set(share.methods) == set(host_methods()) for share in shares)
    assert shares == [run_settings(settings, run) for run in range(20)]  # by the seed alone


def test_the_default_is_five_runs_but_one_with_faults_and_never_more_than_cycles():
    assert _settings().runs == 5
    assert _settings(inject=("mmap:3",)).runs == 1
    assert _settings(cycles=2).runs == 2


def test_only_the_first_run_holds_the_whole_budget():
    settings = _settings(hold=True, runs=3)
    assert [run_settings(settings, run).hold for run in range(3)] == [True, False, False]
    few = demand(_settings(hold=True, cycles=1, pattern="random"))
    assert few.commit_bytes == 256 * MIB


def test_huge_pages_are_measured_too_where_they_are_on_request():
    settings = _settings()
    both = with_huge(("fixed", "advise"), settings, "madvise")
    assert both == ("fixed", "fixed+huge", "advise", "advise+huge")
    assert with_huge(("fixed",), settings, "always") == ("fixed",)
    assert with_huge(("fixed",), replace(settings, huge=True), "madvise") == ("fixed",)


def test_methods_are_one_all_or_an_error_that_names_them():
    known = host_methods()
    assert method_names("host", None) == known[:1]
    assert method_names("host", "all") == known
    assert method_names("host", known[-1]) == known[-1:]
    with pytest.raises(UsageError) as caught:
        method_names("host", "malloc")
    assert known[0] in caught.value.hint
    with pytest.raises(UsageError) as caught:
        method_names("host", f"{known[0]} --huge")
    assert caught.value.hint == f"write {known[0]}+huge"


_ROOMY = MachineFacts(
    system=SystemFacts("Linux", "6.1", "x86_64", "cpu", 8, 8, "3.11.7", "0.1.0"),
    page_bytes=4096,
    memory=MemoryFacts(64 * GIB, 60 * GIB),
    commit=CommitFacts(1),
)
_LEFT = 300 * MIB
_TIGHT = {
    "address-space-limit": replace(
        _ROOMY, process=ProcessLimits(address_space_bytes=0, address_space_limit_bytes=_LEFT)
    ),
    "data-limit": replace(_ROOMY, process=ProcessLimits(data_bytes=0, data_limit_bytes=_LEFT)),
    "available-memory": replace(_ROOMY, memory=MemoryFacts(64 * GIB, 600 * MIB)),
    "commit-limit": replace(_ROOMY, commit=CommitFacts(2, 50, 600 * MIB, 0)),
}


@given(
    kind=st.sampled_from(sorted(_TIGHT)),
    methods=st.lists(st.sampled_from(host_methods()), min_size=1, unique=True).map(tuple),
    pattern=st.sampled_from(["tail", "random", "block-grow-partial-shrink"]),
    granule=st.sampled_from([64 * KIB, 3 * MIB, 2 * MIB]),
    granules=st.integers(1, 400),
    threads=st.integers(1, 4),
    workers=st.integers(1, 4),
)
def test_a_hint_that_is_followed_leads_past_that_limit(kind, methods, granules, **options):
    granule = options.pop("granule")
    options |= {"methods": methods, "granule_bytes": granule}
    asked = {"capacity_bytes": granules * granule}

    def refusals(values):
        findings = check(demand(_settings(**options, **values)), _TIGHT[kind])
        return {(found.kind, found.message[:18]): found.remedy for found in findings}

    found = refusals(asked)
    assume(found)
    (which, remedy), *_ = found.items()
    hint = re.match(r"use --(capacity|budget) (\d+) ", remedy)
    if hint is None:
        # Where not even one granule for each is safe, or only the limit itself helps.
        assert not remedy.startswith("use")
        return
    assert which not in refusals(asked | {f"{hint[1]}_bytes": int(hint[2])})


def test_where_nothing_is_safe_no_budget_is_advised_but_the_limit_named():
    limits = {"bound": "RLIMIT_DATA is 48 MiB", "how_to_raise": "ulimit -d unlimited"}
    with pytest.raises(RefusedError, match="nothing is safe") as caught:
        _settings(safe_bytes=0, **limits)
    assert (caught.value.cause, caught.value.hint) == tuple(limits.values())
    with pytest.raises(RefusedError, match="1 MiB is safe to commit here") as caught:
        _settings(safe_bytes=MIB, **limits)
    assert caught.value.hint == "use a smaller granule, or ulimit -d unlimited"
    with pytest.raises(RefusedError) as caught:
        _settings(safe_bytes=0, workers=8, **limits)
    assert caught.value.hint == "use fewer --workers, or ulimit -d unlimited"
    # Here a budget beyond the half that is the default does it.
    with pytest.raises(RefusedError) as caught:
        _settings(safe_bytes=3 * MIB, **limits)
    assert f"use a budget of 2 MiB ({2 * MIB} bytes)" in caught.value.hint


def test_devices_that_reach_each_other_are_peers(fakecuda):
    both = StressSettings(backing="cuda:all", devices=("cuda:0", "cuda:1"), workers=2)
    fakecuda.reset(devices=3)
    assert [device_peers(both, place) for place in both.places] == [(1,), (0,)]
    assert device_peers(StressSettings(backing="cuda:0"), "cuda:0") == ()
    assert alone(both).backing_of(0) == "cuda:0"
    assert device_peers(alone(both), "cuda:0") == (1,)  # scaling compares the same calls
    fakecuda.reset(devices=3, peers=0)
    assert device_peers(both, "cuda:0") == ()
