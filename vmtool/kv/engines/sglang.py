"""What SGLang would log for the same pool: "KV Cache is allocated", "max_total_num_tokens".

Source: ``pool_configurator.py`` at commit 003fca80 (``DefaultPoolConfigurator``: the memory by the
bytes of a token, down to whole pages) and ``memory_pool.py`` at commit 000ccdba (buffers have one page
more than tokens, for padding). Models with windows, states or index keys have other pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.geometry import Extent, LayerKind, TensorRole
from vmtool.units import GIB

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.formats import Formats

#: Its names of the formats that it has for K and V alike.
_TYPE_NAMES: Final = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp8": "torch.float8_e4m3fn",
}


@dataclass(frozen=True, slots=True)
class SglangPool:
    """What SGLang makes of the memory.

    Attributes:
        page_tokens: Tokens of a page, ``--page-size``.
        token_bytes: Bytes of a token in all layers of the rank.
        max_total_num_tokens: Tokens of all sequences together.
        key_bytes: Bytes of the buffers of K, or of latents.
        value_bytes: Bytes of those of V; ``None`` for latents, which are both.
        type_name: The element type as it is logged.
    """

    page_tokens: int
    token_bytes: int
    max_total_num_tokens: int
    key_bytes: int
    value_bytes: int | None
    type_name: str


def sglang_pool(cost: SequenceCost, formats: Formats, budget: int, page: int) -> SglangPool:
    """Return how SGLang divides *budget* bytes of KV memory on one rank.

    Raises:
        UsageError: If it has no such format, or the layers are not modelled here.
    """
    if formats.key != formats.value:
        raise UsageError("--as sglang: it has one KV type for K and V")
    if formats.key.name not in _TYPE_NAMES:
        raise UsageError(
            f"--as sglang: the KV type {formats.key.name} is not modelled",
            hint=f"use one of {', '.join(_TYPE_NAMES)}",
        )
    if not _is_plain(cost):
        raise UsageError(
            "--as sglang: only models are modelled whose layers all keep every token, and alike:"
            " no windows, states, index keys or cross attention"
        )
    (layers,) = cost.layers
    sizes = {tensor.role: layers.count * tensor.bytes_per_token for tensor in layers.tensors}
    token_bytes = sum(sizes.values())
    tokens = budget // token_bytes // page * page
    value = sizes.pop(TensorRole.VALUE, None)
    return SglangPool(
        page,
        token_bytes,
        tokens,
        (tokens + page) * sum(sizes.values()),
        None if value is None else (tokens + page) * value,
        _TYPE_NAMES[formats.key.name],
    )


def log_lines(pool: SglangPool) -> dict[str, list[str]]:
    """Return the lines that SGLang would log, by the versions that log so."""
    sizes = f"KV size: {pool.key_bytes / GIB:.2f} GB"
    if pool.value_bytes is not None:
        sizes = f"K size: {pool.key_bytes / GIB:.2f} GB, V size: {pool.value_bytes / GIB:.2f} GB"
    count = f"#tokens: {pool.max_total_num_tokens}, {sizes}"
    total = f"max_total_num_tokens={pool.max_total_num_tokens}"
    return {
        "older": [f"KV Cache is allocated. {count}", total],
        "newer": [f"KV Cache is allocated. dtype: {pool.type_name}, {count}", total],
    }


def _is_plain(cost: SequenceCost) -> bool:
    """Return whether all layers are alike and keep K and V, or a latent, of every token."""
    return len(cost.layers) == 1 and all(
        layer.kind in (LayerKind.FULL, LayerKind.MLA)
        and not layer.states
        and all(t.role is not TensorRole.INDEX and t.extent == Extent() for t in layer.tensors)
        for layer in cost.layers
    )
