"""The promises of a growing buffer, and how often each was checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.results.check_outcomes import Check, CheckOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results.check_outcomes import Value


#: The promises, in the order of the report.
CHECKS: Final = ("base", "committed", "contents", "zero", "released")


class GrowChecks:
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
