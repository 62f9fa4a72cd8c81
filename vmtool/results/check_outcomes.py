"""The result of one check: its name, its outcome, and numbers, which may sum up many comparisons."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence  # noqa: TC003 - decoding reads the types
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


class CheckTally:
    """Counts the comparisons of each check and keeps what the first failure found."""

    def __init__(self, names: Sequence[str]) -> None:
        self._compared = dict.fromkeys(names, 0)
        self._found: dict[str, dict[str, int]] = {}
        self._doubts: dict[str, dict[str, Value]] = {}

    def doubt(self, name: str, **values: Value) -> None:
        """Note why a check proves nothing; it is then not done, unless it fails elsewhere."""
        self._doubts[name] = values

    def record(self, name: str, compared: int, **found: int) -> None:
        """Record comparisons; whatever was *found* is a failure."""
        self._compared[name] += compared
        if found:
            self._found.setdefault(name, found)

    @property
    def failed(self) -> bool:
        return bool(self._found)

    def results(self) -> tuple[Check, ...]:
        return tuple(
            Check(
                name,
                CheckOutcome.of(self._passed(name, compared)),
                {"compared": compared, **self._found.get(name, self._doubts.get(name, {}))},
            )
            for name, compared in self._compared.items()
        )

    def _passed(self, name: str, compared: int) -> bool | None:
        if name in self._found:
            return False
        return None if not compared or name in self._doubts else True


def unless(passed: bool, **found: int) -> dict[str, int]:
    """Return what was *found* of a comparison that did not pass."""
    return {} if passed else found
