"""A model described by flags alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.kv.geometry import Layer, LayerKind, ModelGeometry, Provenance, Source
from vmtool.kv.sources.fields import FLAGS
from vmtool.kv.sources.tensors import pair

if TYPE_CHECKING:
    from collections.abc import Mapping


def build(values: Mapping[str, int]) -> ModelGeometry:
    """Return equal full-attention layers; V is as wide as K unless ``head_dim_v`` is given."""
    facts = {name: Provenance(value, Source.FLAG, FLAGS[name]) for name, value in values.items()}
    dim = values["head_dim"]
    if "head_dim_v" not in values:
        facts["head_dim_v"] = Provenance(dim, Source.DERIVED, "flags", "as wide as K")
    tensors = pair(values["kv_heads"], dim, values.get("head_dim_v", dim))
    layers = tuple(Layer(i, LayerKind.FULL, tensors) for i in range(values["layers"]))
    return ModelGeometry("flags", "flags", layers, provenance=facts)
