"""Where a model's geometry comes from: files, flags, the hub, or the built-in table.

Each reader is imported when it is needed: a built-in model loads neither JSON nor the readers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vmtool.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.geometry import ModelGeometry


def load(spec: str, *, overrides: Mapping[str, int] | None = None) -> ModelGeometry:
    """Return the geometry of *spec*.

    That is a built-in name, a file, a folder with one, ``-`` for stdin, a pipe, or on the hub
    ``OWNER/NAME`` or its address. A built-in name wins over a file of the same name (write ``./name``
    for the file), and a file over the hub.

    Args:
        spec: What the user wrote.
        overrides: Values that win over the file's, by name: ``layers``, ``kv_heads``,
            ``head_dim``, ``head_dim_v``.

    Raises:
        InputError: If the file cannot be read or is not understood; it names file and field.
        UsageError: If *spec* is neither a file nor a built-in name, or an override is out of range
            or does not apply.
        UnavailableError: If *spec* is on the hub, and that does not answer.
    """
    from vmtool.kv.sources import builtin  # noqa: PLC0415

    overrides = _checked(overrides)
    if builtin.known(spec):
        return builtin.load(spec, overrides)
    if spec == "-" or os.path.lexists(spec):
        return _load_file(spec, overrides)
    if remote_name(spec) is not None:
        return from_hub(spec, overrides=overrides)
    raise UsageError(
        f"{spec[:80]!r} is neither a file nor a built-in model", hint=builtin.suggestion(spec)
    )


def remote_name(spec: str) -> str | None:
    """Return the owner/name for which *spec* would ask the hub; ``None`` if it would not."""
    from vmtool.kv.sources import builtin  # noqa: PLC0415

    if builtin.known(spec) or spec == "-" or os.path.lexists(spec):
        return None
    from vmtool.kv.sources import hub  # noqa: PLC0415

    return hub.repository_of(spec)


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in models, sorted."""
    from vmtool.kv.sources import builtin  # noqa: PLC0415

    return builtin.names()


def from_flags(
    *, layers: int, kv_heads: int, head_dim: int, head_dim_v: int | None = None
) -> ModelGeometry:
    """Return a model of *layers* equal full-attention layers, described by flags alone.

    Raises:
        UsageError: If a value is out of range.
    """
    from vmtool.kv.sources import builtin  # noqa: PLC0415

    values = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
    if head_dim_v is not None:
        values["head_dim_v"] = head_dim_v
    return builtin.build(_checked(values))


def from_hub(repository: str, *, overrides: Mapping[str, int] | None = None) -> ModelGeometry:
    """Return the geometry of *repository* (``owner/name``), fetching only its ``config.json``.

    Raises:
        UnavailableError: If huggingface_hub is not installed, or the file cannot be fetched.
        InputError: If the config is not understood.
        UsageError: If *repository* is not ``owner/name``, or an override does not apply.
    """
    from vmtool.kv.sources import hub  # noqa: PLC0415

    return hub.load(repository, _checked(overrides))


def _load_file(path: str, overrides: dict[str, int]) -> ModelGeometry:
    """Return the geometry in *path*, telling the formats apart by their first bytes."""
    from vmtool.input_files import is_stream  # noqa: PLC0415
    from vmtool.kv.sources.model_files import config_in, head_of  # noqa: PLC0415

    path = config_in(path)
    head = head_of(path, 4)
    if head == b"GGUF" and not is_stream(path):
        from vmtool.kv.sources.gguf import model  # noqa: PLC0415

        return model.load(path, overrides)
    # Every ONNX file starts with its version: field 1, a varint. JSON cannot start so.
    if head[:1] == b"\x08":
        from vmtool.kv.sources import onnx  # noqa: PLC0415

        return onnx.load(path, overrides)
    return _load_json(path, overrides)


def _load_json(path: str, overrides: dict[str, int]) -> ModelGeometry:
    from vmtool.kv.sources.model_files import (  # noqa: PLC0415
        MAX_CONFIG_BYTES,
        name_of,
        quantization_beside,
        read_object,
    )

    data = read_object(path, MAX_CONFIG_BYTES)
    if "weight_map" in data and "model_type" not in data:
        raise InputError(
            path,
            "is an index of weights, not a model's config",
            hint="give the config.json beside it, and this file to --weights",
        )
    model = data.get("model")
    if isinstance(model, dict) and "decoder" in model:
        from vmtool.kv.sources import genai  # noqa: PLC0415

        return genai.build(data, path, overrides)
    from vmtool.kv.sources.hf.config_to_layers import resolve  # noqa: PLC0415

    beside = None if data.get("quantization_config") else quantization_beside(path)
    return resolve(data, path, name_of(path), overrides=overrides, beside=beside)


def _checked(overrides: Mapping[str, int] | None) -> dict[str, int]:
    from vmtool.kv.sources.fields import FLAGS, MAX_LAYERS, MAX_SIZE  # noqa: PLC0415

    result = dict(overrides or {})
    for name, value in result.items():
        if name not in FLAGS:
            raise UsageError(f"{name!r} is not a value that can be overridden")
        high = MAX_LAYERS if name == "layers" else MAX_SIZE
        if not 1 <= value <= high:
            raise UsageError(f"{FLAGS[name]} = {value}: it must be from 1 to {high}")
    return result
