"""Which machines differ: found and explained, without false ones, and not decided without enough data."""

import random
from collections import Counter
from functools import partial

import pytest
from printed import printed

from vmtool.fleet.judge import baseline_of, judge, reasons
from vmtool.fleet.machine_readings import MachineReading
from vmtool.fleet.machines import Fleet
from vmtool.report.fleet import answer_text, to_text

COMMIT, RATE = "stress.fixed.commit.median_ns", "stress.fixed.cycles_per_s"


def fleet_of(machines, *, slow=(), by=1.5, runs=5, seed=1, facts=lambda _: {}):
    draw = random.Random(seed)
    fleet = Fleet()
    for number in range(machines):
        own = draw.lognormvariate(0, 0.02) * (by if number in slow else 1)
        made = []
        for _ in range(runs):
            value = 4e4 * own * draw.lognormvariate(0, 0.05)
            made.append({COMMIT: value, RATE: 1e9 / (value + 5e4 * draw.lognormvariate(0, 0.05))})
        known = {"system.cpu_model": "A", "system.kernel": "6.1", **facts(number)}
        host = f"node{number:03}"
        fleet.add(MachineReading(host, host, "vmtool.stress", "0", known, tuple(made)))
    return fleet


def outliers(result):
    return {outlier.host for group in result.groups for outlier in group.outliers}


def test_a_slow_machine_is_named_with_the_only_fact_that_it_does_not_share():
    thp = {17: "never"}
    fleet = fleet_of(
        40, slow={17}, facts=lambda n: {"thp": thp.get(n, "madvise"), "rack": str(n % 4)}
    )
    result = judge(fleet)
    assert outliers(result) == {"node017"}
    (group,) = result.groups
    commit = next(each for each in group.outliers if each.measure == COMMIT)
    assert commit.ratio == pytest.approx(1.5, rel=0.1)
    assert [(r.fact, r.value, r.usual) for r in commit.reasons][:1] == [("thp", "never", "madvise")]
    assert {fact.fact: dict(fact.machines) for fact in group.facts}["thp"] == {
        "madvise": 39,
        "never": 1,
    }


def test_machines_that_are_alike_are_not_named():
    named = [outliers(judge(fleet_of(60, seed=seed))) for seed in range(20)]
    assert named == [set()] * 20


@pytest.mark.parametrize(("machines", "runs"), [(7, 5), (30, 1), (1, 5)])
def test_too_few_machines_or_runs_are_not_decided(machines, runs):
    result = judge(
        fleet_of(machines, slow={0}, by=5, runs=runs, facts=lambda n: {"thp": str(n % 2)})
    )
    (group,) = result.groups
    assert not group.decided
    assert not group.outliers
    assert result.tests == 0
    assert len(group.single_runs) == (machines if runs == 1 else 0)
    assert group.undecided == ("single" if machines == 30 else "few")
    assert ("thp" in {fact.fact for fact in group.facts}) == (machines > 1)


def test_a_machine_with_one_run_is_not_judged_by_the_others():
    fleet = fleet_of(20)
    fleet.add(
        MachineReading(
            "odd", "odd", "vmtool.stress", "0", {"system.cpu_model": "A"}, ({COMMIT: 9e9},)
        )
    )
    (group,) = judge(fleet).groups
    assert group.decided
    assert not group.outliers
    assert group.single_runs == ("odd",)


def test_half_of_the_machines_slower_is_a_split_with_its_reason():
    fleet = fleet_of(
        40,
        slow=set(range(0, 40, 2)),
        facts=lambda n: {"governor": "powersave" if n % 2 == 0 else "performance"},
    )
    (group,) = judge(fleet).groups
    assert not group.outliers
    split = next(each for each in group.splits if each.measure == COMMIT)
    low, high = split.parts
    assert high.usual / low.usual == pytest.approx(1.5, rel=0.1)
    assert high.hosts == tuple(f"node{n:03}" for n in range(0, 40, 2))
    assert not low.reasons  # of two parts that are as large, the first is the one to compare with
    (reason,) = high.reasons
    assert (reason.fact, reason.separation) == ("governor", 1)


@pytest.mark.parametrize("parts", [2, 3])
def test_the_report_of_an_even_split_gives_figures_and_reasons_of_those_it_names(parts):
    fleet = uneven(12 * parts, lambda n: (1, 1.5, 2.2)[n % parts])
    text = " ".join("\n".join(printed(partial(to_text, judge(fleet)))).split())
    assert "No recorded fact" not in text
    assert text.lower().count("the only fact that separates them: setting") == parts - 1
    named, figures = text.index("12 machines (node0001"), text.index(f"{COMMIT} ")
    first = float(text[figures:].split()[1])
    assert named < figures
    assert first == pytest.approx(60, rel=0.1)  # of those named first, which are not the fastest


