"""The kernel's text files, as a source that a test replaces with a recorded machine."""

from __future__ import annotations

import os
from typing import Protocol


class Files(Protocol):
    """Reads files; what is missing or forbidden is ``None`` or empty, never an error."""

    def read(self, path: str) -> str | None:
        """Return the text of *path*, or ``None`` if it can't be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in the directory *path*, none if it can't be listed."""

    def exists(self, path: str) -> bool:
        """Tell whether *path* is there."""


class KernelFiles:
    """The files of the running system."""

    def read(self, path: str) -> str | None:
        """Return the text of *path*, or ``None`` if it can't be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in the directory *path*, none if it can't be listed."""
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - strings in, strings out
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Tell whether *path* is there."""
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
