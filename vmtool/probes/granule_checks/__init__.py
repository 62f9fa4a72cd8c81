"""Proofs of the granule: calls with other sizes and offsets, each tried on the real system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.results.check_outcomes import Check, CheckOutcome

if TYPE_CHECKING:
    from vmtool.results.check_outcomes import Value


def attempt_check(who: str, attempt: str, accepted: bool, answer: str, expected: bool) -> Check:
    """Return the check of one attempt.

    Args:
        who: ``vmtool``, or the platform that was asked directly, such as ``kernel``.
        attempt: What was tried, in granules ``g``; the check's name.
        accepted: Whether it was done.
        answer: The error, or what was done instead of what was requested.
        expected: Whether it went as a granule of that size must.
    """
    values: dict[str, Value] = {"who": who, "accepted": accepted, "answer": answer}
    return Check(attempt, CheckOutcome.of(expected), values)
