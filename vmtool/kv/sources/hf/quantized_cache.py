"""The element type in which engines keep the KV cache of a quantised checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.kv.sources.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")
#: What vLLM's Quark takes scales from; the cache has the model's type without ``--kv-cache-dtype``.
_OF_QUARK = ("kv_cache_group", "kv_cache_post_rope", "kv_cache_quant_config")
_OFF: tuple[Any, ...] = (None, False, "", "auto", {}, [])
_NOT_UNDERSTOOD = "quantises the KV cache in a way that is not understood"
_HINT = "remove it from a copy of the file, and give the format of the cache with --dtype"


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
    for part in _quantization_parts(configs):
        for key in filter(part.has, _KEYS):
            _require_fp8(part, key)
            part.stated("cache_dtype", "fp8", key)
            found = "fp8"
        for key in part.all_keys():
            if "cache" in key and key not in (*_KEYS, *_OF_QUARK) and part.peek(key) not in _OFF:
                part.fail(key, _NOT_UNDERSTOOD, hint=_HINT)
    return found


def _quantization_parts(configs: Iterable[Fields | None]) -> Iterator[Fields]:
    for config in configs:
        if config is not None:
            yield config
            if isinstance(config.peek("quantization"), dict):
                yield from filter(None, [config.nested("quantization", whole=True)])


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
        _NOT_UNDERSTOOD,
        hint=_HINT,
    )


def quantization_configs(
    fields: Fields, outer: Fields, beside: tuple[str, Mapping[str, Any]] | None
) -> Iterator[Fields | None]:
    """Yield what says how the checkpoint is quantised, in the file and beside it."""
    for place in dict.fromkeys((outer, fields)):
        yield place.nested("quantization_config", whole=True)
    if beside is not None:
        where, data = beside
        yield Fields(data, where, facts=fields.facts)
