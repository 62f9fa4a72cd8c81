"""What transformers 5.24 itself caches for each type of model, recorded by ``scripts/oracle.py``.

The configs are the defaults of the types; each was run on torch's ``meta`` device.
"""

import json
import sys
from pathlib import Path

import pytest

from vmtool.kv.element_formats import choose_formats
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources.hf.config_to_layers import resolve

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


@pytest.mark.parametrize(
    "model_type", [t for t in ROWS if t not in OTHERWISE and "text_config" not in ROWS[t]["config"]]
)
def test_a_number_that_is_left_out_is_the_one_that_the_class_assumes(model_type):
    row = ROWS[model_type]
    for key, value in row["config"].items():
        if type(value) is int:
            rest = {name: other for name, other in row["config"].items() if name != key}
            assert compare({**row, "config": rest})[0] != "differs", key


@pytest.mark.parametrize("model_type", ["t5gemma", "t5gemma2"])
def test_an_encoder_and_a_decoder_are_so_by_default(model_type):
    row = ROWS[model_type]
    config = {key: value for key, value in row["config"].items() if key != "is_encoder_decoder"}
    assert compare({**row, "config": config}) == ("agrees", "")


@pytest.mark.parametrize("model_type", ROWS)
def test_every_type_also_has_a_number_of_bytes(model_type):
    geometry = resolve(ROWS[model_type]["config"], "config.json", model_type)
    formats = choose_formats(geometry.dtype, key=None, value=None)
    assert SequenceCost.of(geometry, formats).bytes_for(100) > 0


def test_the_keys_of_pooled_indexes_have_the_models_type():
    # 11 layers with a latent of 512 in 8 bits, and 2 x 128 + 1 elements of the index in 16.
    row = ROWS["glm5_next"]
    geometry = resolve(row["config"], "config.json", "m")
    formats = choose_formats(geometry.dtype, key="fp8", value="fp8")
    cost = SequenceCost.of(geometry, formats)
    assert cost.slope == 11 * (512 + 257 * 2)


@pytest.mark.parametrize("model_type", ["glm5_next", "dots3_note"])
def test_layers_with_an_index_have_the_name_that_published_files_give_them(model_type):
    config = ROWS[model_type]["config"]
    text = json.dumps(config)
    renamed = json.loads(text.replace("indexed_attention", "deepseek_sparse_attention"))
    assert renamed != config
    layers = resolve(renamed, "config.json", "m").layers
    assert layers == resolve(config, "config.json", "m").layers
