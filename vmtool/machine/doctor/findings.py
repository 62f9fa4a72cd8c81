"""What the doctor reports: findings, each with a rating and a remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Rating(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found.

    Attributes:
        kind: A short stable name; the same as that of the diagnosis when it makes a call fail.
        rating: How much it matters.
        message: What was found, with the numbers.
        remedy: The command or step that changes it; ``None`` where nothing needs to change.
    """

    kind: str
    rating: Rating
    message: str
    remedy: str | None = None

    @classmethod
    def ok(cls, kind: str, message: str) -> Finding:
        """Return a finding where nothing needs to change."""
        return cls(kind, Rating.OK, message)

    @classmethod
    def note(cls, kind: str, message: str, remedy: str) -> Finding:
        """Return a finding that is worth knowing."""
        return cls(kind, Rating.NOTE, message, remedy)

    @classmethod
    def problem(cls, kind: str, message: str, remedy: str) -> Finding:
        """Return a finding that makes ordinary use fail."""
        return cls(kind, Rating.PROBLEM, message, remedy)
