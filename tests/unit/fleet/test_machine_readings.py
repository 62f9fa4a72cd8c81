"""What a document says of its machine: measures by name, facts, and who it is."""

import json
import random
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_results import stress

from vmtool.fleet.judge import judge
from vmtool.fleet.machine_readings import read_document
from vmtool.fleet.machines import Fleet
from vmtool.fleet.result_files import checked
from vmtool.inspect.watch import InspectOptions, nothing_read
from vmtool.json_documents import encode
from vmtool.machine import read_facts
from vmtool.machine.run_conditions import RunConditions
from vmtool.probes.granularity import make_result
from vmtool.results.doctor import DoctorResult
from vmtool.results.document_versions import document_of
from vmtool.results.granularity import BackingGranularity, LargestReservation
from vmtool.results.inspect import ProcessIdentity, Sample

MACHINE = {
    "system": {"cpu_model": "A", "cpus": 4, "kernel": "6.1"},
    "memory": {"total_bytes": (64 << 30) - 12345, "available_bytes": 5},
    "huge_pages": {"thp_mode": "never", "pools": [{"page_bytes": 2097152, "total": 3, "free": 1}]},
}


def document(median=100, **more):
    method = {
        "method": "fixed",
        "cycles": 9,
        "cycles_per_s": 5.0,
        "phases": [
            {
                "phase": "commit",
                "summary": {"samples": 3, "median_ns": median, "p99_ns": 200, "max_ns": 1},
                "histogram": {"buckets": [[1, 2]], "sum_ns": 5},
            }
        ],
    }
    return {
        "schema": "vmtool.stress",
        "version": 1,
        "vmtool": "0.1.0",
        "command": [],
        "settings": {"backing": "host", "granule_bytes": 65536},
        "methods": [method],
        "machine": MACHINE,
        **more,
    }


def test_measures_are_named_by_their_place_and_unit():
    reading = read_document(document(), "a", "a.json")
    assert dict(reading.runs[0]) == {
        "stress.host.64KiB.fixed.cycles_per_s": 5.0,
        "stress.host.64KiB.fixed.commit.median_ns": 100.0,
        "stress.host.64KiB.fixed.commit.p99_ns": 200.0,
    }
    assert reading.facts["memory.total_bytes"] == "64 GiB"
    assert reading.facts["huge_pages.pools.2097152.total"] == "3"
    assert "memory.available_bytes" not in reading.facts
    assert not any("free" in fact for fact in reading.facts)


def test_methods_are_called_by_what_they_did():
    """As ``compare`` does: ``stress --huge`` is the work of ``stress --method fixed+huge``."""
    settings = document()["settings"]
    with_option = read_document(document(settings={**settings, "huge": True}), "a", "a.json")
    renamed = json.loads(json.dumps(document()).replace('"fixed"', '"fixed+huge"'))
    assert with_option.runs == read_document(renamed, "b", "b.json").runs
    plain = read_document(document(settings={**settings, "huge": False}), "c", "c.json")
    assert not set(plain.runs[0]) & set(with_option.runs[0])


def test_each_run_of_a_result_is_one_and_the_document_names_the_host():
    runs = [{"index": at, "methods": document(100 + at)["methods"]} for at in range(3)]
    slopes = [{"counter": "charge", "per_cycle": 0.5, "grown": 9, "floor": 5}]
    found = read_document(
        document(runs=runs, slopes=slopes, conditions={"host": "web1", "uptime_s": 5}), "x", "x"
    )
    assert found.host == "web1"
    medians = [run.get("stress.host.64KiB.fixed.commit.median_ns") for run in found.runs]
    assert medians == [100, 101, 102, None]
    assert found.runs[3] == {"stress.host.64KiB.charge.per_cycle": 0.5}
    assert "uptime_s" not in found.facts


