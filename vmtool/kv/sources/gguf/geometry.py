"""From GGUF metadata to a geometry, as llama.cpp would lay out the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import ModelGeometry
from vmtool.kv.sources.fields import FLAGS, MAX_TOKENS, Fields
from vmtool.kv.sources.gguf.architectures import (
    ARCHITECTURES,
    NOT_READ,
    WITHOUT_CACHE,
    Architecture,
)
from vmtool.kv.sources.gguf.keys import key_names, refuse_unread
from vmtool.kv.sources.gguf.layers import LayerBuilder
from vmtool.kv.sources.gguf.reader import read_metadata
from vmtool.kv.sources.untrusted_files import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def load(path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the GGUF file *path*.

    Raises:
        InputError: If the file is malformed, or its architecture or a field is not understood.
        UsageError: If an override does not apply.
    """
    return build(read_metadata(path), path, overrides)


def build(metadata: dict[str, Any], path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry that *metadata*, read from *path*, describes."""
    fields = Fields(metadata, path, overrides=overrides)
    architecture = fields.text("general.architecture")
    if architecture is None:
        hint = "if the model is split into several files, give the first"
        fields.fail("general.architecture", "is missing", hint=hint)
    if architecture in WITHOUT_CACHE:
        fields.fail(
            "general.architecture", f"is {architecture}, for which llama.cpp makes no cache"
        )
    if architecture in NOT_READ:
        fields.fail(
            "general.architecture",
            f"is {architecture}, whose caches vmtool does not read from a GGUF file",
            hint="give the model's config.json",
        )
    known = ARCHITECTURES.get(architecture)
    fields.architecture = architecture
    fields.origin = f"src/models/{architecture}.cpp of llama.cpp v0.5.0"
    fields.defaulted("architecture", architecture, "")
    fields.names = key_names(architecture)
    try:
        builder = LayerBuilder(fields, architecture, known or Architecture())
        layers = builder.layers()
        refuse_unread(fields, architecture)
    except InputError as error:
        if known is not None:
            raise
        message = f"{architecture[:60]!r} is an unknown architecture"
        raise InputError(
            path, f"{message}, and its keys are not standard: {error}", field="general.architecture"
        ) from error
    for name in set(overrides) - fields.applied:
        raise UsageError(f"{FLAGS[name]} does not apply to {architecture}: it reads no such value")
    context = fields.optional("context", high=MAX_TOKENS)
    fields.defaulted("dtype", "fp16", "llama.cpp keeps f16 by default")
    return ModelGeometry(
        name_of(path),
        architecture,
        layers,
        context,
        "fp16",
        fields.facts,
        file_format="gguf",
        assumed=known is None,
        mtp_layers=builder.mtp_layers(layers),
        query_heads=fields.query_heads if any(layer.tensors for layer in layers) else None,
    )
