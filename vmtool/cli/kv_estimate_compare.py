"""The rows of ``vmtool kv-estimate --compare`` and ``--sweep``, and what an engine makes of one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool.cli.kv_budget_and_weights import refuse_large_weights
from vmtool.cli.kv_engine_answer import engine_result
from vmtool.errors import RefusedError, UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.cli.kv_estimate_request import EstimateRequest
    from vmtool.kv.estimate_compare_result import ComparisonRow

#: More rows than this are no table that anyone reads.
MOST_ROWS: Final = 1000


def row_of(
    request: EstimateRequest, labels: dict[str, str], refusals: list[UsageError | RefusedError]
) -> ComparisonRow:
    """Return one row; what a combination cannot do is a result, an unknown name is not.

    Args:
        request: That combination.
        labels: Its values by axis.
        refusals: Gets what it cannot do.
    """
    from vmtool.kv.engines.llamacpp import LlamaCppResult
    from vmtool.kv.engines.trtllm import TrtllmResult
    from vmtool.kv.engines.vllm import VllmResult
    from vmtool.kv.estimate import answer_of, need_of
    from vmtool.kv.estimate_compare_result import ComparisonRow

    budget = request.memory
    row = ComparisonRow(
        labels=labels,
        model=request.model.name,
        format_k="",
        format_v="",
        granule_bytes=(request.options.granules or (2 << 20,))[0],
        policy=request.options.policy,
        context_tokens=request.options.context or request.model.context_tokens or 8192,
        budget_bytes=None if budget is None else budget.total_bytes,
    )
    from vmtool.kv.element_formats import find_format
    from vmtool.kv.packing.policies import POLICIES, unknown_policy

    if request.options.policy not in POLICIES:
        raise unknown_policy(request.options.policy)
    if "dtype" in labels:
        find_format(labels["dtype"])
    try:
        question = request.question()
        refuse_large_weights(question)
        row = replace(
            row,
            format_k=question.formats.key.name,
            format_v=question.formats.value.name,
            context_tokens=question.length,
            budget_bytes=None if question.budget is None else question.budget.kv_bytes,
        )
        cost = question.cost
        row = replace(
            row,
            fixed_bytes=cost.fixed_bytes,
            slope_bytes=cost.slope.numerator,
            slope_tokens=cost.slope.denominator,
            answer=answer_of(question, cost, question.policy),
            need=need_of(question, cost),
        )
        if request.options.engine is None:
            return row
        made = engine_result(request, question)
    except (UsageError, RefusedError) as error:
        refusals.append(error)
        return replace(row, answer=None, need=None, problem=str(error))
    if isinstance(made, LlamaCppResult):
        return replace(row, engine_bytes=made.total_bytes)
    if isinstance(made, VllmResult):
        return replace(
            row,
            engine_tokens=made.tokens_newer,
            engine_sequences=round(round(made.concurrency, 2) * 100),  # as its log line rounds
        )
    if isinstance(made, TrtllmResult):
        sequences = None if made.sequences is None else made.sequences * 100
        return replace(row, engine_tokens=made.tokens, engine_sequences=sequences)
    return replace(row, engine_tokens=made.pool.max_total_num_tokens)


def best_of(rows: Sequence[ComparisonRow]) -> list[bool]:
    """Return which rows are best; none where nothing fits, lengths differ, or there is no budget."""
    if len({row.context_tokens for row in rows}) > 1 or any(
        row.budget_bytes is None for row in rows
    ):
        return [False] * len(rows)
    best = max(map(_rank, rows))
    return [_rank(row) == best > (0, 0) for row in rows]


def _rank(row: ComparisonRow) -> tuple[float, float]:
    """Return how good *row* is: the sequences that fit, then the tokens of a single one."""
    if row.problem or row.answer is None:
        return (0, 0)
    if row.engine_tokens is not None:
        return (row.engine_sequences or 0, row.engine_tokens)
    return tuple(  # type: ignore[return-value]
        math.inf if capacity is None or capacity.fits is None else capacity.fits
        for capacity in (row.answer.max_sequences, row.answer.max_tokens)
    )


def read_sweep(text: str) -> list[int]:
    """Return the lengths that *text* means: ``context=1k..128k`` doubles, ``...:8k`` steps.

    Raises:
        UsageError: If it is not of that form.
    """
    axis, _, span = text.partition("=")
    low_text, dots, rest = span.partition("..")
    high_text, colon, step_text = rest.partition(":")
    if axis != "context" or not dots:
        raise UsageError(f"--sweep {text!r}: write context=1k..128k or context=8k..64k:8k")
    try:
        low, high = parse_count(low_text), parse_count(high_text)
        step = parse_count(step_text) if colon else 0
    except ValueError as error:
        raise UsageError(f"--sweep {text!r}: {error}") from None
    if not 0 < low <= high < 1 << 48 or (colon and not step):
        raise UsageError(
            f"--sweep {text!r}: it must start at 1 token or more, rise, and end below 2^48 tokens"
        )
    if not step:
        lengths = [low << i for i in range((high // low).bit_length())]
        return lengths if lengths[-1] == high else [*lengths, high]
    if (high - low) // step >= MOST_ROWS:
        raise UsageError(f"--sweep {text!r}: more than {MOST_ROWS} rows")
    return [*range(low, high, step), high]
