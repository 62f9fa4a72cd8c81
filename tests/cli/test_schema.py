"""``vmtool schema``: the list, one schema, and an unknown name."""

import json

import jsonschema
import pytest

from vmtool.cli.app import run as run_vmtool
from vmtool.results.document_versions import DOCUMENTS


def test_without_a_name_the_documents_are_listed(capsys):
    assert run_vmtool(["schema"]) == 0
    assert capsys.readouterr().out.split() == [kind.name for kind in DOCUMENTS]


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.name)
def test_every_schema_is_of_the_standard(capsys, kind):
    assert run_vmtool(["schema", kind.name]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["version"] == {"const": kind.version}


@pytest.mark.parametrize("name", ["stress", "vmtool.stress"])
def test_a_schema_is_printed_whole(capsys, name):
    assert run_vmtool(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"] == {"const": "vmtool.stress"}


def test_an_unknown_name_is_exit_2_and_writes_no_file(capsys, tmp_path):
    path = tmp_path / "x.json"
    assert run_vmtool(["schema", "zzz", "-o", str(path)]) == 2
    assert "use one of check, granularity" in capsys.readouterr().err
    assert not path.exists()
