"""The grammar of every condition on the command line: a figure, an operator and a bound.

``stress --assert``, ``compare --fail-on`` and ``inspect --assert`` name different figures and bounds in
the units of these; what stands between them is the same, and is decided here once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

_CONDITION: Final = re.compile(r"([^<>=\s]+)\s*(<=|>=|<|>)\s*([^<>=]+)")
_MAX_TEXT: Final = 200


def split_condition(text: str, example: str) -> tuple[str, str, str]:
    """Return the figure, the operator and the bound in *text*.

    Args:
        text: Such as ``commit.p99<5ms``.
        example: A condition of the command, for the error.

    Raises:
        UsageError: If *text* is not a condition.
    """
    match = _CONDITION.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise UsageError(
            f"{text[:_MAX_TEXT]!r} is not a condition; write it like {example!r}",
            hint="FIGURE OPERATOR BOUND, with <, <=, > or >=; quote it, or the shell interprets < and >",
        )
    figure, operator, bound = match.groups()
    return figure, operator, bound.strip()


def holds(value: Fraction | float, operator: str, bound: Fraction | float) -> bool:
    """Return whether *value* is on the side of *bound* that *operator* names."""
    return {
        "<": value < bound,
        "<=": value <= bound,
        ">": value > bound,
        ">=": value >= bound,
    }[operator]
