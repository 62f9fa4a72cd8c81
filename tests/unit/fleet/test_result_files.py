"""Results in files: whatever made them, and whatever is broken among them."""

import gzip
import io
import json
import logging
import os
import random
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import stored_runs
from fleet_results import SYSTEM, ClientWithoutScheduler, stress

from vmtool import __version__
from vmtool.documents import encode
from vmtool.errors import UsageError
from vmtool.executors import TaskResult
from vmtool.fleet import dask_hosts, result_files
from vmtool.fleet.dask_hosts import Cluster, read_task
from vmtool.fleet.judge import judge
from vmtool.fleet.machine_readings import MachineReading, checked, read_document
from vmtool.fleet.machines import Fleet
from vmtool.fleet.result_files import MOST_PROBLEMS, list_files, read_files
from vmtool.inspect.watch import InspectOptions, nothing_read
from vmtool.machine import read_facts
from vmtool.machine.run_conditions import RunConditions
from vmtool.probes.granularity import make_result
from vmtool.results.doctor import DoctorResult
from vmtool.results.fleet import Problem
from vmtool.results.granularity import BackingGranularity, LargestReservation
from vmtool.results.inspect import ProcessIdentity, Sample
from vmtool.results.kinds import document_of

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


PHASES = [
    {"phase": "commit", "total_bytes": 1, "summary": {"median_ns": "fast"}, "histogram": None}
]


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("{}", "other", "is not a result of vmtool"),
        ('{"benchmark": "fio"}', "other", "is not a result of vmtool"),
        (stress(schema="vmtool.nonsense"), "other", "is not a result of vmtool"),
        (stress(schema=5), "other", "is not a result of vmtool"),
        (
            stress(schema="vmtool.kv-estimate"),
            "other",
            "vmtool.kv-estimate, which does not describe",
        ),
        (stress(version=99), "version", "version: 99 of vmtool.stress; vmtool"),
        (stress(schema="vmtool.doctor", version=1), "version", "version: 1 of vmtool.doctor"),
        (stress(version="2"), "other", "version: expected integer, got string"),
        (stress(machine={}), "other", "machine.system: is missing"),
        (stress(machine=None), "other", "machine: expected object, got null"),
        (
            stress(machine={"system": {**SYSTEM, "cpus": "many"}}),
            "other",
            "machine.system.cpus: expected integer or null, got string",
        ),
        (stress(wall_ns=-5), "other", "wall_ns: must be at least 0"),
        (stress(wall_ns=10**30), "other", "wall_ns: must be at least 0 and less than 2^64"),
        (stress(wall_ns=None), "other", "wall_ns: expected integer, got null"),
        (
            stress(methods=[{**stress()["methods"][0], "phases": PHASES}]),
            "other",
            "methods[0].phases[0].summary.median_ns: expected integer or null, got string",
        ),
        (
            stress(methods=[{**stress()["methods"][0], "cycles_per_s": -1.0}]),
            "other",
            "methods[0].cycles_per_s: must be at least 0",
        ),
        (stress(slopes=[{"counter": "charge"}]), "other", "slopes[0].worker: is missing"),
        ('{"schema": "a", "schema": "b"}', "unreadable", "duplicate key 'schema'"),
        (json.dumps(stress()).replace("wall_ns", "outcome"), "unreadable", "duplicate key"),
        (json.dumps(stress()).replace('"kind"', '"k\\u0007"'), "unreadable", "control characters"),
        ('{"wall_ns": 1e999}', "unreadable", "1e999 is too large"),
        ("[" * 100_000, "unreadable", "is nested too deeply"),
        ("[]", "unreadable", "is JSON, but not an object"),
        ("not JSON", "unreadable", "line 1, column 1: is not JSON"),
        ("", "unreadable", "is empty"),
        (json.dumps(stress())[:-9], "unreadable", "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_row_and_the_rest_goes_on(tmp_path, text, kind, problem):
    text = text if isinstance(text, str) else json.dumps(text)
    for name, content in (("a", json.dumps(stress())), ("b", text), ("c", json.dumps(stress()))):
        (tmp_path / f"{name}.json").write_text(content, encoding="utf-8")
    first, second, third = read_files(list_files([str(tmp_path)]))
    assert (first.host, third.host) == ("a", "c")
    assert (second.source, second.kind) == (str(tmp_path / "b.json"), kind)
    assert problem in second.problem
    assert "b.json" not in second.problem


def test_results_of_version_1_are_read():
    folder = Path(stored_runs.__file__).parent / "unit" / "compare" / "data"
    for path in sorted(folder.glob("version-1-*.json")):
        (found,) = read_files([str(path)])
        assert isinstance(found, MachineReading)


def test_a_folder_of_results_among_which_some_are_broken(tmp_path):
    good = json.dumps(stress())
    for number in range(1000):
        text = good
        if number in (3, 500, 999):
            text = "{}" if number == 3 else "not JSON" if number == 500 else "[]"
        if number in (7, 70):
            text = text[: len(text) // 2]
        if number == 44:
            text = json.dumps({"benchmark": "fio", "iops": 4})
        if number % 2:
            (tmp_path / f"node{number}.json").write_text(text)
        else:
            (tmp_path / f"node{number}.json.gz").write_bytes(gzip.compress(text.encode(), 1))
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
        **dict.fromkeys(("3", "44"), "other"),
        **dict.fromkeys(("7", "70", "500", "999"), "unreadable"),
    }


# ---- streams ----------------------------------------------------------------------------------

ODD = stress(command=["vmtool", "} {", 'a"}{"b', "}\\"])
INDENTED, SHORT = json.dumps(ODD, indent=2), json.dumps(ODD)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"{SHORT}\n{SHORT}\n", [1, 2]),
        (f"{SHORT}\r\n{SHORT}\r\n", [1, 2]),
        (f"\n\n{INDENTED}\n{INDENTED}\n\n", [3, 3 + len(INDENTED.splitlines())]),
        (f"{INDENTED}{INDENTED}{SHORT}", [1, len(INDENTED.splitlines())]),
        (f"{SHORT}{SHORT} {SHORT}", [1, 1, 1]),
    ],
)
def test_documents_that_follow_each_other(tmp_path, text, lines):
    path = tmp_path / "all.json"
    path.write_bytes(text.encode())
    found = list(read_files([str(path)]))
    assert [type(each) for each in found] == [MachineReading] * len(found)
    assert [each.source for each in found][: len(lines)] == [f"{path}:{line}" for line in lines]
    assert found[0].host == f"all:{lines[0]}"


