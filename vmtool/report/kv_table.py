"""The tables of ``vmtool kv-estimate --compare`` and ``--sweep``, as text, JSON and CSV."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from vmtool.report.kv import count_of, formats_text, percent, policy_body
from vmtool.report.table import comparison, paragraph, show, table
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.estimate import Estimate, PolicyAnswer, Question

_BAR: Final = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One combination and its answer.

    Attributes:
        labels: What was chosen, by axis.
        question: The question.
        cost: The bytes of a sequence, or ``None`` if it is not possible.
        answer: What its policy makes of it, or ``None``.
        problem: Why there is no answer, or empty.
    """

    labels: dict[str, str]
    question: Question
    cost: SequenceCost | None
    answer: PolicyAnswer | None
    problem: str = ""

    @classmethod
    def of(cls, labels: dict[str, str], estimate: Estimate) -> Row:
        """Return the row of *estimate*."""
        return cls(labels, estimate.question, estimate.cost, estimate.answer)

    @classmethod
    def impossible(cls, labels: dict[str, str], question: Question, problem: str) -> Row:
        """Return the row of a combination that cannot be."""
        return cls(labels, question, None, None, problem)

    @property
    def rank(self) -> tuple[float, float]:
        """How good the row is: the sequences that fit, then the tokens of a single one."""
        if self.answer is None:
            return (0, 0)
        many, one = self.answer.many.fits, self.answer.one.fits
        return (math.inf if many is None else many, math.inf if one is None else one)


def _best(rows: list[Row]) -> list[bool]:
    """Return which rows are best; none where nothing fits, or lengths differ."""
    if len({row.question.length for row in rows}) > 1:
        return [False] * len(rows)
    best = max(row.rank for row in rows)
    return [row.rank == best > (0, 0) for row in rows]


# ---- comparison -----------------------------------------------------------------------------


def compare_text(rows: list[Row], console: Console) -> None:
    """Print the comparison; the best rows are marked."""
    show(console, _compare_parts(rows))


def _compare_parts(rows: list[Row]) -> Iterator[RenderableType]:
    axes = list(rows[0].labels)
    first = rows[0].question
    fixed = {
        "model": first.geometry.name,
        "dtype": formats_text(first),
        "granule": f"{format_size(first.granule)} granules",
        "policy": first.policy,
    }
    lengths = {row.question.length for row in rows}
    one = len(lengths) == 1
    told = [text for axis, text in fixed.items() if axis not in axes]
    told.append(f"{format_size(first.budget.kv_bytes)} of KV memory")
    length = count_of(first.length, "token") if one else "each model's context"
    told.append(f"sequences of {length}")
    rule = (
        "best: most sequences, then most tokens in a single one"
        if one
        else "none is best, as these differ: --context N compares at one length"
    )
    yield paragraph(f"{', '.join(told)}; {rule}")
    yield ""
    measured = ["B/token", "fixed", "1 token", "wasted", "one holds", "sequences", ""]
    headings = [*axes, *([] if one else ["context"]), *measured]
    cells = [
        [
            *row.labels.values(),
            *([] if one else [f"{row.question.length:,}"]),
            *_cells(row),
            "best" if best else "",
        ]
        for row, best in zip(rows, _best(rows), strict=True)
        if row.answer is not None
    ]
    if cells:
        yield from comparison(headings, cells, names=len(axes))
    for row in rows:
        if row.problem:
            text = f"not possible: {', '.join(row.labels.values())}: {row.problem}"
            yield paragraph(text, indent="  ")


def _cells(row: Row) -> list[str]:
    answer, cost = row.answer, row.cost
    if answer is None or cost is None:
        return []
    waste = answer.waste
    lost = waste.wasted_bytes / waste.committed_bytes if waste.committed_bytes else 0
    slope = cost.slope
    return [
        f"{slope.numerator:,}" + (f" / {slope.denominator}" if slope.denominator > 1 else ""),
        format_size(cost.fixed_bytes),
        format_size(answer.floor_bytes),
        f"{format_size(waste.wasted_bytes)} ({percent(lost)})",
        "any" if answer.one.fits is None else f"{answer.one.fits:,}",
        "any" if answer.many.fits is None else f"{answer.many.fits:,}",
    ]


