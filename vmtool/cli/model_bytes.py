"""The bytes of a model's KV cache for a number of tokens that an option gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost


def load_cost(model: str) -> SequenceCost:
    """Return what a sequence of *model* costs in its own element type.

    Args:
        model: A built-in name, a file, or a folder with one.

    Raises:
        UsageError: If *model* is not known or cannot be read.
    """
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.element_formats import choose_formats
    from vmtool.kv.sources import load

    geometry = load(model)
    formats = choose_formats(geometry.dtype, key=None, value=None, cache_dtype=geometry.cache_dtype)
    return SequenceCost.of(geometry, formats)


def kv_tensors(model: str) -> tuple[tuple[str, int], ...]:
    """Return the name and the bytes per token of each kind of KV tensor of *model*.

    Raises:
        UsageError: If *model* is not known, cannot be read, or caches nothing per token.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for layer in load_cost(model).layers:
        for tensor in layer.tensors:
            key = (tensor.name, tensor.bytes_per_token)
            found.setdefault(key, []).append(layer.kind.value)
    if not found:
        raise UsageError(f"{model} caches nothing per token", hint="its states have a fixed size")
    names = [name for name, _ in found]
    return tuple(
        (name if names.count(name) == 1 else f"{name} ({kinds[0]})", nbytes)
        for (name, nbytes), kinds in found.items()
    )


def step_bytes(model: str, tokens: int) -> int:
    """Return what *tokens* more of a long sequence of *model* add to its cache.

    Raises:
        UsageError: If *model* is not known, cannot be read, or does not grow with the sequence.
    """
    slope = load_cost(model).slope
    if not slope:
        raise UsageError(f"the cache of {model} stops growing", hint="use --step SIZE")
    return math.ceil(slope * tokens)
