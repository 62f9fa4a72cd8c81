"""Element formats: how many bytes one cached row of one head takes, scales included.

A row is what one head keeps of one token. Every engine packs rows on their own, so block formats and
scales are counted for each row and never across heads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.geometry import LayerKind, TensorRole

if TYPE_CHECKING:
    from vmtool.kv.geometry import ModelGeometry, StateTensor, Tensor


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """How elements become bytes.

    Attributes:
        name: The canonical name.
        summary: What it is, in a few words.
        group: Elements that are packed together; a row must be a multiple of it.
        group_bytes: Bytes of one group, with its scales.
        row_bytes: Bytes for each row besides its groups: the scale of one head of one token.
        rope_element_bytes: Bytes of each position element of a latent row, which this format keeps
            apart; 0 where positions are packed like the rest.
        latent_only: Whether only latent (MLA) rows can be stored so.
        aliases: Other spellings.
    """

    name: str
    summary: str
    group: int
    group_bytes: int
    row_bytes: int = 0
    rope_element_bytes: int = 0
    latent_only: bool = False
    aliases: tuple[str, ...] = ()

    def bytes_per_row(self, tensor: Tensor) -> int:
        """Return the bytes of one row of *tensor*.

        Raises:
            UsageError: If the row cannot be stored so, naming the tensor and its size.
        """
        what = f"{self.name} cannot store {tensor.name} rows of {tensor.dim} elements"
        if self.latent_only and not (tensor.role is TensorRole.LATENT and tensor.rope_dim):
            raise UsageError(f"{what}: it is a format of latent (MLA) rows with positions")
        apart = tensor.rope_dim if self.rope_element_bytes else 0
        packed = tensor.dim - apart
        if packed % self.group:
            raise UsageError(
                f"{what}: {packed} is not a multiple of its group of {self.group}",
                hint="choose a format without groups for this tensor, such as bf16 or fp8",
            )
        groups = packed // self.group
        return groups * self.group_bytes + self.row_bytes + apart * self.rope_element_bytes


# Sources: vLLM kv_cache_interface.py (fp8, per-token-head scales, nvfp4, fp8_ds_mla), ggml-common.h
# (block_q8_0 and the others, 32 elements each), DeepSeek-V3.2's indexer (128 fp8 elements and one
# fp32 scale).
_FORMATS: Final = (
    ElementFormat("fp32", "32-bit float", 1, 4, aliases=("float32", "f32", "float")),
    ElementFormat("fp16", "16-bit float", 1, 2, aliases=("float16", "f16", "half")),
    ElementFormat("bf16", "bfloat16", 1, 2, aliases=("bfloat16",)),
    ElementFormat(
        "fp8",
        "8-bit float, one scale per tensor",
        1,
        1,
        aliases=("fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2", "float8", "f8"),
    ),
    ElementFormat("uint8", "8-bit integer, one scale per tensor", 1, 1, aliases=("u8",)),
    ElementFormat(
        "fp8_per_token_head",
        "8-bit float, fp32 scale per token and head",
        1,
        1,
        row_bytes=4,
        aliases=("fp8_pth",),
    ),
    ElementFormat(
        "int8_per_token_head",
        "8-bit integer, fp32 scale per token and head",
        1,
        1,
        row_bytes=4,
        aliases=("int8", "i8", "int8_pth"),
    ),
    ElementFormat(
        "int4_per_token_head",
        "4-bit integer, fp32 scale per token and head",
        2,
        1,
        row_bytes=4,
        aliases=("int4", "i4", "int4_pth"),
    ),
    ElementFormat("nvfp4", "4-bit float, fp8 scale per 16", 16, 9, aliases=("fp4", "fp4_e2m1")),
    ElementFormat(
        "fp8_ds_mla",
        "fp8 latent, fp32 scale per 128, bf16 positions",
        128,
        132,
        rope_element_bytes=2,
        latent_only=True,
        aliases=("ds_mla",),
    ),
    # DeepSeek-V4: 448 B of fp8, a scale byte for each 64 of them and one of padding, and positions.
    ElementFormat(
        "fp8_ds_v4",
        "fp8 latent, 1-byte scale per 64, bf16 positions",
        64,
        65,
        row_bytes=1,
        rope_element_bytes=2,
        latent_only=True,
        aliases=("ds_v4",),
    ),
    ElementFormat("q8_0", "GGML, 34 B per 32", 32, 34),
    ElementFormat("q5_0", "GGML, 22 B per 32", 32, 22),
    ElementFormat("q5_1", "GGML, 24 B per 32", 32, 24),
    ElementFormat("q4_0", "GGML, 18 B per 32", 32, 18),
    ElementFormat("q4_1", "GGML, 20 B per 32", 32, 20),
    ElementFormat("iq4_nl", "GGML, 18 B per 32", 32, 18),
    ElementFormat("mxfp4", "4-bit float, shared exponent per 32", 32, 17),
    ElementFormat("tq3_0", "3.5 bits: 14 B per 32", 32, 14),
)
#: Every format by its canonical name.
FORMATS: Final = {item.name: item for item in _FORMATS}
_BY_NAME: Final = {name: item for item in _FORMATS for name in (item.name, *item.aliases)}

#: Index keys of sparse attention are stored so by vLLM and SGLang, whatever the KV format.
INDEX_FORMAT: Final = ElementFormat("fp8_index", "8-bit float, fp32 scale per 128", 128, 132)


def find_format(name: str) -> ElementFormat:
    """Return the format that *name* means; case, dashes and underscores do not matter.

    Raises:
        UsageError: If there is none, with the closest names.
    """
    key = name.strip().lower().replace("-", "_")
    found = _BY_NAME.get(key) or _turbo(key)
    if found is None:
        from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

        close = get_close_matches(key, _BY_NAME, n=3)
        raise UsageError(
            f"unknown element format {name[:40]!r}",
            hint=f"did you mean {' or '.join(close)}?"
            if close
            else f"use {', '.join(FORMATS)} or turbo2 to turbo4",
        )
    return found


_TURBO: Final = r"turbo([234])(?:_0)?(?::(32|64|128|256))?"


def _turbo(key: str) -> ElementFormat | None:
    """Return a format of llama.cpp's forks: 2, 3 or 4 bits, and a 16-bit norm for each block.

    They differ in the block, 128 elements by default here: ``turbo3:32`` is one of 32.
    """
    match = re.fullmatch(_TURBO, key)
    if match is None:
        return None
    bits, block = int(match[1]), int(match[2] or 128)
    nbytes = bits * block // 8 + 2
    return ElementFormat(key, f"{bits} bits, {nbytes} B per {block}", block, nbytes)


#: States that are past inputs; all others are recurrent.
CONVOLUTIONS: Final = ("conv", "shift")


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of one cache.

    Attributes:
        key: Of K, and of latent rows, which hold K and V at once.
        value: Of V.
        state: Of what is kept in the model's type: recurrent states whose type it leaves open, and
            the index keys of layers without a latent.
        index_keys: Of the index keys of sparse attention.
        recurrent: Of recurrent states but convolutions, whatever the model says; ``None`` is what it
            says.
    """

    key: ElementFormat
    value: ElementFormat
    state: ElementFormat
    index_keys: ElementFormat = INDEX_FORMAT
    recurrent: ElementFormat | None = None

    def of(self, tensor: Tensor) -> ElementFormat:
        """Return the format of *tensor*."""
        if tensor.own_type:
            return self.state
        if tensor.role is TensorRole.INDEX:
            return self.index_keys
        return self.value if tensor.role is TensorRole.VALUE else self.key

    def state_bytes(self, state: StateTensor) -> int:
        """Return the bytes of *state* for one sequence."""
        chosen = self.state if state.dtype is None else find_format(state.dtype)
        if self.recurrent is not None and state.name not in CONVOLUTIONS:
            chosen = self.recurrent
        return state.elements * chosen.group_bytes // chosen.group