def compare_body(rows: list[Row]) -> dict[str, Any]:
    """Return the keys of the JSON document of a comparison."""
    best = zip(rows, _best(rows), strict=True)
    return {"rows": [{**_row_body(row), "best": is_best} for row, is_best in best]}


# ---- sweep ----------------------------------------------------------------------------------


def sweep_text(rows: list[Row], console: Console) -> None:
    """Print the sweep, with a plot of how much of the memory is used."""
    show(console, _sweep_parts(rows, console.width))


def _sweep_parts(rows: list[Row], width: int) -> Iterator[RenderableType]:
    question = rows[0].question
    text = (
        f"{question.geometry.name}, {formats_text(question)}, {question.policy} on granules of"
        f" {format_size(question.granule)}, {format_size(question.budget.kv_bytes)} of KV memory"
    )
    yield paragraph(text)
    yield ""
    headings = ["context", "bytes", "committed", "wasted", "sequences"]
    answers = [(row.question.length, row.answer) for row in rows if row.answer is not None]
    cells = [
        [
            f"{length:,}",
            f"{answer.waste.used_bytes:,}",
            f"{answer.waste.committed_bytes:,}",
            f"{answer.waste.wasted_bytes:,}",
            "any" if answer.many.fits is None else f"{answer.many.fits:,}",
        ]
        for length, answer in answers
    ]
    yield table(headings, cells)
    yield ""
    yield paragraph("Used part of what is committed, by context")
    size = max(len(f"{length:,}") for length, _ in answers)
    room = max(min(_BAR, width - size - 9), 10)
    for length, answer in answers:
        waste = answer.waste
        used = waste.used_bytes / waste.committed_bytes if waste.committed_bytes else 1.0
        filled = int(used * room)  # full only when nothing is wasted
        bar = "█" * filled + "░" * (room - filled)
        yield f"{length:>{size},} {bar} {percent(used):>6}"


def sweep_body(rows: list[Row]) -> dict[str, Any]:
    """Return the keys of the JSON document of a sweep."""
    return {"rows": [_row_body(row) for row in rows]}


# ---- JSON and CSV ---------------------------------------------------------------------------


def _row_body(row: Row) -> dict[str, Any]:
    question, answer = row.question, row.answer
    body: dict[str, Any] = {
        "model": question.geometry.name,
        "format_k": question.formats.key.name,
        "format_v": question.formats.value.name,
        "granule_bytes": question.granule,
        "policy": question.policy,
        "context_tokens": question.length,
        "budget_bytes": question.budget.kv_bytes,
    }
    if answer is None or row.cost is None:
        return {**body, "impossible": row.problem}
    slope = row.cost.slope
    cost = {
        "fixed_bytes": row.cost.fixed_bytes,
        "slope_bytes": slope.numerator,
        "slope_tokens": slope.denominator,
    }
    return {**body, **cost, **policy_body(answer)}


def write_csv(rows: list[Row], file: IO[str]) -> None:
    """Write *rows* as CSV, in exact integers; an empty count is any number."""
    import csv  # noqa: PLC0415 - only where it is needed

    writer = csv.writer(file, lineterminator="\n")
    head = ("model", "format_k", "format_v", "granule_bytes", "policy", "context_tokens")
    amounts = ("floor_bytes", "used_bytes", "committed_bytes", "wasted_bytes", "waste_ends_tokens")
    writer.writerow(
        [*head, "budget_bytes", *amounts, "one_sequence_tokens", "sequences", "problem"]
    )
    for row in rows:
        body = _row_body(row)
        line = [body[name] for name in (*head, "budget_bytes")]
        if row.answer is None:
            writer.writerow([*line, *[""] * (len(amounts) + 2), row.problem])
            continue
        counts = (row.answer.one.fits, row.answer.many.fits)
        writer.writerow([*line, *(body[name] for name in amounts), *counts, ""])
