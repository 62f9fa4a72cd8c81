"""How an architecture is described: its family, and the names of config keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Layer, LayerKind, StateTensor, Tensor
from vmtool.kv.sources.hf import layer_kinds
from vmtool.kv.sources.hf.attention_tensors import grouped

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

#: Keys under which configs give a value, by value name. Several present must agree.
NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "head_dim": ("head_dim",),
    "head_dim_v": ("v_head_dim",),
    "context": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "context_length",
    ),
    "window": ("sliding_window", "sliding_window_size"),
    "chunk": ("attention_chunk_size",),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "period": ("sliding_window_pattern", "_sliding_window_pattern"),
}

StateBuilder = Callable[["Fields"], tuple[StateTensor, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Attributes:
        plan: The kinds of the layers, where the file does not list them.
        attention: The tensors of a layer of a given kind.
        meaning: What the entries of *types_key* mean here.
        states: The states of each recurrent kind.
        names: Where its keys differ from `NAMES`.
        defaults: What its config class assumes for absent keys.
        finish: A last change to the layers, such as sharing KV.
        build: Puts the layers together instead of `config.layers_of`.
        mtp: Returns that many layers that only predict further tokens, instead of the rule of
            `config.mtp_layers_of`; ``None`` if the file does not say what they keep.
        mtp_by_default: How many such layers a file has that does not say it.
        types_key: The key of the list of layer kinds.
        blocks_key: The key of a list with the fields that differ in each layer.
        mha_by_default: Whether an absent number of KV heads means one for each query head.
        harmless: Keys that look like attention but change nothing here.
        source: The file where what it caches is written, where that is not `source_of`'s rule.
    """

    plan: layer_kinds.Plan = layer_kinds.all_full
    attention: Callable[[Fields, LayerKind], tuple[Tensor, ...]] = grouped
    meaning: dict[str, LayerKind] = field(default_factory=lambda: layer_kinds.FULL_NAMES)
    states: Mapping[LayerKind, StateBuilder] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    finish: Callable[[Fields, tuple[Layer, ...]], tuple[Layer, ...]] | None = None
    build: Callable[[Fields], tuple[Layer, ...]] | None = None
    mtp: Callable[[Fields, int], tuple[Layer, ...] | None] | None = None
    mtp_by_default: int = 0
    types_key: str = "layer_types"
    blocks_key: str = ""
    mha_by_default: bool = False
    harmless: frozenset[str] = frozenset()
    source: str = ""
