"""The kernel's text files: reading them, from a source that tests replace, and parsing them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, Protocol


class Files(Protocol):
    """Reads files; one that is missing or forbidden is ``None`` or empty, never an error."""

    def read(self, path: str) -> str | None:
        """Return the text of *path*, or ``None`` if it can't be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in the directory *path*, none if it can't be listed."""

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""


class KernelFiles:
    """The files of the running system."""

    def read(self, path: str) -> str | None:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - strings in, strings out
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110 - strings in, strings out


def parse_int(text: str | None) -> int | None:
    """Return the whole number in *text*, or ``None``."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_pairs(text: str | None) -> dict[str, int]:
    """Return the ``name 123`` lines of a statistics file."""
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def parse_choice(text: str | None) -> str | None:
    """Return the chosen word of a line such as ``always [madvise] never``."""
    if text is None or "[" not in text or "]" not in text:
        return None
    return text[text.index("[") + 1 : text.index("]")] or None


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """How long tasks waited for memory, in percent of the last 10 s (Linux's PSI).

    Attributes:
        some_percent: At least one task waited.
        full_percent: All tasks waited.
    """

    some_percent: float
    full_percent: float


#: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=0`` (Documentation/accounting/psi.rst).
_AVERAGE: Final = re.compile(r"^(some|full) avg10=([0-9]+\.[0-9]+)", re.MULTILINE)


def parse_pressure(text: str | None) -> MemoryPressure | None:
    """Return the pressure of the last 10 s; ``None`` for a kernel that does not count it."""
    found = {name: float(value) for name, value in _AVERAGE.findall(text or "")}
    if "some" not in found:
        return None
    return MemoryPressure(found["some"], found.get("full", 0.0))
