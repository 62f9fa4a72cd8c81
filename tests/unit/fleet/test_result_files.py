"""Results in files: whatever made them, and whatever is broken among them."""

import gzip
import io
import json
import os
import sys
import zlib
from pathlib import Path

import pytest
import stored_runs
from fleet_results import SYSTEM, stress

from vmtool.errors import UsageError
from vmtool.fleet import result_files
from vmtool.fleet.machine_readings import MachineReading
from vmtool.fleet.result_files import MOST_PROBLEMS, list_files, read_files
from vmtool.results.fleet import Problem

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
        (stress(wall_ns=-5), "other", "wall_ns: must be 0, or at least 2^-64"),
        (stress(wall_ns=10**30), "other", "wall_ns: must be 0, or at least 2^-64 and less"),
        (stress(wall_ns=None), "other", "wall_ns: expected integer, got null"),
        (
            stress(methods=[{**stress()["methods"][0], "phases": PHASES}]),
            "other",
            "methods[0].phases[0].summary.median_ns: expected integer or null, got string",
        ),
        (
            stress(methods=[{**stress()["methods"][0], "cycles_per_s": -1.0}]),
            "other",
            "methods[0].cycles_per_s: must be 0, or at least 2^-64",
        ),
        (
            stress(methods=[{**stress()["methods"][0], "cycles_per_s": 1e-300}]),
            "other",
            "methods[0].cycles_per_s: must be 0, or at least 2^-64",
        ),
        (
            stress(
                checkpoints=[
                    {
                        **stored_runs.as_document(stored_runs.run(stored_runs.method(commit=[1])))[
                            "checkpoints"
                        ][0],
                        "cycle": 10**400,
                    }
                ]
            ),
            "other",
            "checkpoints[0].cycle: must be between -2^128 and 2^128",
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
def test_a_wrong_file_is_a_row_and_the_others_are_read(tmp_path, text, kind, problem):
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


@pytest.mark.parametrize("results", [0, 1, 30])
def test_what_is_whole_in_truncated_gzip_is_read(tmp_path, results):
    path = tmp_path / "all.json.gz"
    path.write_bytes(gzip.compress(f"{SHORT}\n".encode() * results + b'{"schema": "vm')[:-9])
    *found, last = read_files([str(path)])
    assert [type(each) for each in found] == [MachineReading] * results
    assert last == Problem(str(path), "unreadable", "cannot be read: its gzip data is truncated")


@pytest.mark.parametrize("spacing", [1, 40])  # lines in one read, and in many
def test_what_is_whole_before_damaged_gzip_is_read(tmp_path, spacing):
    path = tmp_path / "all.json.gz"
    line = (SHORT + " " * 1024 * spacing + "\n").encode()
    packer = zlib.compressobj(wbits=31)
    deflated = [packer.compress(line) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(100)]
    packed = b"".join([*deflated[:70], b"\xff" * 9, *deflated[70:], packer.flush()])
    path.write_bytes(packed)
    *found, last = read_files([str(path)])
    assert [type(each) for each in found] == [MachineReading] * 70
    assert last.problem.startswith("cannot be read: its gzip data is damaged (")


def test_a_wrong_checksum_says_that_any_part_may_be_wrong(tmp_path):
    path = tmp_path / "all.json.gz"
    packed = bytearray(gzip.compress(f"{SHORT}\n".encode() * 3))
    packed[-8] ^= 1
    path.write_bytes(packed)
    *found, last = read_files([str(path)])
    assert [type(each) for each in found] == [MachineReading] * 3
    assert "any part of it may be wrong" in last.problem


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
