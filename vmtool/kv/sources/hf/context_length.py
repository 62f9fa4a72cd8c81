"""The context length of a Hugging Face model, and the settings that stretch it."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from vmtool.kv.sources.fields import MAX_TOKENS

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


#: Ways to stretch positions whose ``factor`` is in ``max_position_embeddings`` already.
_STRETCHED: Final = ("su", "longrope", "llama3")


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
    # Gemma 3 has its factor in max_position_embeddings, whatever the way.
    for rope in () if "gemma3" in fields.architecture else _rope(fields):
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
