"""A model's file: which format it has, told by its first bytes, and what reads that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import InputError

if TYPE_CHECKING:
    from vmtool.kv.geometry import ModelGeometry


def load_file(path: str, overrides: dict[str, int]) -> ModelGeometry:
    """Return the geometry in *path*, telling the formats apart by their first bytes."""
    from vmtool.input_files import is_stream  # noqa: PLC0415
    from vmtool.kv.sources.untrusted_files import config_in, head_of  # noqa: PLC0415

    path = config_in(path)
    head = head_of(path, 4)
    if head == b"GGUF" and not is_stream(path):
        from vmtool.kv.sources.gguf import layers  # noqa: PLC0415

        return layers.load(path, overrides)
    # Every ONNX file starts with its version: field 1, a varint. JSON cannot start so.
    if head[:1] == b"\x08":
        from vmtool.kv.sources import onnx  # noqa: PLC0415

        return onnx.load(path, overrides)
    return _load_json(path, overrides)


def _load_json(path: str, overrides: dict[str, int]) -> ModelGeometry:
    from vmtool.kv.sources.untrusted_files import (  # noqa: PLC0415
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
    from vmtool.kv.sources.hf.config import resolve  # noqa: PLC0415

    beside = None if data.get("quantization_config") else quantization_beside(path)
    return resolve(data, path, name_of(path), overrides=overrides, beside=beside)
