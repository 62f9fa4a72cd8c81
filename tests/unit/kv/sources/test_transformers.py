"""What transformers 5.24 itself caches for each type of model, recorded by ``scripts/oracle.py``.

The configs are the defaults of the types; each was run on torch's ``meta`` device.
"""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[4] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from oracle import compare, main  # noqa: E402 - a script, not a module of the package

FILE = Path(__file__).with_name("transformers.jsonl")
ROWS = {row["model_type"]: row for row in map(json.loads, FILE.read_text().splitlines())}

#: Where vmtool counts something else on purpose, and why.
OTHERWISE = {
    "deepseek_v4": "transformers keeps its caches in classes of their own, with K beside V",
    "minicpm3": "engines keep K and V expanded from the latent; transformers keeps the latent",
    "moshi": "its window is as long as its context, where vmtool counts all tokens",
}


@pytest.mark.parametrize("model_type", [name for name in ROWS if name not in OTHERWISE])
def test_vmtool_counts_what_transformers_caches(model_type):
    assert compare(ROWS[model_type]) == ("agrees", "")


@pytest.mark.parametrize("model_type", OTHERWISE)
def test_what_is_counted_otherwise_on_purpose_still_differs(model_type):
    assert compare(ROWS[model_type])[0] == "differs"


def test_the_script_reports_rows_that_differ(tmp_path, monkeypatch, capsys):
    llama = {**ROWS["llama"], "expected": {**ROWS["llama"]["expected"], "per_token": 1}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS["gpt2"]) + "\n" + json.dumps(llama) + "\n")
    monkeypatch.setattr(sys, "argv", ["oracle.py", "check", str(path)])
    assert main() == 3
    out = capsys.readouterr().out
    assert out.endswith("1 agrees, 1 differs\n")
    assert "llama: differs: (vmtool, transformers) {'per_token': (262144, 1)}" in out


@pytest.mark.parametrize("model_type", ["t5gemma", "t5gemma2"])
def test_an_encoder_and_a_decoder_are_so_by_default(model_type):
    row = ROWS[model_type]
    config = {key: value for key, value in row["config"].items() if key != "is_encoder_decoder"}
    assert compare({**row, "config": config}) == ("agrees", "")
