"""The element type that a Hugging Face config gives the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

#: Names that configs give element types, and vmtool's.
_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}


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