def test_a_leak_has_a_slope_in_each_run_and_growth_below_the_floor_is_none():
    def checkpoints(run, per_cycle):
        process = [{"charge": 7 + at * per_cycle, "mappings": at // 4} for at in range(20)]
        return [
            {"run": run, "worker": 0, "cycle": 10 * at, "process": each}
            for at, each in enumerate(process)
        ]

    runs = [{"index": at, "methods": document(100 + at)["methods"]} for at in range(2)]
    slopes = [
        {"counter": "charge", "per_cycle": 100.0, "floor": 10_000},
        {"counter": "mappings", "per_cycle": 0.02, "floor": 16},
    ]
    points = checkpoints(0, 1000) + checkpoints(1, 1010)
    found = read_document(document(runs=runs, slopes=slopes, checkpoints=points), "x", "x")
    assert [run["stress.host.64KiB.charge.per_cycle"] for run in found.runs] == [100, 101]
    assert [run["stress.host.64KiB.mappings.per_cycle"] for run in found.runs] == [0, 0]


def test_the_runs_of_stress_within_a_check_are_its_runs_and_its_failures_are_named():
    part = document(
        settings={"backing": "cuda:0", "granule_bytes": 2 << 20},
        runs=[{"index": at, "methods": document(100 + at)["methods"]} for at in range(2)],
    )
    failed = [{"name": "x", "outcome": "failed"}]
    memory = [{"backing": "cuda:0", "device": "H200", "stress": part, "checks": failed}]
    check = {
        "schema": "vmtool.check",
        "machine": MACHINE,
        "passed": False,
        "safe_bytes": 7,
        "memory": memory,
        "findings": [{"kind": "no-swap", "rating": "problem"}, {"kind": "a", "rating": "note"}],
    }
    found = read_document(check, "x", "x")
    assert found.failed == ("x", "no-swap")
    assert found.facts["device"] == "H200"
    assert found.runs[0] == {"check.safe_bytes": 7.0}
    assert [run["check.cuda.2MiB.fixed.commit.median_ns"] for run in found.runs[1:]] == [100, 101]


def test_how_far_limits_go_and_what_a_process_uses_are_measures():
    methods = [{"method": "fixed", "outcome": "found", "reached": 5, "refused": 6}]
    kinds = [{"kind": kind, "methods": methods} for kind in ("commit", "mappings")]
    limits = {"schema": "vmtool.limits", "machine": MACHINE, "kinds": kinds}
    assert read_document(limits, "x", "x").runs == (
        {"limits.commit.fixed.reached_bytes": 5.0, "limits.mappings.fixed.reached": 5.0},
    )
    inspect = {
        "schema": "vmtool.inspect",
        "machine": MACHINE,
        "process": {"name": "vllm", "started_ns": 3},
        "samples": [{"resident_bytes": 1}, {"resident_bytes": 4, "areas": 2, "at_ns": 9}],
        "trends": [{"counter": "resident_bytes", "per_second": 3.0, "grows": True}],
    }
    assert read_document(inspect, "x", "x").runs == (
        {
            "inspect.vllm.resident_bytes": 4.0,
            "inspect.vllm.areas": 2.0,
            "inspect.vllm.resident_bytes.per_s": 3.0,
        },
    )


def test_the_files_of_the_bench_are_results():
    path = Path(__file__).parents[3] / "scripts" / "bench_fleet.py"
    bench = runpy.run_path(str(path))
    parts = bench["template"](stress(100, 101, 102, 103, 104))
    (reading,) = bench["readings"](random.Random(1), 1, set())
    found = read_document(checked(json.loads(bench["filled"](parts, reading))), "x", "x")
    assert found.host == "node0"
    medians = [run.get("stress.host.64KiB.fixed.commit.median_ns") for run in found.runs]
    assert medians[:5] == [round(run["stress.fixed.commit.median_ns"]) for run in reading.runs]


#: What explains a difference, as stored: the place in a result, and a value that others have not.
EXPLAINING = {
    "machine.system.kernel": "6.9.1-rt",
    "machine.huge_pages.thp_mode": "never",
    "machine.commit.mode": 2,
    "conditions.sysctls.vm.min_free_kbytes": "9",
    "conditions.microcode": "0x2",
    "conditions.cpu_governor": "powersave",
    "conditions.mitigations.spectre_v2": "Vulnerable",
    "conditions.nvidia_driver": "570.1",
    "conditions.distribution": "Other Linux",
    "machine.memory.nodes.1.total_bytes": 9 << 30,
    "machine.cgroup.levels.0.limit_bytes": 5 << 30,
    "machine.environment.container": "docker",
    "settings.prefault": True,
}


@pytest.mark.parametrize("place", EXPLAINING)
def test_a_fact_that_only_the_slow_machine_has_explains_it(place):
    fleet = Fleet()
    for number in range(12):
        own = 100_000 * (1.6 if number == 5 else 1 + 0.01 * (number % 4))
        document = stress(round(own), round(own * 1.02), host=f"node{number}")
        document["machine"]["memory"]["nodes"] = [
            {"number": at, "total_bytes": 4 << 30, "free_bytes": number} for at in range(2)
        ]
        levels = [{"path": f"/{number}", "version": 2, "limit_bytes": 4 << 30}]
        document["machine"]["cgroup"]["levels"] = levels
        document["conditions"] |= {
            "sysctls": {"vm.min_free_kbytes": "1"},
            "mitigations": {"spectre_v2": "IBRS"},
            "microcode": "0x1",
            "cpu_governor": "performance",
            "uptime_s": number,
            "nvidia_driver": "550.1",
            "distribution": "Linux",
        }
        document["machine"]["environment"] = {"container": None}
        if number == 5:
            at = document
            *keys, last = place.replace("vm.min", "vm_min").split(".")
            for key in keys:
                at = at[int(key)] if isinstance(at, list) else at[key]
            at[last.replace("vm_min", "vm.min")] = EXPLAINING[place]
        fleet.add(read_document(checked(document), "x", "x"))
    (group,) = judge(fleet).groups
    assert {outlier.host for outlier in group.outliers} == {"node5"}
    (reason,) = group.outliers[0].reasons
    assert reason.fact == place.removeprefix("machine.").removeprefix("conditions.")
    assert reason.separation == 1


def _doctor(size, conditions):
    result = DoctorResult.of(read_facts(), (), (), conditions)
    return replace(result, safe_bytes=size)


def _granularity(size, conditions):
    largest = LargestReservation(size, None, 1, None)
    result = make_result(read_facts(), (BackingGranularity("host", largest_reservation=largest),))
    return replace(result, safe_bytes=1, conditions=conditions)


def _inspect(size, conditions):
    who = ProcessIdentity(7, "vllm", ("vllm",))
    result = nothing_read(who, InspectOptions(), read_facts())
    return replace(result, samples=(Sample(0, resident_bytes=size),), conditions=conditions)


@pytest.mark.parametrize("make", [_doctor, _granularity, _inspect])
def test_results_of_one_host_are_one_machine_and_its_conditions_explain_it(make):
    fleet = Fleet()
    for number in range(24):
        host = number // 2
        own = round((1 << 30) * (1.6 if host == 5 else 1 + 0.01 * (number % 4)))
        conditions = RunConditions(
            "2026-11-30T22:30:00Z", f"node{host}", number, microcode="0x2" if host == 5 else "0x1"
        )
        result = make(own, conditions)
        text = encode(result, document_of(result).head(["vmtool"]))
        fleet.add(read_document(checked(json.loads(text)), f"file{number}", "x"))
    (group,) = judge(fleet).groups
    assert len(group.hosts) == 12
    assert {outlier.host for outlier in group.outliers} == {"node5"}
    assert [reason.fact for reason in group.outliers[0].reasons] == ["microcode"]
