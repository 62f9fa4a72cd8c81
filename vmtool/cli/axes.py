"""The axes of a comparison, such as ``granule=64KiB,2MiB``: what ``--compare`` takes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


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
