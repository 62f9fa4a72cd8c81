"""Result files are hostile until checked: every bad one is one clear error and no traceback."""

import copy
import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from printed import printed
from stored_runs import MACHINE, as_document, eventful, gaussian, method, run, several, write

from vmtool.compare import run_sets
from vmtool.compare.assertions import evaluate, parse_assertion, parse_change
from vmtool.compare.changes import compare
from vmtool.compare.run_sets import StoredRun, read_run, set_of
from vmtool.errors import InputError
from vmtool.json_documents import encode
from vmtool.machine.run_conditions import RunConditions
from vmtool.report.compare import caveats, to_text, warnings_of
from vmtool.report.compare_page import to_html
from vmtool.report.csv_and_openmetrics import stress_csv
from vmtool.report.stress import to_text as stress_to_text
from vmtool.report.stress_page import to_html as stress_page
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.stress import Outcome

DOCUMENT = as_document(eventful())


def store(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    "result", [run(method(commit=gaussian(1, 500, 300))), run(), eventful()], ids="abc"
)
def test_a_result_comes_back_as_it_was(tmp_path, result):
    assert read_run(write(tmp_path / "a.json", result)).result == result


@pytest.mark.parametrize("name", ["one", "all", "failed"])
def test_a_result_of_version_1_is_still_read(name):
    path = Path(__file__).parent / "data" / f"version-1-{name}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["schema"], document["version"]) == ("vmtool.stress", 1)
    stored = read_run(str(path))
    assert stored.result.outcome.value == document["outcome"]
    assert [m.method for m in stored.result.methods] == [m["method"] for m in document["methods"]]
    show_everything(stored)


def test_keys_of_a_later_vmtool_are_left_out(tmp_path):
    document = copy.deepcopy(DOCUMENT) | {"new": 1}
    document["settings"]["newer"] = [1]
    assert read_run(store(tmp_path / "a", json.dumps(document))).result == eventful()


def test_a_key_that_an_older_vmtool_did_not_write_has_its_default(tmp_path):
    document = copy.deepcopy(DOCUMENT)
    del document["settings"]["inject"]
    assert read_run(store(tmp_path / "a", json.dumps(document))).result == eventful()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1, column 1: is not JSON"),
        ("{", "is not JSON"),
        ("[]", "not an object of named fields"),
        ("{}", ": is not a document of vmtool: its 'schema' is not 'vmtool.stress'"),
        ('{"schema": "vmtool.grow"}', "'vmtool.grow', not 'vmtool.stress'"),
        ('{"schema": 5}', "not a document of vmtool"),
        (
            '{"schema": "vmtool.stress", "version": 3}',
            "version: has version 3; this vmtool reads 2",
        ),
        ('{"schema": "vmtool.stress", "version": 1}', "command: is missing"),
        ('{"schema": "vmtool.stress", "version": 1, "command": []}', "vmtool: is missing"),
        ('{"schema": "vmtool.stress", "version": true}', "not the number of a version"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not"),
        ('{"a": 1e999}', "is too large"),
        ('{"a": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        (b"\xff\xfe{\x00", "is not JSON"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not a document of vmtool"),
        ('{"a": "\\u001b[2J"}', "control characters"),
        ('{"a": ["\\ud800"]}', "control characters"),
        ('{"a\u202eb": 1}', "control characters"),
    ],
)
def test_a_bad_file_is_reported_by_name_and_field(tmp_path, content, words):
    path = store(tmp_path / "bad.json", content)
    with pytest.raises(InputError) as caught:
        read_run(path)
    assert str(caught.value).startswith(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["missing.json", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path, name):
    with pytest.raises(InputError, match="cannot be read"):
        read_run(f"{tmp_path}/{name}")


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_run(str(tmp_path))


def test_a_file_over_the_limit_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_sets, "MAX_BYTES", 1 << 20)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_run(store(tmp_path / "big", b" " * ((1 << 20) + 1)))


def at(document, path, value):
    """Return a copy of *document* with *value* at *path*."""
    changed = copy.deepcopy(document)
    spot = changed
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return changed


