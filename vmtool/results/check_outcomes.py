"""The result of one check: a name, an outcome and numbers; the report writes the sentence."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass, field
from typing import Final

#: What a check compared: numbers and short stable words, no sentences.
Value = int | float | str | bool | None

#: The ``reason`` of a check whose interval holds both answers; its outcome is *not done*.
NOT_PROVEN: Final = "not proven"


class CheckOutcome(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_DONE = "not done"

    @classmethod
    def of(cls, passed: bool | None) -> CheckOutcome:
        """Return the outcome for *passed*; ``None`` is a check that was not done."""
        if passed is None:
            return cls.NOT_DONE
        return cls.PASSED if passed else cls.FAILED


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: A stable name, such as ``contents``, ``counters.resident`` or ``leak.charge``.
        outcome: Passed, failed, or not done.
        values: What was compared, by name; units are in the names (``_bytes``, ``_ns``). ``reason``
            is a stable word for why a check was not done.
    """

    name: str
    outcome: CheckOutcome
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def not_done(cls, name: str, reason: str) -> Check:
        """Return a check that was not done, for *reason*."""
        return cls(name, CheckOutcome.NOT_DONE, {"reason": reason})

    @property
    def word(self) -> str:
        """How it ended, in the word of every report."""
        unproven = self.values.get("reason") == NOT_PROVEN and not self.failed
        return NOT_PROVEN if unproven else self.outcome.value

    @property
    def failed(self) -> bool:
        """Whether the check was done and did not pass."""
        return self.outcome is CheckOutcome.FAILED


def all_passed(checks: Iterable[Check]) -> bool:
    """Return whether no check failed; one that was not done did not fail."""
    return not any(check.failed for check in checks)
