"""A Hugging Face ``config.json`` as a geometry: its decoder, its architecture, its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import Layer, ModelGeometry, Source, Span
from vmtool.kv.sources.fields import FLAGS, Fields
from vmtool.kv.sources.hf.context_length import context
from vmtool.kv.sources.hf.cross_attention import encoder_cross
from vmtool.kv.sources.hf.encoders import refuse_encoder
from vmtool.kv.sources.hf.family import NAMES, Family, layers_of, mtp_layers_of
from vmtool.kv.sources.hf.model_dtype import model_dtype
from vmtool.kv.sources.hf.quantized_cache import cache_dtype, quantization_configs
from vmtool.kv.sources.hf.registry import (
    STANDARD,
    config_defaults,
    family_of,
    similar_to,
    source_of,
)
from vmtool.kv.sources.hf.unread_fields import refuse_unread
from vmtool.kv.sources.hf.wrappers import DECODER_KEYS, decoder_of

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    layers = _with_encoder(fields, _layers_of(fields, family))
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


def _layers_of(fields: Fields, family: Family) -> tuple[Layer, ...]:
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