@pytest.mark.parametrize(
    "broken", ["{", "log line", f"{SHORT[:-30]}", f"{SHORT[20:]}", "{}", "[1]"]
)
@pytest.mark.parametrize("good", [SHORT, INDENTED])
def test_what_is_broken_in_a_stream_loses_no_other_result(tmp_path, broken, good):
    for parts in ((broken, good, good), (good, broken, good), (good, good, broken)):
        path = tmp_path / "all.json"
        path.write_text("\n".join(parts), encoding="utf-8")
        found = list(read_files([str(path)]))
        assert sum(isinstance(each, MachineReading) for each in found) == 2
        assert isinstance(found[parts.index(broken)], Problem)


def test_the_bound_is_that_of_a_document_and_not_of_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(result_files, "MAX_BYTES", len(INDENTED) + 9)
    larger = json.dumps({**ODD, "more": list(range(300_000))}, indent=2)  # of several reads
    for end in ("json", "json.gz"):
        path = tmp_path / f"all.{end}"
        text = f"{INDENTED}\n{larger}\n{SHORT}\n{INDENTED * 30}".encode()
        path.write_bytes(gzip.compress(text) if end == "json.gz" else text)
        first, second, *rest = read_files([str(path)])
        assert isinstance(first, MachineReading)
        assert "is larger than" in second.problem
        assert [type(each) for each in rest] == [MachineReading] * 31
        assert rest[0].source == f"{path}:{1 + len(f'{INDENTED}{larger}'.splitlines()) + 1}"
    path.write_text(larger, encoding="utf-8")
    (found,) = read_files([str(path)])
    assert (found.source, found.kind) == (str(path), "unreadable")


def test_files_that_no_pattern_means(tmp_path):
    with pytest.raises(UsageError, match="no results there"):
        list_files([str(tmp_path / "*.none")])


def test_files_of_one_name_in_several_folders_are_several_machines(tmp_path):
    for node in ("a", "b"):
        folder = tmp_path / node
        folder.mkdir()
        (folder / "stress.json").write_text(json.dumps(stress()), encoding="utf-8")
    hosts = [reading.host for reading in read_files(list_files([str(tmp_path)]))]
    assert hosts == [(tmp_path / node / "stress").as_posix() for node in ("a", "b")]