def uneven(machines, by, seed=1):
    """Machines of which each is slower by its own factor, with a fact that follows *by*."""
    draw = random.Random(seed)
    fleet = Fleet()
    for number in range(machines):
        own = by(number) * draw.lognormvariate(0, 0.02)
        runs = tuple({COMMIT: 4e4 * own * draw.lognormvariate(0, 0.05)} for _ in range(5))
        facts = {"setting": str(by(number))}
        host = f"node{number:04}"
        fleet.add(MachineReading(host, host, "vmtool.stress", "0", facts, runs))
    return fleet


@pytest.mark.parametrize(
    ("machines", "slow", "factor"),
    [(50, 8, 1.5), (50, 9, 1.2), (60, 10, 1.5), (24, 4, 1.5), (1000, 150, 1.5), (1000, 199, 1.2)],
)
def test_fewer_than_a_fifth_are_outliers_and_no_split(machines, slow, factor):
    (group,) = judge(uneven(machines, lambda n: factor if n < slow else 1)).groups
    assert not group.splits
    found = {each.host for each in group.outliers}
    assert len(found) >= 0.95 * slow
    assert all(int(host.removeprefix("node")) < slow for host in found)
    assert group.outliers[0].reasons[0].fact == "setting"


@pytest.mark.parametrize(
    ("machines", "factor", "odd"),
    [(24, 1.5, 3), (24, 1.2, 1.6), (40, 1.5, 2.5), (100, 1.5, 10), (1000, 1.5, 10), (40, 1.5, 0.3)],
)
def test_one_odd_machine_does_not_hide_a_split_nor_a_split_the_machine(machines, factor, odd):
    fleet = uneven(machines, lambda n: odd if n == 3 else factor if n % 2 else 1)
    (group,) = judge(fleet).groups
    (split,) = group.splits
    sizes = [len(part.hosts) for part in split.parts]
    assert sizes == pytest.approx([machines / 2] * 2, abs=max(1, machines / 100))
    assert split.parts[1].usual / split.parts[0].usual == pytest.approx(factor, rel=0.05)
    assert [each.host for each in group.outliers] == ["node0003"]
    assert not baseline_of(fleet).groups


def test_three_settings_are_three_parts_with_their_reasons():
    (group,) = judge(uneven(60, lambda n: (1, 1.5, 2.2)[n % 3])).groups
    (split,) = group.splits
    assert [len(part.hosts) for part in split.parts] == [20, 20, 20]
    assert sorted([reason.fact for reason in part.reasons] for part in split.parts) == [
        [],
        ["setting"],
        ["setting"],
    ]
    assert not group.outliers


@pytest.mark.parametrize("machines", [8, 12, 24, 100])
def test_machines_of_one_wide_distribution_are_no_parts(machines):
    draw = random.Random(machines)
    splits = 0
    for _ in range(20):
        width = [draw.lognormvariate(0, 0.1) for _ in range(machines)]
        (group,) = judge(uneven(machines, width.__getitem__, seed=draw.random())).groups
        splits += len(group.splits)
    assert splits <= 1


def test_machines_are_compared_with_those_like_them_only():
    fleet = fleet_of(
        40, slow=set(range(20)), by=3, facts=lambda n: {"device": "H200" if n < 20 else "A10"}
    )
    result = judge(fleet)
    assert [dict(group.alike)["device"] for group in result.groups] == ["A10", "H200"]
    assert not outliers(result)
    assert not any(group.splits for group in result.groups)
    (together,) = judge(fleet, by=["system.kernel"]).groups
    assert together.splits


def test_the_threshold_is_the_smallest_difference_that_counts():
    fleet = fleet_of(100, slow={3}, by=1.3, seed=4)
    assert outliers(judge(fleet, threshold=0.1)) == {"node003"}
    assert outliers(judge(fleet, threshold=0.5)) == set()


def test_machines_to_come_are_judged_by_a_baseline():
    usual = baseline_of(fleet_of(40, facts=lambda _: {"thp": "madvise"}))
    fleet = fleet_of(3, slow={1}, seed=9, facts=lambda n: {"thp": "never" if n == 1 else "madvise"})
    result = judge(fleet, baseline=usual)
    assert result.baseline
    assert outliers(result) == {"node001"}
    assert result.groups[0].outliers[0].reasons[0].fact == "thp"
    assert not outliers(judge(fleet))


def test_values_that_may_be_negative_are_judged_too():
    fleet = Fleet()
    draw = random.Random(3)
    for number in range(30):
        leak = 4096.0 if number == 5 else 0.0
        runs = tuple({"stress.charge.per_cycle": leak + draw.gauss(0, 2)} for _ in range(5))
        fleet.add(MachineReading(f"n{number}", "", "vmtool.stress", "0", {}, runs))
    (group,) = judge(fleet).groups
    (found,) = group.outliers
    assert found.host == "n5"
    assert found.ratio is None
    assert found.value == pytest.approx(4096, abs=10)


def test_one_run_of_many_that_grew_is_not_a_leak():
    fleet = Fleet()
    for number in range(30):
        runs = [{"stress.charge.per_cycle": 0.0} for _ in range(5)]
        if number == 5:
            runs[2] = {"stress.charge.per_cycle": 9000.0}
        if number == 6:
            runs = [{"stress.charge.per_cycle": 9000.0 + at} for at in range(5)]
        fleet.add(MachineReading(f"n{number}", "", "vmtool.stress", "0", {}, tuple(runs)))
    assert outliers(judge(fleet)) == {"n6"}


