"""``vmtool kv-replay --compare``: the same trace under several rules in one table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.axes import read_axes
from vmtool.cli.kv_question import read_granule
from vmtool.cli.output import command_line
from vmtool.errors import ExitCode, InputError, RefusedError, UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vmtool.cli.output import Output
    from vmtool.replay.results import ReplayResult
    from vmtool.report.replay_table import ComparedReplay


def _policy(text: str) -> str:
    from vmtool.kv.policies import POLICIES

    if text not in POLICIES:
        raise ValueError(f"unknown policy {text[:40]!r}; use {', '.join(POLICIES)}")
    return text


def _dtype(text: str) -> str:
    from vmtool.kv.dtypes import choose_formats

    choose_formats(None, key=text, value=text)
    return text


def _mode(text: str) -> str:
    if text not in ("wait", "reject", "preempt"):
        raise ValueError(f"{text[:40]!r} is none of wait, reject and preempt")
    return text


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "granule": read_granule,
    "policy": _policy,
    "dtype": _dtype,
    "block": parse_count,
    "on-refusal": _mode,
    "commit-ahead": parse_count,
}
#: Each row replays the whole trace.
_MOST_ROWS: Final = 100


def is_axis(text: str) -> bool:
    """Tell whether *text* is an axis of a comparison, such as ``granule=64KiB,2MiB``."""
    return text.partition("=")[0] in _READERS and "=" in text


def replay_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values on each axis; see :func:`vmtool.cli.axes.read_axes`."""
    return read_axes(texts, _READERS, _MOST_ROWS)


def replay_rows(
    options: Mapping[str, Any],
    axes: Mapping[str, Sequence[str]],
    replay: Callable[[Mapping[str, Any]], ReplayResult],
) -> tuple[list[ComparedReplay], bool]:
    """Replay every combination.

    Args:
        options: As click has them.
        axes: The values on each axis.
        replay: Replays the trace under changed options.

    Returns:
        The rows, and whether they are all there: an interrupted replay is no row.

    Raises:
        UsageError: If a value on an axis is unknown, or no combination is possible.
        RefusedError: If no combination is safe on this machine.
    """
    from vmtool.report.replay_table import ComparedReplay

    rows: list[ComparedReplay] = []
    refusal: UsageError | RefusedError | None = None
    for labels, changed in _combinations(options, axes):
        try:
            result = replay(changed)
        except (UsageError, RefusedError) as error:
            if isinstance(error, InputError):
                raise  # the trace is bad, and so in every row
            rows.append(ComparedReplay(labels, None, str(error)))
            refusal = refusal or error
            continue
        if not result.complete:
            return rows, False
        rows.append(ComparedReplay(labels, result, ""))
    if refusal is not None and all(row.result is None for row in rows):
        raise refusal
    return rows, True


def answer_compare(
    rows: Sequence[ComparedReplay], options: Mapping[str, Any], output: Output, *, complete: bool
) -> int:
    """Print one table of *rows*, and write the files that *options* ask for."""
    from vmtool.report.replay_table import compare_csv, compare_document, compare_lines

    output.emit_lines(
        lambda: compare_document(rows, command_line(), complete=complete),
        lambda width: compare_lines(rows, width),
    )

    def page() -> str:
        from vmtool.report.replay_page import compare_page

        return compare_page(rows, command=command_line(), complete=complete)

    output.save(options["html"], page)
    output.save(options["csv"], lambda: compare_csv(rows))
    if complete:
        return ExitCode.DONE
    output.notice(f"interrupted after {len(rows)} rows; everything is released")
    return ExitCode.INTERRUPTED


def _combinations(
    options: Mapping[str, Any], axes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the labels and the options of each row; every value is read before the first."""
    read = {axis: [_read(axis, value) for value in found] for axis, found in axes.items()}
    for chosen in itertools.product(*(range(len(found)) for found in axes.values())):
        places = dict(zip(axes, chosen, strict=True))
        labels = {axis: axes[axis][at] for axis, at in places.items()}
        changed = {axis.replace("-", "_"): read[axis][at] for axis, at in places.items()}
        if "dtype" in changed:
            changed |= {"dtype_k": None, "dtype_v": None}
        yield labels, {**options, **changed}


def _read(axis: str, value: str) -> Any:
    try:
        found = _READERS[axis](value)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"--compare {axis}: {error}") from None
    if axis == "block" and not found:
        raise UsageError("--compare block: a block has at least one token")
    return found
