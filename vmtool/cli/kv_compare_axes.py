"""The axes of ``--compare`` in kv-estimate and kv-replay: parsed, checked and combined."""

from __future__ import annotations

import itertools
from math import prod
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_LARGEST_GRANULE: Final = 1 << 40


def read_axes(
    texts: Iterable[str],
    known: Collection[str],
    most_rows: int,
    *,
    first: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[str]]:
    """Return the values on each axis that *texts* name, each once.

    Args:
        texts: An axis each; the values of one that is named again are joined.
        known: The axes there are.
        most_rows: How many combinations there may be.
        first: Values that an axis begins with if it is named.

    Raises:
        UsageError: If an axis is unknown or has no values, or there are too many combinations.
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        axis, _, given = text.partition("=")
        if axis not in known:
            from difflib import get_close_matches

            close = get_close_matches(axis, known, n=1)
            raise UsageError(
                f"--compare {text!r}: unknown axis {axis!r}",
                hint=f"did you mean {close[0]}?" if close else f"use {', '.join(known)}",
            )
        found = [value.strip() for value in given.split(",") if value.strip()]
        if not found:
            raise UsageError(f"--compare {text!r}: no values", hint=f"write {axis}=A,B")
        before = values.get(axis) or (first or {}).get(axis, ())
        values[axis] = list(dict.fromkeys([*before, *found]))
    count = prod(len(found) for found in values.values())
    if count > most_rows:
        raise UsageError(f"--compare: {count} combinations are more than {most_rows}")
    return values


def combinations(values: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield every combination of *values* as one value for each axis, the last axis fastest."""
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def split_axes(
    arguments: Sequence[str], axes: Sequence[str], known: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments that are no axes, and all axes: once one is given, more may follow."""
    more = [text for text in arguments if axes and "=" in text and text.partition("=")[0] in known]
    return [text for text in arguments if text not in more], [*axes, *more]


def read_granule(text: str) -> int:
    """Return the granule that *text* means.

    Raises:
        UsageError: If it is not a size, or not one of a granule.
    """
    try:
        granule = parse_size(text)
    except ValueError as error:
        raise UsageError(f"granule: {error}") from None
    check_granule(granule)
    return granule


def check_granule(granule: int) -> None:
    """Fail if *granule* is out of range.

    Raises:
        UsageError: If so.
    """
    if not 0 < granule <= _LARGEST_GRANULE:
        raise UsageError(f"a granule of {format_size(granule)}: it must be from 1 B to 1 TiB")
