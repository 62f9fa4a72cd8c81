"""The published schemas: current, of the standard, and the same to us as to jsonschema."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import (
    as_document,
    closed,
    eventful,
    gaussian,
    method,
    phase,
    run,
    schema_parts,
)

from vmtool.compare.runs import compare
from vmtool.errors import UsageError
from vmtool.machine import read_facts
from vmtool.report.compare import ComparedRuns, RunLabel, compare_document
from vmtool.report.schema import load_schema, schema_names
from vmtool.report.stress_modes import matrix_document
from vmtool.report.validate import KEYWORDS, SchemaViolation, validate
from vmtool.results.stress import Outcome
from vmtool.stress.matrix import MatrixCell, MatrixReport

ROOT = Path(__file__).resolve().parents[3]
STRESS = load_schema("stress")
DOCUMENT = as_document(eventful())


def test_the_files_are_what_the_types_say():
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/make_schemas.py", "--check"],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_of_the_standard_and_uses_only_what_we_check(name):
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert {keyword for part in schema_parts(schema) for keyword in part} <= KEYWORDS


@pytest.mark.parametrize(
    "result", [eventful(), run(), run(method(commit=gaussian(1, 9, 20_000)))], ids="abc"
)
def test_a_run_is_described_to_the_last_key(result):
    jsonschema.validate(as_document(result), closed(STRESS))


@pytest.mark.parametrize("samples", [3, 500, 20_000])
def test_a_comparison_is_described_to_the_last_key(samples):
    labels = ComparedRuns(*(RunLabel(name, ("vmtool", "stress"), "1") for name in "ab"))
    before = run(method(commit=gaussian(1, 1000, samples)), method("protect"))
    after = run(method(commit=gaussian(2, 1300, samples)), machine={"page_bytes": 16384})
    document = compare_document(labels, compare(before, after), command=["vmtool", "compare"])
    jsonschema.validate(
        json.loads(json.dumps(document, allow_nan=False)), closed(load_schema("compare"))
    )


def test_a_matrix_is_described_to_the_last_key():
    summary = phase("commit", [5, 6, 7]).summary
    cells = (
        MatrixCell(
            "tail", 4096, "fixed", 3, 18, summary, None, summary, Outcome.COMPLETE, ("zero",), None
        ),
        MatrixCell(
            "tail", 4096, "protect", 0, None, None, None, None, None, (), "too many mappings"
        ),
    )
    document = matrix_document(
        MatrixReport(cells, seed=7, complete=False), read_facts(), ["vmtool", "stress"]
    )
    jsonschema.validate(document, closed(load_schema("stress-matrix")))


def agrees(value, schema):
    """Whether our validator and jsonschema say the same of *value*."""
    try:
        validate(value, schema)
    except SchemaViolation:
        ours = False
    else:
        ours = True
    return ours == jsonschema.Draft202012Validator(schema).is_valid(value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, -2.5, "", "a", 1 << 63, (1 << 63) - 1])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def schemas(depth):
    simple = st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "const": SCALARS,
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "minimum": st.integers(-2, 2),
            "maximum": st.integers(-2, 2),
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
            "required": st.lists(st.sampled_from("ab"), unique=True),
        },
    )
    if not depth:
        return simple
    inner = schemas(depth - 1)
    nested = st.fixed_dictionaries(
        {},
        optional={
            "items": inner,
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": st.booleans() | inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
        },
    )
    return st.builds(lambda a, b: a | b, simple, nested)


@settings(max_examples=500)
@given(JSON, schemas(2))
def test_our_validator_agrees_with_another_implementation(value, schema):
    assert agrees(value, schema)


@settings(max_examples=200)
@given(st.data())
def test_they_agree_on_damaged_runs(data):
    document = copy.deepcopy(DOCUMENT)
    spot = document
    while True:
        keys = list(spot) if isinstance(spot, dict) else range(len(spot))
        key = data.draw(st.sampled_from(keys))
        inner = spot[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        spot = inner
    if data.draw(st.booleans()):
        del spot[key]
    else:
        spot[key] = data.draw(JSON)
    assert agrees(document, STRESS)


def test_a_whole_float_is_no_integer_to_us():
    with pytest.raises(SchemaViolation, match=r"1\.0 is not of type integer"):
        validate(1.0, {"type": "integer"})


@pytest.mark.parametrize(
    ("value", "schema", "words"),
    [
        ({"a": {}}, {"properties": {"a": {"required": ["b"]}}}, "a.b: is missing"),
        ({"x" * 99: 1}, {"additionalProperties": False}, "...: is not a known key"),
        ([1, "a"], {"items": {"type": "integer"}}, "[1]: 'a' is not of type integer"),
        (1 << 500, {"maximum": 5}, "an integer of 501 bits is over 5"),
    ],
)
def test_a_violation_names_the_place(value, schema, words):
    with pytest.raises(SchemaViolation) as caught:
        validate(value, schema)
    assert words in str(caught.value)


def test_an_unknown_document_gets_a_suggestion():
    with pytest.raises(UsageError) as caught:
        load_schema("stres")
    assert caught.value.hint == "did you mean stress?"
