"""Flags, and what lies beside a config: other ways to describe a model."""

from __future__ import annotations

import pytest
from hf_configs import LLAMA

from vmtool.errors import UsageError
from vmtool.kv.geometry import Source
from vmtool.kv.sources import model_lookup


def test_quantisation_may_be_described_beside_the_config(tmp_path, write_config):
    # ModelOpt before 0.31; vLLM's get_config reads it where config.json says nothing itself.
    path = write_config({**LLAMA})
    write_config({"quantization": {"kv_cache_quant_algo": "FP8"}}, "hf_quant_config.json")
    for spec in (path, str(tmp_path)):
        geometry = model_lookup.load(spec)
        assert geometry.cache_dtype == "fp8"
        fact = geometry.provenance["cache_dtype"]
        assert fact.where.endswith("hf_quant_config.json")
        assert fact.detail == "quantization.kv_cache_quant_algo"
    assert model_lookup.load(write_config(LLAMA, "other.json")).cache_dtype is None
    own = {"quantization_config": {"quant_method": "fp8"}}
    assert model_lookup.load(write_config({**LLAMA, **own})).cache_dtype is None


def test_flags_alone_describe_a_model():
    geometry = model_lookup.from_flags(layers=3, kv_heads=8, head_dim=192, head_dim_v=128)
    assert len(geometry.layers) == 3
    assert [(t.heads, t.dim) for t in geometry.layers[0].tensors] == [(8, 192), (8, 128)]
    assert geometry.provenance["head_dim_v"].where == "--head-dim-v"
    same = model_lookup.from_flags(layers=1, kv_heads=1, head_dim=64)
    assert same.layers[0].tensors[1].dim == 64
    assert same.provenance["head_dim_v"].source is Source.DERIVED


@pytest.mark.parametrize(
    ("name", "value"), [("layers", 0), ("layers", 5000), ("kv_heads", -1), ("head_dim", 1 << 25)]
)
def test_a_flag_out_of_range_is_refused(name, value):
    values = {"layers": 1, "kv_heads": 1, "head_dim": 64, name: value}
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} = {value}"):
        model_lookup.from_flags(**values)


def test_an_unknown_override_is_refused(write_config):
    with pytest.raises(UsageError, match="'colour' is not a value"):
        model_lookup.load(write_config(LLAMA), overrides={"colour": 1})
