"""The tables of ``vmtool kv-estimate --compare`` and ``--sweep``, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.report.console import paragraph, show
from vmtool.report.kv_estimate import capacity_text, formats_text, waste_text
from vmtool.report.table import comparison, table
from vmtool.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.kv.estimate_compare_result import ComparisonRow, EstimateComparison, EstimateSweep

_BAR: Final = 40


def compare_text(result: EstimateComparison, console: Console) -> None:
    """Print the comparison; the best rows are marked."""
    show(console, _compare_parts(result))


def _compare_parts(result: EstimateComparison) -> Iterator[RenderableType]:
    rows = result.rows
    axes = list(rows[0].labels)
    in_labels = "context" in axes or len({row.context_tokens for row in rows}) == 1
    yield paragraph(compare_title(result))
    yield ""
    columns = measured(result)
    headings = [*axes, *([] if in_labels else ["context"]), *columns, ""]
    cells = [
        [
            *({**row.labels, **_length(row)} if "context" in axes else row.labels).values(),
            *([] if in_labels else _length(row).values()),
            *(text(row) for text in columns.values()),
            "best" if row.best else "",
        ]
        for row in rows
        if row.answer is not None
    ]
    if cells:
        yield from comparison(headings, cells, names=len(axes))
    for row in rows:
        if row.problem:
            text = f"not possible: {', '.join(row.labels.values())}: {row.problem}"
            yield paragraph(text, indent="  ")


def _length(row: ComparisonRow) -> dict[str, str]:
    return {"context": f"{row.context_tokens:,}"}


def compare_title(result: EstimateComparison) -> str:
    """Return what is compared, and what counts as best."""
    axes = list(result.rows[0].labels)
    one_length = len({row.context_tokens for row in result.rows}) == 1
    first = next((row for row in result.rows if not row.problem), result.rows[0])
    fixed = {
        "model": first.model,
        "dtype": formats_text(first.format_k, first.format_v),
        "granule": f"{format_size(first.granule_bytes)} granules",
        "policy": first.policy,
    }
    same = [text for axis, text in fixed.items() if axis not in axes and text]
    if result.engine:
        same.append(f"as {result.engine}")
    if first.budget_bytes is not None and not {"budget", "tp", "pp", "model"} & set(axes):
        same.append(f"{format_size(first.budget_bytes)} of KV memory")
    length = "each length" if "context" in axes else "each at its own length"
    length = count_of(first.context_tokens, "token") if one_length else length
    if "sequences" not in axes and result.sequences > 1:
        same.append(f"{result.sequences:,} sequences of {length}")
    else:
        same.append(f"sequences of {length}")
    if first.budget_bytes is None or (not one_length and "context" in axes):
        return ", ".join(same)
    rule = (
        "best: most sequences, then most tokens in a single one"
        if one_length
        else "none is best, as the lengths differ: use --context N to compare at one length"
    )
    return f"{', '.join(same)}; {rule}"


def measured(result: EstimateComparison) -> dict[str, Callable[[ComparisonRow], str]]:
    """Return the figures of each row, by heading."""
    budget = any(row.budget_bytes is not None for row in result.rows)
    ranks = {"tp", "pp", "budget", "model"} & set(result.rows[0].labels)
    found: dict[str, Callable[[ComparisonRow], str]] = {}
    if budget and ranks:
        found["KV memory"] = _memory
    found |= {"B/token": _slope, "fixed": _fixed, "1 token": _floor, "wasted": _waste}
    if result.engine == "llama.cpp":
        found["caches"] = _caches
        return found
    if result.engine:
        found["tokens"] = _engine_tokens
        if result.engine == "vllm":
            found["requests"] = _requests
        return found
    if budget:
        found |= {"max tokens": _max_tokens, "max sequences": _max_sequences}
    if not budget or result.sequences > 1 or "sequences" in result.rows[0].labels:
        found["needed"] = _needed
    return found


def _memory(row: ComparisonRow) -> str:
    return "" if row.budget_bytes is None else format_size(row.budget_bytes)


def _slope(row: ComparisonRow) -> str:
    return f"{row.slope_bytes:,}" + (f" / {row.slope_tokens}" if row.slope_tokens > 1 else "")


def _fixed(row: ComparisonRow) -> str:
    return format_size(row.fixed_bytes)


def _floor(row: ComparisonRow) -> str:
    return "" if row.answer is None else format_size(row.answer.floor_bytes)


def _waste(row: ComparisonRow) -> str:
    return "" if row.answer is None else waste_text(row.answer)


def _max_tokens(row: ComparisonRow) -> str:
    return "" if row.answer is None else capacity_text(row.answer.max_tokens)


def _max_sequences(row: ComparisonRow) -> str:
    return "" if row.answer is None else capacity_text(row.answer.max_sequences)


def _needed(row: ComparisonRow) -> str:
    return "" if row.need is None else format_size(row.need.rank_bytes)


def _engine_tokens(row: ComparisonRow) -> str:
    return "" if row.engine_tokens is None else f"{row.engine_tokens:,}"


def _requests(row: ComparisonRow) -> str:
    return "" if row.engine_sequences is None else f"{row.engine_sequences / 100:.2f}"


def _caches(row: ComparisonRow) -> str:
    return "" if row.engine_bytes is None else format_size(row.engine_bytes)


# ---- sweep ----------------------------------------------------------------------------------


def sweep_text(result: EstimateSweep, console: Console) -> None:
    """Print the sweep, with a chart of the sequences that fit, or else of the bytes."""
    show(console, _sweep_parts(result, console.width))


def sweep_title(result: EstimateSweep) -> str:
    """Return the title of a sweep."""
    first = result.rows[0]
    text = (
        f"{first.model}, {formats_text(first.format_k, first.format_v)}, {first.policy} on granules"
        f" of {format_size(first.granule_bytes)}"
    )
    if first.budget_bytes is not None:
        text += f", {format_size(first.budget_bytes)} of KV memory"
    return text


def _sweep_parts(result: EstimateSweep, width: int) -> Iterator[RenderableType]:
    rows, first = result.rows, result.rows[0]
    yield paragraph(sweep_title(result))
    yield ""
    headings = ["context", "used", "committed", "wasted"]
    if first.budget_bytes is not None:
        headings.append("sequences")
    cells = []
    for row in rows:
        if row.answer is None:
            continue
        answer = row.answer
        used = [format_size(answer.used_bytes), format_size(answer.committed_bytes)]
        cells.append([f"{row.context_tokens:,}", *used, waste_text(answer)])
        if first.budget_bytes is not None:
            cells[-1].append(capacity_text(answer.max_sequences))
    yield table(headings, cells)
    yield ""
    yield from _chart(rows, width)


def _chart(rows: Sequence[ComparisonRow], width: int) -> Iterator[RenderableType]:
    """Yield bars: the sequences that fit, or the bytes of one where there is no budget."""
    counts = []
    for row in rows:
        capacity = None if row.answer is None else row.answer.max_sequences
        if capacity is None:
            counts.append((row.answer.committed_bytes if row.answer else 0, ""))
        elif capacity.fits is None:
            return  # any number fits, at every length
        else:
            counts.append((capacity.fits, f"{capacity.fits:,}"))
    budget = rows[0].budget_bytes is not None
    yield paragraph("Sequences that fit, by context" if budget else "Committed, by context")
    texts = [text or format_size(count) for count, text in counts]
    size = max(len(f"{row.context_tokens:,}") for row in rows)
    room = max(min(_BAR, width - size - max(map(len, texts)) - 2), 4)
    most = max(count for count, _ in counts) or 1
    for row, (count, _), text in zip(rows, counts, texts, strict=True):
        bar = "█" * -(-count * room // most)
        yield f"{row.context_tokens:>{size},} {bar:<{room}} {text}".rstrip()
