"""From GGUF metadata to a geometry, as llama.cpp would lay out the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import ModelGeometry
from vmtool.kv.sources.fields import FLAGS, MAX_TOKENS, Fields
from vmtool.kv.sources.gguf.architectures import (
    ARCHITECTURES,
    HARMLESS,
    SUSPECT,
    WITHOUT_CACHE,
    Architecture,
    Builder,
)
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
    known = ARCHITECTURES.get(architecture)
    fields.architecture = architecture
    fields.origin = f"src/models/{architecture}.cpp of llama.cpp v0.5.0"
    fields.defaulted("architecture", architecture, "")
    fields.names = _names(architecture)
    try:
        builder = Builder(fields, architecture, known or Architecture())
        layers = builder.layers()
        _refuse_unread(fields, architecture)
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


def _names(architecture: str) -> dict[str, tuple[str, ...]]:
    keys = {
        "layers": "block_count",
        "decoder_layers": "decoder_block_count",
        "heads": "attention.head_count",
        "extra_layers": "nextn_predict_layers",
        "hidden": "embedding_length",
        "context": "context_length",
        "kv_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "head_dim_v": "attention.value_length",
        "window_dim_k": "attention.key_length_swa",
        "window_dim_v": "attention.value_length_swa",
        "mla_dim": "attention.key_length_mla",
        "kv_lora_rank": "attention.kv_lora_rank",
        "index_dim": "attention.indexer.key_length",
        "dense_layers": "leading_dense_block_count",
        "window": "attention.sliding_window",
        "shared_layers": "attention.shared_kv_layers",
        "interval": "full_attention_interval",
        "compress_ratios": "attention.compress_ratios",
        "rope_dim": "rope.dimension_count",
        "linear_heads": "attention.head_count",
        "linear_dim": "kda.head_dim",
        "linear_k_heads": "ssm.group_count",
        "linear_v_heads": "ssm.time_step_rank",
        "linear_dim_k": "ssm.state_size",
        "conv_kernel": "ssm.conv_kernel",
        "ssm_inner": "ssm.inner_size",
        "ssm_state": "ssm.state_size",
        "ssm_groups": "ssm.group_count",
        "ssm_heads": "ssm.time_step_rank",
        "ssm_head_dim": "ssm.head_dim",
        "linear_dim_v": "ssm.value_head_dim",
        "short_conv": "shortconv.l_cache",
        "wkv_head": "wkv.head_size",
        "shift_count": "token_shift_count",
    }
    return {name: (f"{architecture}.{key}",) for name, key in keys.items()}


def _refuse_unread(fields: Fields, architecture: str) -> None:
    """Fail on a set key that may change what is cached and that nothing read."""
    start = f"{architecture}."
    for key in fields.all_keys():
        short = key.removeprefix(start)
        if key in fields.used or short == key or short in HARMLESS:
            continue
        if short.startswith(SUSPECT) and fields.peek(key) not in (None, False, 0):
            fields.fail(key, f"is set, and its effect on {architecture} is not understood")
