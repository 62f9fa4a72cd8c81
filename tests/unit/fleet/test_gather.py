"""Results in files: whatever made them, and whatever is broken among them."""

import gzip
import json

import pytest

from vmtool.errors import UsageError
from vmtool.fleet.gather import list_files, read_files
from vmtool.fleet.measures import MachineReading, read_document
from vmtool.results.fleet import Problem

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
    stress = document(
        settings={"backing": "cuda:0", "granule_bytes": 2 << 20},
        runs=[{"index": at, "methods": document(100 + at)["methods"]} for at in range(2)],
    )
    failed = [{"name": "x", "outcome": "failed"}]
    memory = [{"backing": "cuda:0", "device": "H200", "stress": stress, "checks": failed}]
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


@pytest.mark.parametrize("value", [{"a": 1}, {"schema": "vmtool.kv-estimate"}, {"schema": 5}])
def test_what_is_no_result_of_a_machine_is_refused(value):
    with pytest.raises(ValueError, match=r"result of vmtool|without facts"):
        read_document(value, "a", "a")


@pytest.mark.parametrize(
    "odd",
    [
        {"slopes": [{"counter": "charge", "per_cycle": 1.0, "grown": "much", "floor": None}]},
        {"safe_bytes": 10**400},
        {"machine": {"memory": {"total_bytes": 10**400}}},
    ],
)
def test_a_document_that_does_not_fit_its_schema_is_refused(odd):
    with pytest.raises(ValueError, match=r"does not fit the schema of vmtool\.stress"):
        read_document(document(**odd), "a", "a")


def test_a_folder_of_results_among_which_some_are_broken(tmp_path):
    for number in range(1000):
        text = json.dumps(document())
        if number in (3, 500, 999):
            text = "{}" if number == 3 else "not JSON" if number == 500 else "[]"
        if number in (7, 70):
            text = text[: len(text) // 2]
        if number == 44:
            text = json.dumps({"benchmark": "fio", "iops": 4})
        if number % 2:
            (tmp_path / f"node{number}.json").write_text(text)
        else:
            (tmp_path / f"node{number}.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "notes.txt").write_text("not a result")
    found = list(read_files(list_files([str(tmp_path)])))
    readings = [each for each in found if isinstance(each, MachineReading)]
    problems = {
        each.source.split("node")[1].split(".")[0]: each
        for each in found
        if isinstance(each, Problem)
    }
    assert len(readings) == 994
    assert {reading.host for reading in readings} >= {"node0", "node1", "node998"}
    assert {number: problem.kind for number, problem in problems.items()} == {
        **dict.fromkeys(("3", "44", "999"), "other"),
        **dict.fromkeys(("7", "70", "500"), "unreadable"),
    }


def test_json_lines_and_globs(tmp_path):
    lines = "\n".join([json.dumps(document()), json.dumps(document()), "{", ""])
    (tmp_path / "all.jsonl").write_text(lines)
    found = list(read_files(list_files([str(tmp_path / "*.jsonl")])))
    assert [each.host for each in found[:2]] == ["all:1", "all:2"]
    assert (found[2].source.endswith(":3"), found[2].kind) == (True, "unreadable")
    with pytest.raises(UsageError, match="no results there"):
        list_files([str(tmp_path / "*.none")])


def test_files_of_one_name_in_several_folders_are_several_machines(tmp_path):
    for node in ("a", "b"):
        folder = tmp_path / node
        folder.mkdir()
        (folder / "stress.json").write_text(json.dumps(document()), encoding="utf-8")
    hosts = [reading.host for reading in read_files(list_files([str(tmp_path)]))]
    assert hosts == [(tmp_path / node / "stress").as_posix() for node in ("a", "b")]


def test_a_first_line_that_is_cut_off_loses_one_result_only(tmp_path):
    path = tmp_path / "all.jsonl"
    whole = json.dumps(document())
    path.write_text(f"{whole[20:]}\n\n{whole}\n{whole}\n", encoding="utf-8")
    first, *others = read_files([str(path)])
    assert isinstance(first, Problem)
    assert [type(other) for other in others] == [MachineReading] * 2
