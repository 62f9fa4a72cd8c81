"""What a config says about the whole model: its element type, its cache's, and its context."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.sources.fields import MAX_TOKENS, Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


#: Names that configs give element types, and vmtool's.
_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
_CACHE_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")
#: What vLLM's Quark takes scales from; the cache has the model's type without ``--kv-cache-dtype``.
_OF_QUARK = ("kv_cache_group", "kv_cache_post_rope", "kv_cache_quant_config")
#: Whether GPTQ, while it quantises the weights, keeps what a block gives for the next one.
_OF_GPTQ = ("cache_block_outputs",)
_OFF: tuple[Any, ...] = (None, False, "", "auto", {}, [])
_NOT_UNDERSTOOD = "quantises the KV cache in a way that is not understood"
_HINT = "remove it from a copy of the file, and give the format of the cache with --dtype"
#: Ways to stretch positions whose ``factor`` is in ``max_position_embeddings`` already.
_STRETCHED: Final = ("su", "longrope", "llama3")


def dtype_of(fields: Fields, key: str) -> str | None:
    """Return the element type that *key* names, or ``None`` if it is absent, null or ``auto``.

    Raises:
        InputError: If the name is not understood.
    """
    text = fields.text(key)
    if text is None or text == "auto":
        return None
    dtype = _DTYPES.get(text.removeprefix("torch."))
    if dtype is None:
        fields.fail(key, f"{text[:40]!r} is not understood; known: {', '.join(_DTYPES)}")
    return dtype


def model_dtype(fields: Fields, outer: Fields) -> str | None:
    """Return the model's element type; the decoder's own statement wins over its wrapper's."""
    for place in (fields, outer):
        for key in ("dtype", "torch_dtype"):
            dtype = dtype_of(place, key)
            if dtype is not None:
                place.stated("dtype", dtype, key)
                return dtype
    return None


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
        for key in filter(part.has, _CACHE_KEYS):
            _require_fp8(part, key)
            part.stated("cache_dtype", "fp8", key)
            found = "fp8"
        for key in part.all_keys():
            if (
                "cache" in key
                and key not in (*_CACHE_KEYS, *_OF_QUARK, *_OF_GPTQ)
                and part.peek(key) not in _OFF
            ):
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


def context(fields: Fields) -> int | None:
    """Return the model's longest sequence in tokens, or ``None`` if the file does not say.

    As vLLM derives it (``_get_and_verify_max_len`` in ``config/model.py``): ``model_max_length``
    wins; positions that are stretched multiply it, with yarn from the length before. Its default
    for longrope, the length before, is not followed: that is not the longest.
    """
    longest = fields.optional("context", high=MAX_TOKENS)
    if fields.has("model_max_length"):
        longest = fields.checked(
            "model_max_length", fields.raw("model_max_length"), high=MAX_TOKENS
        )
        fields.stated("context", longest, "model_max_length")
    # Gemma 3, and T5Gemma 2, which is made of it, have their factor in max_position_embeddings.
    made = any(name in fields.architecture for name in ("gemma3", "t5gemma2"))
    for rope in () if made else _rope(fields):
        kind = rope.text("rope_type") or rope.text("type") or "default"
        factor = _factor(rope)
        if kind in _STRETCHED or factor is None:
            continue
        base, name = longest, "the file's context"
        if kind == "yarn":
            base, name = _before_yarn(fields, rope, longest)
        if base is None:
            continue
        stretched = int(base * factor)
        rope.checked("factor", stretched, high=MAX_TOKENS)
        fields.derived("context", stretched, f"{kind}: {name} x factor = {base} x {factor:g}")
        return stretched
    return longest


def _rope(fields: Fields) -> list[Fields]:
    """Return how positions are stretched: one object, or one for each kind of layer."""
    key = "rope_scaling" if fields.has("rope_scaling") else "rope_parameters"
    rope = fields.nested(key, whole=True)
    if rope is None:
        return []
    kinds = rope.all_keys()
    if kinds and all(isinstance(rope.peek(kind), (dict, NoneType)) for kind in kinds):
        return [part for part in map(rope.nested, kinds) if part is not None]
    return [rope]


def _factor(rope: Fields) -> int | float | None:
    value = rope.raw("factor")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_TOKENS:
        rope.fail("factor", f"is {str(value)[:40]}; it must be a number above 0 and below 2^40")
    return value


def _before_yarn(fields: Fields, rope: Fields, longest: int | None) -> tuple[int | None, str]:
    """Return the length before yarn and its name; transformers takes them in this order."""
    name = "original_max_position_embeddings"
    for place in (fields, rope):
        if place.has(name):
            return place.checked(name, place.raw(name), high=MAX_TOKENS), name
    return longest, "the file's context"