def test_the_files_of_the_bench_are_results():
    path = Path(__file__).parents[3] / "scripts" / "bench_fleet.py"
    bench = runpy.run_path(str(path))
    parts = bench["template"](stress(100, 101, 102, 103, 104))
    (reading,) = bench["readings"](random.Random(1), 1, set())
    found = read_document(checked(json.loads(bench["filled"](parts, reading))), "x", "x")
    assert found.host == "node0"
    medians = [run.get("stress.host.64KiB.fixed.commit.median_ns") for run in found.runs]
    assert medians[:5] == [round(run["stress.fixed.commit.median_ns"]) for run in reading.runs]


# ---- what hosts say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "kind", "problem"),
    [
        (0, "hello", "", "failed", "exit code 0: it wrote nothing"),
        (2, "", "Usage\nvmtool: error: x", "failed", "exit code 2: vmtool: error: x"),
        (1, "", "No module named vmtool", "failed", "vmtool is not installed for the worker's"),
        (0, json.dumps(stress(vmtool="0.0.9")), "", "version", "vmtool 0.0.9 there"),
        (0, json.dumps(stress(wall_ns="1")), "", "other", "wall_ns: expected integer, got string"),
        (0, json.dumps(stress(schema="vmtool.x")), "", "other", "is not a result of vmtool"),
        (0, "[]", "", "failed", "exit code 0"),
    ],
)
def test_a_host_without_a_result_is_a_row(code, stdout, stderr, kind, problem):
    found = read_task("node1", TaskResult(code, stdout, stderr))
    assert (found.source, found.kind) == ("node1", kind)
    assert problem in found.problem


@pytest.mark.parametrize(
    ("ended", "kind"),
    [("died", "lost"), ("gone", "lost"), ("timeout", "timeout"), ("failed", "failed")],
)
def test_a_command_that_did_not_end_is_a_row_of_its_kind(ended, kind):
    words = "died, did not end"  # as a command may say itself
    assert read_task("node1", TaskResult(None, "", words, ended)) == Problem("node1", kind, words)


def test_a_host_is_named_by_its_address():
    assert read_task("node1", TaskResult(3, json.dumps(stress(host="web")), "")).host == "node1"


# ---- facts ------------------------------------------------------------------------------------

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
    "settings.huge": True,
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


def test_a_scheduler_that_dies_loses_a_row_a_host_and_nothing_that_was_gathered():
    document = stress(100, host="web")
    client = ClientWithoutScheduler(json.dumps(document | {"vmtool": __version__}))
    rules = {"timeout_s": None, "retries": 1, "resources": {}, "stop": lambda: False}
    first, second = Cluster(client, "tcp://head:1", alone=False).gather(["stress"], **rules)
    assert isinstance(first, MachineReading)
    lost = "the connection to Dask's scheduler was lost"
    assert second == Problem("10.0.0.2", "lost", lost)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(stress(100)))
    os.mkfifo(tmp_path / "b.json")
    assert list_files([str(tmp_path)]) == [str(tmp_path / "a.json")]


def test_of_many_lines_that_are_no_results_only_the_number_is_listed(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n" * (MOST_PROBLEMS + 25) + json.dumps(stress(100)) + "\n")
    found = list(read_files([str(path)]))
    assert [each.source for each in found if isinstance(each, Problem)] == [
        *(f"{path}:{line}" for line in range(1, MOST_PROBLEMS + 1)),
        str(path),
    ]
    assert isinstance(found[-2], MachineReading)
    assert found[-1].problem == "25 more documents in it are not results"


def test_stdin_is_called_standard_input_and_may_be_empty(monkeypatch):
    for text, source, words in ((b"\n", "", "is empty"), (b"{}\n{}\n", ":1", "is not a result")):
        monkeypatch.setattr(result_files, "open_text", lambda _, text=text: io.BytesIO(text))
        first, *_ = read_files(["-"])
        assert (first.source, first.problem[: len(words)]) == (f"standard input{source}", words)


def test_loggers_of_dask_with_levels_of_their_own_are_quiet_too():
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.WARNING)
    with dask_hosts.quiet_dask():
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.level == logging.WARNING
    logger.setLevel(before)
