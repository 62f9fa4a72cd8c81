"""Published models: what the deciding fields of their config files come to, at 16 bits.

Each line of published_models.jsonl has the deciding fields of one real file, where that file is,
and figures that were worked out apart from this program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vmtool.kv.geometry import Role, Span
from vmtool.kv.sources.hf.resolve import resolve

PUBLISHED = [
    json.loads(line)
    for line in (Path(__file__).parent / "published_models.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["model"] for row in PUBLISHED])
def test_a_published_model_costs_what_was_worked_out_for_it(row):
    layers = [own_tensors(layer) for layer in resolve(row["config"], "config.json", "m").layers]
    keeping_all = [ts for ts in layers if ts and ts[0].extent.span is Span.ALL]
    keeping_some = [ts for ts in layers if ts and ts[0].extent.span is not Span.ALL]
    assert (len(keeping_all), len(keeping_some)) == (row["full_layers"], row["window_layers"])
    assert all(ts[0].extent.size == row["window"] for ts in keeping_some)
    assert all(bytes_per_token(ts) == row["full_tensors"] for ts in keeping_all)
    assert all(bytes_per_token(ts) == row["window_tensors"] for ts in keeping_some)
    assert sum(sum(bytes_per_token(ts)) for ts in keeping_all) == row["full_layers_bytes"]
    assert sum(sum(bytes_per_token(ts)) for ts in layers) == row["all_layers_bytes"]


def own_tensors(layer):
    """Return the layer's tensors without index keys and cross-attention, which are apart."""
    return [
        t for t in layer.tensors if t.role is not Role.INDEX and t.extent.span is not Span.FIXED
    ]


def bytes_per_token(tensors):
    return [2 * t.elements_per_token for t in tensors]
