"""``vmtool kv-estimate --compare`` and ``--sweep``: the rows, the best of them, and the table."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool.cli.kv_compare_axes import combinations, read_axes
from vmtool.cli.kv_estimate_options import AXES
from vmtool.cli.kv_estimate_request import engine_result
from vmtool.cli.kv_model_and_budget import refuse_large_weights
from vmtool.errors import RefusedError, UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.cli.kv_estimate_request import EstimateRequest
    from vmtool.cli.output import Output
    from vmtool.kv.estimate_compare_result import (
        ComparisonRow,
        EstimateComparison,
        EstimateSweep,
    )

#: More rows than this are no table that anyone reads.
_MOST_ROWS: Final = 1000


def print_comparison(request: EstimateRequest, output: Output) -> EstimateComparison:
    """Print one table of every combination of the axes, such as ``dtype=bf16,q8_0``.

    Raises:
        UsageError: If no combination is possible; so in `RefusedError`.
    """
    from vmtool.kv.estimate_compare_result import EstimateComparison
    from vmtool.report.kv_estimate_compare import compare_text

    options = request.options
    named = options.model
    values = read_axes(options.compare, AXES, _MOST_ROWS, first={"model": [named] if named else []})
    request = request.with_alike(values.get("budget", ()))
    if request.as_device:
        output.notice(
            "one budget names a device, so the weights and the engine's share for other memory are "
            "subtracted from every budget"
        )
    refusals: list[UsageError | RefusedError] = []
    chosen = [(request.changed(labels), labels) for labels in combinations(values)]
    rows = [_row_of(changed, labels, refusals) for changed, labels in chosen]
    if len(refusals) == len(rows):
        raise refusals[0]
    _say_without_weights(chosen, rows, output)
    best = _best_of(rows)
    rows = [replace(row, best=is_best) for row, is_best in zip(rows, best, strict=True)]
    result = EstimateComparison(options.sequences, options.engine_name, tuple(rows))
    if not _wrote_csv_only(options.csv, rows, output):
        output.emit(result, lambda console: compare_text(result, console))
    return result


def _row_of(
    request: EstimateRequest, labels: dict[str, str], refusals: list[UsageError | RefusedError]
) -> ComparisonRow:
    """Return one row; what a combination cannot do is a result, an unknown name is not.

    Args:
        request: That combination.
        labels: Its values by axis.
        refusals: Gets what it cannot do.
    """
    from vmtool.kv.element_formats import find_format
    from vmtool.kv.engines.llamacpp import LlamaCppResult
    from vmtool.kv.engines.trtllm import TrtllmResult
    from vmtool.kv.engines.vllm import VllmResult
    from vmtool.kv.estimate import answer_of, need_of
    from vmtool.kv.estimate_compare_result import ComparisonRow
    from vmtool.kv.packing.policies import POLICIES, unknown_policy

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


def _best_of(rows: Sequence[ComparisonRow]) -> list[bool]:
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


def _say_without_weights(
    chosen: list[tuple[EstimateRequest, dict[str, str]]],
    rows: list[ComparisonRow],
    output: Output,
) -> None:
    """Say from which rows of a comparison no weights are subtracted."""
    possible = [pair for pair, row in zip(chosen, rows, strict=True) if not row.problem]
    bare = [pair for pair in possible if pair[0].lacks_weights]
    if bare:
        where = ""
        if len(bare) < len(possible):
            where = f"{'; '.join(', '.join(labels.values()) for _, labels in bare)}: "
        output.notice(f"{where}{bare[0][0].lacking}")


def print_sweep(request: EstimateRequest, output: Output) -> EstimateSweep:
    """Print one table, and a plot, of sequences of many lengths, such as ``context=1k..128k``."""
    from vmtool.kv.estimate import answer_of, need_of
    from vmtool.kv.estimate_compare_result import ComparisonRow, EstimateSweep
    from vmtool.report.kv_estimate_compare import sweep_text

    lengths = _read_sweep(request.options.sweep or "")
    # A layout with a stride has room for the longest sequence of the sweep.
    question = replace(request.question(), stride=max(lengths))
    refuse_large_weights(question)
    if request.lacks_weights:
        output.notice(request.lacking)
    rows = []
    for length in lengths:
        at = replace(question, context=length)
        if question.geometry.pp > 1:  # another stage may be the fullest at another length
            at = replace(at, geometry=request.rank(question.formats, length))
        cost = at.cost
        rows.append(
            ComparisonRow(
                labels={"context": f"{length}"},
                model=question.geometry.name,
                format_k=question.formats.key.name,
                format_v=question.formats.value.name,
                granule_bytes=question.granule,
                policy=question.policy,
                context_tokens=length,
                budget_bytes=None if question.budget is None else question.budget.kv_bytes,
                fixed_bytes=cost.fixed_bytes,
                slope_bytes=cost.slope.numerator,
                slope_tokens=cost.slope.denominator,
                answer=answer_of(at, cost, question.policy),
                need=need_of(at, cost),
            )
        )
    result = EstimateSweep(tuple(rows))
    if not _wrote_csv_only(request.options.csv, rows, output):
        output.emit(result, lambda console: sweep_text(result, console))
    return result


def _read_sweep(text: str) -> list[int]:
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
    if (high - low) // step >= _MOST_ROWS:
        raise UsageError(f"--sweep {text!r} makes more than {_MOST_ROWS} rows")
    return [*range(low, high, step), high]


def _wrote_csv_only(path: str | None, rows: list[ComparisonRow], output: Output) -> bool:
    """Write the requested CSV, and return whether it took the place of the result."""
    from vmtool.report.csv_and_openmetrics import estimates_csv

    output.save(path, lambda: estimates_csv(rows))
    return path == "-"