def choose_formats(
    model_dtype: str | None, *, key: str | None, value: str | None, cache_dtype: str | None = None
) -> Formats:
    """Return the formats of a cache.

    Without a name, the cache has the format of its checkpoint, or the model's own type
    if that is 16-bit, and else bf16. vLLM serves fp32 models so where the GPU can, and takes the
    type of the weights where the model states none (``_find_dtype`` and ``_resolve_auto_dtype`` in
    ``config/model.py``; ``supported_dtypes`` in ``platforms/cuda.py``). llama.cpp has fp16 there,
    of the same size. States keep the model's type.

    Args:
        model_dtype: The type that the model states, or ``None``.
        key: The name of the format of K, or ``None``.
        value: The same of V.
        cache_dtype: The format of a quantised checkpoint, or ``None``.

    Raises:
        UsageError: If a format is unknown.
    """
    own = FORMATS["fp16" if model_dtype == "fp16" else "bf16"]
    chosen = Formats(own, own, own)
    key, value = key or cache_dtype, value or cache_dtype
    if key is not None:
        chosen = replace(chosen, key=find_format(key))
    if value is not None:
        chosen = replace(chosen, value=find_format(value))
    return chosen


def stored_formats(geometry: ModelGeometry, formats: Formats) -> Formats:
    """Return the formats that vLLM's ``FLASHMLA_SPARSE`` makes of *formats*; most are unchanged.

    It packs fp8 latents of sparse attention with scales, and positions in 16 bits.
    """
    name = formats.key.name
    if name.startswith("fp8") and not name.startswith("fp8_ds"):
        for layer in geometry.layers:
            if any(tensor.role is TensorRole.INDEX for tensor in layer.tensors):
                packed = "fp8_ds_v4" if layer.kind is LayerKind.COMPRESSED else "fp8_ds_mla"
                return replace(formats, key=FORMATS[packed])
    return formats
