"""What a model's KV cache costs and how many tokens fit: pure arithmetic on what a file says."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.kv.estimate import Estimate


def estimate(
    model: str,
    budget_bytes: int,
    *,
    dtype: str | None = None,
    granule_bytes: int = 2 << 20,
    policy: str = "per-tensor",
    block_tokens: int = 16,
    context_tokens: int | None = None,
    sequences: int = 1,
) -> Estimate:
    """Return how many tokens of *model* fit into *budget_bytes* of KV memory.

    ``estimate("llama-3.1-8b", 16 << 30).answer`` has the tokens of one sequence and the sequences
    of the model's context.

    Args:
        model: A built-in name, a file, or a folder with one, as ``vmtool kv-estimate`` takes it.
        budget_bytes: Memory for the KV cache alone: weights are not subtracted.
        dtype: The element format of K and V; ``None``: the model's own.
        granule_bytes: What commits are rounded to.
        policy: How sequences are packed, such as ``paged``.
        block_tokens: Tokens in a block of a paged policy.
        context_tokens: The length of a sequence; ``None``: the model's context.
        sequences: How many share the budget where the longest length is asked.

    Raises:
        UsageError: If *model* is not known or cannot be read, or a name is wrong.
    """
    # What this needs is imported here, because the packages below import this one first.
    from vmtool.kv.estimate import Budget, Estimate, Question  # noqa: PLC0415
    from vmtool.kv.formats import choose_formats  # noqa: PLC0415
    from vmtool.kv.sources import load  # noqa: PLC0415

    geometry = load(model)
    return Estimate(
        Question(
            geometry=geometry,
            formats=choose_formats(
                geometry.dtype, key=dtype, value=dtype, cache_dtype=geometry.cache_dtype
            ),
            format_origin="the model's own" if dtype is None else "as given",
            budget=Budget(budget_bytes, "as given"),
            granules=(granule_bytes,),
            granule=granule_bytes,
            policy=policy,
            block=block_tokens,
            context=context_tokens,
            sequences=sequences,
            in_flight=0,
            waste_threshold=Fraction(1, 10),
        )
    )