HISTOGRAM = ("methods", 0, "phases", 0, "histogram")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("methods",), {}, "methods: expected array, got object"),
        ((*HISTOGRAM, "count"), -1, "histogram: a count or a sum is under 0"),
        ((*HISTOGRAM, "count"), 10.5, "histogram.count: expected integer, got number"),
        ((*HISTOGRAM, "count"), True, "histogram.count: expected integer, got boolean"),
        ((*HISTOGRAM, "count"), 7, "the buckets do not add up to count"),
        ((*HISTOGRAM, "buckets"), [[1, 2, 3]], "buckets[0]: expected array of length 2"),
        ((*HISTOGRAM, "buckets", 0), [1 << 40, 1], "do not ascend"),
        ((*HISTOGRAM, "buckets"), [[1 << 60, 1000]], "is beyond the last"),
        ((*HISTOGRAM, "min_ns"), 1, "not in the first and the last bucket"),
        ((*HISTOGRAM, "sub_bucket_bits"), 3, "sub_bucket_bits is 3, not 6"),
        (("methods", 0, "phases", 0, "summary", "samples"), 5, "is not the histogram's 1000"),
        (("outcome",), "fine", "outcome: invalid enum value 'fine'"),
        (("recommendation",), 3, "recommendation: expected object or null, got integer"),
        (("settings", "huge"), "yes", "settings.huge: expected boolean, got string"),
        (("wall_ns",), 10**50, "an integer has 51 digits"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path, path, value, words):
    file = store(tmp_path / "a", json.dumps(at(DOCUMENT, path, value)))
    with pytest.raises(InputError) as caught:
        read_run(file)
    assert words in str(caught.value)


def places(value, path=()):
    """Every path into *value*."""
    if path:
        yield path
    if isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


# Of hundreds of buckets and twenty checkpoints a few are enough: the rest would crowd all else out.
PLACES = [
    path
    for path in places(DOCUMENT)
    if "buckets" not in path[:-1] and not (path[0] == "checkpoints" and path[1:2] > (1,))
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


OTHER = several(5)
GATES = [parse_change(text) for text in ("commit.p99>+20%", "cycles_per_s<-5%", "bytes_per_s<0%")]


def show_everything(stored):
    """Take *stored* through all that a result file can be used for."""
    side = set_of(
        stored.path,
        [replace(stored, result=replace(stored.result, outcome=Outcome.COMPLETE))] * 4,
    )
    for pair in ((side, OTHER), (OTHER, side)):
        if not side.runs:
            continue
        result = compare(*pair, fail_on=GATES)
        encode(result, {})
        for width in (40, 120):
            printed(partial(to_text, result), width)
        assert all((*warnings_of(result), *caveats(result)))
        to_html(*pair, result, []).encode()
    for text in ("commit.p99<5ms", "bytes_per_s>1GiB"):
        evaluate(parse_assertion(text), stored.result, confidence=0.95)
    stress_page(stored.result, command=stored.command).encode()
    stress_csv(stored.result).encode()


def alike(value):
    """Values of the same kind as *value*, so that most of the mutants are read."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(0, 200) | st.integers(0, (1 << 63) - 1)
    if isinstance(value, float):
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(value, str):
        return st.text(st.characters(exclude_categories=("C",)), max_size=8)
    return st.none() if value is None else st.just(type(value)())


@pytest.mark.timeout(600)  # half a minute on an idle machine
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mutation_is_refused_or_can_be_shown_in_every_way(tmp_path, data):
    document = DOCUMENT
    for path in data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        with suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            old = document
            for key in path:
                old = old[key]
            document = at(document, path, data.draw(st.one_of(*[alike(old)] * 5, VALUES)))
    file = store(tmp_path / "mutant", json.dumps(document))
    with suppress(InputError):
        show_everything(read_run(file))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20_000), st.binary(max_size=4))
def test_any_damage_to_the_bytes_is_refused_or_harmless(tmp_path, position, garbage):
    content = json.dumps(DOCUMENT).encode()
    file = store(tmp_path / "torn", content[:position] + garbage + content[position + 1 :])
    with suppress(InputError):
        compare(set_of(file, [read_run(file)]), OTHER)


def test_a_failed_check_is_reported_once():
    check = Check("require.leaks", CheckOutcome.FAILED, {"missing": "leak.resident"})
    result = run(method(commit=[9] * 9), checks=(check,))
    shown = "\n".join(printed(lambda console: stress_to_text(result, console), 240))
    assert shown.count("leak.resident") == 1


def test_a_label_or_a_machine_of_two_lines_stays_on_its_line():
    words = "before\nFORGED"
    settings, machine = {"label": words}, MACHINE | {"system": {"os": words, "kernel": "6"}}
    conditions = RunConditions("2026-11-30T22:30:00Z", words, 9, None, None, words)
    result = run(
        method(commit=[9] * 9, release=[9] * 9),
        settings=settings,
        machine=machine,
        conditions=conditions,
    )
    side = set_of(words, [StoredRun(words, (words,), words, result)])
    for shown in (
        printed(lambda console: stress_to_text(result, console), 240),
        printed(lambda console: to_text(compare(side, side), console), 240),
    ):
        assert "FORGED" in "".join(shown)
        assert not [line for line in shown if line.startswith("FORGED")]
