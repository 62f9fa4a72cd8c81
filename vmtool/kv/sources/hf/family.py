"""How an architecture is described, and how its layers are built from the description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, StateTensor, Tensor, whole_layer
from vmtool.kv.sources.fields import MAX_LAYERS
from vmtool.kv.sources.hf import layer_kinds
from vmtool.kv.sources.hf.attention import grouped
from vmtool.kv.sources.hf.context_length import context

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
        mtp: Returns that many layers that only predict further tokens, instead of `mtp_layers_of`'s rule;
            ``None`` if the file does not say what they keep.
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


def layers_of(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """Return the layers of a config of *family*.

    Raises:
        InputError: If a value is missing, malformed or not understood.
    """
    if family.build is not None:
        return family.build(fields)
    count = _count(fields, family)
    kinds = _kinds(fields, family, count)
    patterns: dict[tuple[LayerKind, str], Layer] = {}
    layers = []
    for i, (kind, places) in enumerate(
        zip(kinds, _changed_fields(fields, family, kinds), strict=True)
    ):
        key = (kind, places.prefix if places is not fields else "")
        if key not in patterns:
            tensors = family.attention(places, kind) if kind in _ATTENDING else ()
            builder = family.states.get(kind)
            patterns[key] = Layer(0, kind, tensors, builder(places) if builder else ())
        layers.append(replace(patterns[key], index=i))
    if "layer_kinds" not in fields.facts:
        fields.defaulted("layer_kinds", _summary(kinds), "fixed by the architecture")
    made = without_useless_window(fields, tuple(layers))
    return family.finish(fields, made) if family.finish else made


def mtp_layers_of(
    fields: Fields, family: Family, layers: tuple[Layer, ...]
) -> tuple[Layer, ...] | None:
    """Return the layers that only predict further tokens, which a file counts apart.

    Each keeps what the layers that keep every token do, unless the list of kinds goes on with its own
    (``deepseek_mtp.py``, ``glm4_moe_mtp.py``, ``qwen3_next_mtp.py`` and ``step3p5_mtp.py`` of vLLM).
    ``None`` means that nothing says what they keep.
    """
    count = fields.optional("mtp_layers", low=0, high=MAX_LAYERS)
    if count is None and family.mtp_by_default:
        count = family.mtp_by_default
        fields.derived("mtp_layers", count, "vLLM's default where no field gives one")
    if not count:
        return ()
    if family.mtp is not None:
        return family.mtp(fields, count)
    listed = (fields.items(family.types_key) or [])[len(layers) :]
    if len(listed) == count:
        by_kind = {layer.kind: layer for layer in layers}
        made = [by_kind.get(family.meaning.get(str(name), LayerKind.NONE)) for name in listed]
    else:
        made = [whole_layer(layers)] * count
    found = tuple(replace(layer, index=i) for i, layer in enumerate(made) if layer is not None)
    return found if len(found) == count else None


def _changed_fields(fields: Fields, family: Family, kinds: list[LayerKind]) -> list[Fields]:
    """Return the fields of each layer, with what ``per_layer_config`` changes for it.

    transformers from version 5 saves so what differs from layer to layer (``configuration_utils``):
    by the layer's number, or by its kind in ``layer_types``. Others have a list, `Family.blocks_key`.
    """
    blocks = fields.items(family.blocks_key, length=len(kinds)) if family.blocks_key else None
    if blocks is not None:
        if not all(isinstance(block, dict) for block in blocks):
            fields.fail(family.blocks_key, "must be a list of objects")
        return [fields.overlaid(b, f"{family.blocks_key}[{i}].") for i, b in enumerate(blocks)]
    changes = fields.nested("per_layer_config")
    if changes is None:
        return [fields] * len(kinds)
    listed = fields.items("layer_types") or []
    names = {str(name) for name in listed}
    found: list[Fields] = []
    made: dict[str, Fields] = {}
    for key in changes.all_keys():
        if key not in names and not (key.isdecimal() and int(key) < len(kinds)):
            changes.fail(key, f"is neither a kind nor a number of the {len(kinds)} layers")
    by_number = {int(key): key for key in changes.all_keys() if key.isdecimal()}
    for i in range(len(kinds)):
        key = by_number.get(i, str(listed[i]) if i < len(listed) else "")
        values = changes.raw(key)
        if values is None:
            found.append(fields)
            continue
        if not isinstance(values, dict):
            changes.fail(key, "must be an object")
        alike = repr(sorted(values.items()))
        if alike not in made:
            made[alike] = fields.overlaid(values, f"per_layer_config.{key}.")
        found.append(made[alike])
    return found


def _count(fields: Fields, family: Family) -> int:
    """Return the number of layers; the length of a list of kinds will do."""
    listed = fields.items(family.types_key)
    if (
        listed
        and not any(fields.has(key) for key in fields.names["layers"])
        and "layers" not in fields.overridden
    ):
        fields.derived("layers", len(listed), f"entries of {family.types_key}")
        return len(listed)
    return fields.integer("layers", high=MAX_LAYERS)


def _kinds(fields: Fields, family: Family, count: int) -> list[LayerKind]:
    if not fields.has(family.types_key):
        return family.plan(fields, count)
    for name in ("period", "window"):
        fields.used.update(fields.names[name])  # the list is their result
    fields.used.update(("max_window_layers", "use_sliding_window"))
    kinds = layer_kinds.named(fields, family.types_key, count, family.meaning)
    fields.stated("layer_kinds", _summary(kinds), family.types_key)
    return kinds


def without_useless_window(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return *layers* with full attention if all have one window, as long as the context or longer.

    That is how files switch a window off (Phi-4-mini). Where only some layers have a window, it
    stays: that is the architecture's, and the context can be extended.
    """
    windows, longest = {layer.window for layer in layers}, context(fields)
    window = windows.pop() if len(windows) == 1 else None
    if window is None or longest is None or window < longest:
        return layers
    fields.derived("windows", "full attention", f"window {window} >= context {longest}")
    return tuple(
        replace(
            layer,
            kind=LayerKind.FULL,
            tensors=tuple(replace(tensor, extent=Extent()) for tensor in layer.tensors),
        )
        for layer in layers
    )


def _summary(kinds: list[LayerKind]) -> str:
    """Return how many layers there are of each kind, as text."""
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items())
