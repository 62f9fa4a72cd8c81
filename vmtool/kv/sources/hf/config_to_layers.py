"""A Hugging Face ``config.json`` as a geometry: its decoder, its architecture, its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import Extent, Layer, LayerKind, ModelGeometry, Source, Span, whole_layer
from vmtool.kv.sources.fields import FLAGS, MAX_LAYERS, Fields
from vmtool.kv.sources.hf import layer_kinds
from vmtool.kv.sources.hf.architecture_lookup import (
    STANDARD,
    config_defaults,
    family_of,
    similar_to,
    source_of,
)
from vmtool.kv.sources.hf.decoder_part import DECODER_KEYS, decoder_of, refuse_encoder
from vmtool.kv.sources.hf.dtype_and_context import (
    cache_dtype,
    context,
    model_dtype,
    quantization_configs,
)
from vmtool.kv.sources.hf.family import NAMES
from vmtool.kv.sources.hf.unread_fields import refuse_unread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.sources.hf.family import Family

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


def resolve(
    data: Mapping[str, Any],
    where: str,
    name: str,
    *,
    source: Source = Source.FILE,
    overrides: Mapping[str, int] | None = None,
    beside: tuple[str, Mapping[str, Any]] | None = None,
) -> ModelGeometry:
    """Return the geometry of the config *data*.

    Args:
        data: The parsed object.
        where: The file, for errors and provenance.
        name: What to call the model.
        source: What kind of place *data* came from.
        overrides: Values by name that win over the file's: ``layers``, ``kv_heads``, ``head_dim``
            and ``head_dim_v``.
        beside: A file of its own that says how the checkpoint is quantised, and what it holds.

    Raises:
        InputError: If the architecture, a layer kind or a field is missing, malformed or unknown.
        UsageError: If an override does not apply to this architecture.
    """
    outer = Fields(data, where, source=source, overrides=overrides)
    fields, architecture = decoder_of(outer)
    family = family_of(architecture)
    fields.names = {**NAMES, **family.names}
    # Only a decoder inside another config may leave everything out; otherwise it is another kind of file.
    says_nothing = fields is outer and not any(map(fields.given, ("layers", "heads", "hidden")))
    wrapper = outer.peek("model_type") if fields is not outer else None
    assumed = {} if says_nothing else config_defaults(architecture)
    around = {} if wrapper is None else config_defaults(f"{wrapper}/{architecture}")
    fields.defaults = {**assumed, **family.defaults, **around}
    fields.architecture = architecture
    fields.origin = source_of(architecture, family)
    fields.defaulted("architecture", architecture, "")
    fields.mha_by_default = family.mha_by_default or "mha" in assumed
    refuse_encoder(fields, is_known=family is not STANDARD)
    layers = _with_encoder(fields, _known_or_standard_layers(fields, family))
    mtp = mtp_layers_of(fields, family, layers)
    if family is not STANDARD:
        refuse_unread(fields, _without_effect(fields, family, layers))
    for flag in set(overrides or ()) - fields.applied:
        raise UsageError(f"{FLAGS[flag]} does not apply to {architecture}: it reads no such value")
    return ModelGeometry(
        name=name,
        architecture=architecture,
        layers=layers,
        context_tokens=context(fields),
        dtype=model_dtype(fields, outer),
        cache_dtype=cache_dtype(quantization_configs(fields, outer, beside)),
        provenance=fields.facts,
        assumed=family is STANDARD,
        mtp_layers=mtp,
        query_heads=fields.query_heads if any(layer.tensors for layer in layers) else None,
    )


def _known_or_standard_layers(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """Return the layers; say of an unknown architecture that this is what is wrong."""
    if family is not STANDARD:
        return layers_of(fields, family)
    try:
        layers = layers_of(fields, family)
        refuse_unread(fields, _without_effect(fields, family, layers), is_known=False)
    except InputError as error:
        similar = similar_to(fields.architecture)
        known = f"{fields.architecture[:60]!r} is an unknown architecture"
        raise InputError(
            fields.where,
            f"{known}, and its fields are not standard: {error}",
            field=f"{fields.place('model_type')}",
            hint=similar,
        ) from error
    return layers


def _with_encoder(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return *layers* with what they keep of an encoder that the config around them adds."""
    outer = fields.outer
    if outer is None:
        return layers
    known = outer.peek("model_type") in DECODER_KEYS  # is_encoder_decoder is their default
    if not outer.peek("is_encoder_decoder") and not (known and not outer.has("is_encoder_decoder")):
        return layers
    if any(t.extent.span is Span.FIXED for layer in layers for t in layer.tensors):
        return layers
    if not known:
        outer.fail(
            "is_encoder_decoder", f"is set, but {fields.architecture} keeps nothing of an encoder"
        )
    from vmtool.kv.sources.hf.family_tables.encoder_decoder import encoder_cross  # noqa: PLC0415

    return encoder_cross(fields, layers)


def _without_effect(fields: Fields, family: Family, layers: tuple[Layer, ...]) -> frozenset[str]:
    """Return keys of an architecture that these layers had no use for."""
    known = {key for keys in family.names.values() for key in keys}
    if not any(layer.tensors for layer in layers):
        known.update(NAMES["kv_heads"], NAMES["head_dim"])
    if fields.outer is not None and fields.outer.peek("is_encoder_decoder"):
        known.update(("is_encoder_decoder", "add_cross_attention"))
    for name in ("layers", "heads", "hidden"):
        known.update((*NAMES[name], *family.names.get(name, ())))
    return frozenset(known) | family.harmless


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
    made = _without_useless_window(fields, tuple(layers))
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


def _without_useless_window(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
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
