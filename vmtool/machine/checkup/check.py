"""What one check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Rating(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        kind: A short stable name; the same as that of the diagnosis when it makes a call fail.
        rating: How much it matters.
        finding: What was found, with the numbers.
        remedy: The command or step that changes it; ``None`` when all is well.
    """

    kind: str
    rating: Rating
    finding: str
    remedy: str | None = None


def ok(kind: str, finding: str) -> Check:
    """Return a check that found nothing to change."""
    return Check(kind, Rating.OK, finding)


def note(kind: str, finding: str, remedy: str) -> Check:
    """Return a check whose finding is worth knowing."""
    return Check(kind, Rating.NOTE, finding, remedy)


def problem(kind: str, finding: str, remedy: str) -> Check:
    """Return a check whose finding makes ordinary use fail."""
    return Check(kind, Rating.PROBLEM, finding, remedy)