def test_a_measure_with_one_value_for_each_machine_is_not_judged():
    fleet = fleet_of(20)
    for number in range(20):
        value = {"limits.commit.fixed.reached_bytes": 5.0 if number else 1.0}
        facts = {"system.cpu_model": "A"}
        fleet.add(MachineReading(f"node{number:03}", "", "vmtool.limits", "0", facts, (value,)))
    (group,) = judge(fleet).groups
    assert {spread.measure: (spread.tested, spread.single) for spread in group.spreads} == {
        COMMIT: (20, 0),
        RATE: (20, 0),
        "limits.commit.fixed.reached_bytes": (0, 20),
    }


def test_machines_that_a_baseline_does_not_have_are_not_decided():
    usual = baseline_of(fleet_of(40))
    fleet = fleet_of(40, slow={1}, facts=lambda _: {"system.cpu_model": "B"})
    (group,) = judge(fleet, baseline=usual).groups
    assert (group.decided, group.undecided, group.outliers) == (False, "baseline", ())
    (one,) = judge(fleet_of(1, runs=1), baseline=usual).groups
    assert (one.decided, one.undecided) == (False, "single")


def test_a_fact_that_every_machine_has_for_itself_is_no_reason():
    fleet = fleet_of(40, slow={17}, facts=lambda n: {"serial": f"{n}", "thp": str(n == 17)})
    (group,) = judge(fleet).groups
    assert [reason.fact for reason in group.outliers[0].reasons] == ["thp"]


def test_a_fact_that_is_missing_separates_as_well():
    from vmtool.fleet.machines import Machine

    bare = Machine("bare", {"kernel": "6"})
    others = {"kernel": Counter({"6": 9}), "cgroup": Counter({"v2": 9})}
    (reason,) = reasons([bare], others, 9)
    assert (reason.fact, reason.value, reason.usual, reason.separation) == ("cgroup", "-", "v2", 1)


def test_facts_that_both_record_come_before_those_that_one_lacks():
    from vmtool.fleet.machines import Machine

    one = Machine("one", {"kernel": "6", "thp": "never", "zswap": "on"})
    others = {"kernel": Counter({"6": 9}), "distribution": Counter({"Debian": 9})}
    others["thp"] = Counter({"always": 9})
    assert [reason.fact for reason in reasons([one], others, 9)] == ["thp", "distribution", "zswap"]


def test_results_of_one_name_with_other_hardware_may_be_of_several_machines():
    fleet = Fleet()
    for cpus in ("2", "2", "64", "128"):
        facts = {"system.cpu_model": "A", "system.cpus": cpus, "device": "H200"}
        fleet.add(MachineReading("localhost", "", "vmtool.stress", "0", facts, ()))
    fleet.add(MachineReading("localhost", "", "vmtool.doctor", "0", {"system.cpu_model": "A"}, ()))
    words = "may be several machines with the same name: system.cpus 2 and 64"
    assert [(p.source, p.kind, p.problem) for p in fleet.problems] == [
        ("localhost", "ambiguous", words)
    ]
    assert "no result" not in answer_text(judge(fleet))


def test_a_name_that_ends_like_an_amount_is_a_name():
    names = ("EPYC GiB", "nan GiB", "4 GiB", "1.2.3 GiB")
    fleet = fleet_of(40, slow={17}, facts=lambda n: {"system.kernel": names[n % 4]})
    (group,) = judge(fleet, by=["system.cpu_model"]).groups
    assert {fact.fact: dict(fact.machines) for fact in group.facts} == {
        "system.kernel": dict.fromkeys(names, 10)
    }


def test_a_result_and_its_copy_are_one():
    fleet = Fleet()
    for host, digest in (("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", None), ("a", None)):
        made = ({COMMIT: 5.0},)
        fleet.add(
            MachineReading(
                host, "x.json", "vmtool.stress", "0", {}, made, ("contents",), digest=digest
            )
        )
    assert (fleet.results, len(fleet.machines["a"].runs[COMMIT])) == (5, 4)
    (copy,) = [problem for problem in fleet.problems if problem.kind != "checks"]
    assert (copy.source, copy.kind) == ("x.json", "copy")
    assert copy.problem == "is a copy of another result of a, and is left out"
    assert "no result" not in answer_text(judge(fleet))


def test_memory_that_is_nearly_the_same_makes_no_groups():
    def amount(number):
        return {"memory.total_bytes": ("23.4 GiB", "23.6 GiB", "31.2 GiB")[min(number % 3, 2)]}

    fleet = fleet_of(30, facts=amount)
    groups = judge(fleet).groups
    assert [len(group.hosts) for group in groups] == [20, 10]
    assert not groups[0].facts
    usual = baseline_of(fleet)
    one = judge(fleet_of(1, facts=lambda _: {"memory.total_bytes": "23.7 GiB"}), baseline=usual)
    assert one.groups[0].decided
