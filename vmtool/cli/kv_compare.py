"""``vmtool kv-estimate --compare`` and ``--sweep``: many questions in one table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.axes import read_axes
from vmtool.cli.kv_question import load_model, read_granule
from vmtool.cli.output import Output, command_line, opened, put
from vmtool.errors import UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.cli.kv_question import Asked
    from vmtool.kv.estimate import Question
    from vmtool.report.kv_table import Row

_AXES: Final = ("model", "dtype", "granule", "policy")
#: More rows than this are no table that anyone reads.
_MOST_ROWS: Final = 1000


def answer_compare(asked: Asked, axes: Sequence[str], csv: str | None, output: Output) -> None:
    """Print one table of every combination of the axes, such as ``dtype=bf16,q8_0``.

    Raises:
        UsageError: If an axis or a value on it is unknown.
    """
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv_table import Row, compare_body, compare_lines

    named = asked.options["model"]
    values = read_axes(axes, _AXES, _MOST_ROWS, first={"model": [named] if named else []})
    rows = []
    for combination in itertools.product(*values.values()):
        labels = dict(zip(values, combination, strict=True))
        question = _question(asked, labels)
        try:
            rows.append(Row.of(labels, Estimate(question)))
        except UsageError as error:
            # What one combination cannot do is a result; a name that is unknown is not.
            rows.append(Row.impossible(labels, question, str(error)))
    if _wrote_csv_only(csv, rows):
        return
    output.emit_lines(
        lambda: _document("compare", compare_body(rows)),
        lambda width: compare_lines(rows, width),
    )


def answer_sweep(asked: Asked, sweep: str, csv: str | None, output: Output) -> None:
    """Print one table, and a plot, of sequences of many lengths, such as ``context=1k..128k``.

    Raises:
        UsageError: If *sweep* is not of that form.
    """
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv_table import Row, sweep_body, sweep_lines

    lengths = read_sweep(sweep)
    # A layout with a stride has room for the longest sequence of the sweep.
    question = asked.question()._replace(stride=max(lengths))
    rows = [
        Row.of({"context": f"{length}"}, Estimate(question._replace(context=length)))
        for length in lengths
    ]
    if _wrote_csv_only(csv, rows):
        return
    output.emit_lines(
        lambda: _document("sweep", sweep_body(rows)),
        lambda width: sweep_lines(rows, width),
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
        raise UsageError(f"--sweep {text!r}: it must rise from 1 or more to fewer than 2^48 tokens")
    if not step:
        lengths = [low << i for i in range((high // low).bit_length())]
        return lengths if lengths[-1] == high else [*lengths, high]
    if (high - low) // step >= _MOST_ROWS:
        raise UsageError(f"--sweep {text!r}: more than {_MOST_ROWS} rows")
    return [*range(low, high, step), high]


def _question(asked: Asked, labels: dict[str, str]) -> Question:
    changes: dict[str, Any] = dict(labels)
    if "model" in labels:
        changes["model"] = load_model({**asked.options, "model": labels["model"], "hub": None})
    if "granule" in labels:
        changes["granule"] = read_granule(labels["granule"])
    return asked.question(**changes)


def _wrote_csv_only(path: str | None, rows: list[Row]) -> bool:
    """Write the CSV that was asked for, and return whether it took the place of the result."""
    if path is None:
        return False
    from vmtool.report.codepage import UTF_8
    from vmtool.report.kv_table import write_csv

    def write(place: str) -> None:
        with opened(place, UTF_8) as file:
            write_csv(rows, file)

    put(path, write, ".csv")
    return path == "-"


def _document(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    from vmtool.report.document import document

    return document(f"vmtool.kv-estimate.{kind}", 1, command=command_line(), body=body)
