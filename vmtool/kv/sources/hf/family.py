"""What an architecture is made of, and how its layers are put together from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, StateTensor, Tensor
from vmtool.kv.sources.fields import MAX_LAYERS
from vmtool.kv.sources.hf import plans
from vmtool.kv.sources.hf.attention import context, grouped

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
    "period": ("sliding_window_pattern", "_sliding_window_pattern"),
}

#: Kinds that keep K and V, or a latent, for each token.
_ATTENDING = frozenset(
    {
        LayerKind.FULL,
        LayerKind.WINDOW,
        LayerKind.CHUNK,
        LayerKind.MLA,
        LayerKind.PARALLEL,
        LayerKind.CROSS,
    }
)

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
        build: Puts the layers together instead of `layers_of`.
        types_key: The key of the list of layer kinds.
        mha_by_default: Whether an absent number of KV heads means one for each query head.
        harmless: Keys that look like attention but change nothing here.
    """

    plan: plans.Plan = plans.all_full
    attention: Callable[[Fields, LayerKind], tuple[Tensor, ...]] = grouped
    meaning: dict[str, LayerKind] = field(default_factory=lambda: plans.FULL_NAMES)
    states: Mapping[LayerKind, StateBuilder] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    finish: Callable[[Fields, tuple[Layer, ...]], tuple[Layer, ...]] | None = None
    build: Callable[[Fields], tuple[Layer, ...]] | None = None
    types_key: str = "layer_types"
    mha_by_default: bool = False
    harmless: frozenset[str] = frozenset()


def layers_of(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """Return the layers of a config of *family*.

    Raises:
        InputError: If a value is missing, malformed or not understood.
    """
    if family.build is not None:
        return family.build(fields)
    count = _count(fields, family)
    kinds = _kinds(fields, family, count)
    layers = tuple(
        Layer(i, made.kind, made.tensors, made.states) for i, made in _made(fields, family, kinds)
    )
    return family.finish(fields, layers) if family.finish else layers


def _count(fields: Fields, family: Family) -> int:
    """Return the number of layers; a list of their kinds also tells it."""
    count = fields.optional("layers", high=MAX_LAYERS)
    listed = fields.items(family.types_key)
    if count is None and listed:
        fields.derived("layers", len(listed), f"entries of {family.types_key}")
        return len(listed)
    return count if count is not None else fields.integer("layers", high=MAX_LAYERS)


def _kinds(fields: Fields, family: Family, count: int) -> list[LayerKind]:
    if not fields.has(family.types_key):
        return family.plan(fields, count)
    for name in ("period", "window"):
        fields.used.update(fields.names[name])  # the list is their result
    fields.used.update(("max_window_layers", "use_sliding_window"))
    kinds = plans.named(fields, family.types_key, count, family.meaning)
    fields.stated("layer_kinds", _summary(kinds), family.types_key)
    return kinds


def _made(fields: Fields, family: Family, kinds: list[LayerKind]) -> list[tuple[int, Layer]]:
    """Return, for each layer, a pattern layer of its kind; equal kinds share one."""
    patterns: dict[LayerKind, Layer] = {}
    for kind in kinds:
        if kind not in patterns:
            tensors = family.attention(fields, kind) if kind in _ATTENDING else ()
            builder = family.states.get(kind)
            states = builder(fields) if builder else ()
            patterns[kind] = without_useless_window(fields, Layer(0, kind, tensors, states))
    if "layer_kinds" not in fields.facts:
        fields.defaulted("layer_kinds", _summary(kinds), "the architecture's own arrangement")
    return [(i, patterns[kind]) for i, kind in enumerate(kinds)]


def without_useless_window(fields: Fields, layer: Layer) -> Layer:
    """Return *layer* as full attention if its window holds any sequence the model was made for."""
    window, longest = layer.window, context(fields)
    if window is None or longest is None or window < longest:
        return layer
    fields.derived(
        f"{layer.kind.value} layers", "full attention", f"window {window} >= context {longest}"
    )
    tensors = tuple(replace(tensor, extent=Extent()) for tensor in layer.tensors)
    return replace(layer, kind=LayerKind.FULL, tensors=tensors)


def _summary(kinds: list[LayerKind]) -> str:
    """Return how many layers there are of each kind, as text."""
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items())
