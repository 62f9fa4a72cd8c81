"""The tensors that every source builds alike."""

from __future__ import annotations

from vmtool.kv.geometry import Extent, Role, Tensor


def pair(kv_heads: int, dim_k: int, dim_v: int, held: Extent | None = None) -> tuple[Tensor, ...]:
    """Return K and V tensors of *kv_heads* rows for each token that *held* keeps."""
    held = held or Extent()
    return (
        Tensor("k", Role.KEY, kv_heads, dim_k, held),
        Tensor("v", Role.VALUE, kv_heads, dim_v, held),
    )
