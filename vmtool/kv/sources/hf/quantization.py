"""The element type in which engines keep the KV cache of a quantised checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vmtool.kv.sources.fields import Fields

_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


def cache_dtype(configs: Iterable[Fields | None]) -> str | None:
    """Return ``fp8`` if one of the *configs* of quantisation says so, and ``None`` if none does.

    vLLM's ``auto`` is fp8 for a compressed-tensors file with a ``kv_cache_scheme``
    (``Attention.__init__``; ``CompressedTensorsKVCacheMethod.validate_kv_cache_scheme`` takes only
    symmetric 8-bit floats with a scale for each tensor or head) and for a ModelOpt file with that
    scheme or a ``kv_cache_quant_algo`` of FP8, also one deeper, under ``quantization``
    (``get_kv_cache_quant_algo_string`` in ``torch_utils.py``).

    Raises:
        InputError: If a cache is to be quantised in another way.
    """
    found = None
    for part in _parts(configs):
        for key in filter(part.has, _KEYS):
            _require_fp8(part, key)
            part.stated("cache_dtype", "fp8", key)
            found = "fp8"
    return found


def _parts(configs: Iterable[Fields | None]) -> Iterator[Fields]:
    for config in configs:
        if config is not None:
            yield config
            if isinstance(config.peek("quantization"), dict):
                yield from filter(None, [config.nested("quantization")])


def _require_fp8(part: Fields, key: str) -> None:
    value = part.raw(key)
    if isinstance(value, str) and value.lower() == "fp8":
        return
    if isinstance(value, dict) and (
        (value.get("type"), value.get("num_bits")) == ("float", 8)
        and value.get("dynamic") in (None, False)
        and value.get("symmetric") in (None, True)
        and value.get("strategy") in (None, "tensor", "attn_head")
    ):
        return
    part.fail(
        key,
        "quantises the KV cache in a way that is not understood",
        hint="take it out of a copy of the file, and give the cache's format with --dtype",
    )
