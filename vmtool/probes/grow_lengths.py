"""The lengths that a growing buffer goes through."""

from __future__ import annotations

from typing import Final

from vmtool.errors import UsageError
from vmtool.units import format_size

PATTERNS: Final = ("linear", "doubling", "sawtooth")

#: More steps than this would measure the harness and fill the memory with samples.
MAX_STEPS: Final = 1 << 18
#: A tooth goes up by the first number of steps and down by the second.
_TOOTH_UP: Final = 4
_TOOTH_DOWN: Final = 2


def lengths(pattern: str, to: int, step: int) -> list[int]:
    """Return every length in turn; the last is 0.

    ``linear`` goes up and down by *step*; ``doubling`` starts at *step*, doubles, and halves on
    the way down; ``sawtooth`` goes up four steps and down two until it reaches the peak, then down
    by four. Each reaches *to* exactly.

    Args:
        pattern: One of :data:`PATTERNS`.
        to: The peak in bytes, positive.
        step: The step in bytes, positive.

    Raises:
        UsageError: If the pattern is unknown, or there would be more than 262,144 steps.
    """
    if pattern not in PATTERNS:
        raise UsageError(f"unknown pattern {pattern!r}", hint=f"use one of {', '.join(PATTERNS)}")
    if pattern == "doubling":
        up = _doublings(to, step)
        return [*up, *reversed(up[:-1]), 0]
    steps = -(-to // step) * (4 if pattern == "sawtooth" else 2)
    if steps > MAX_STEPS:
        least = -(-to * steps // (MAX_STEPS * -(-to // step)))
        raise UsageError(
            f"{steps:,} steps of {format_size(step)} are more than {MAX_STEPS:,}",
            hint=f"use a step of {least} bytes or more",
        )
    if pattern == "linear":
        up = [*range(step, to, step), to]
        return [*up, *reversed(up[:-1]), 0]
    return [*_teeth(to, step), *range(to - _TOOTH_UP * step, 0, -_TOOTH_UP * step), 0]


def _doublings(to: int, step: int) -> list[int]:
    up = []
    length = step
    while length < to:
        up.append(length)
        length *= 2
    return [*up, to]


def _teeth(to: int, step: int) -> list[int]:
    found = []
    low = 0
    while True:
        for rise in range(1, _TOOTH_UP + 1):
            found.append(min(low + rise * step, to))
            if found[-1] == to:
                return found
        low += (_TOOTH_UP - _TOOTH_DOWN) * step
        found.append(low)
