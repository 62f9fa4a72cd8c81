"""Reports in files of their own, beside the result on stdout."""

from __future__ import annotations

from pathlib import Path

from vmtool.errors import UsageError


def claim(path: str) -> None:
    """Make sure that *path* can be written, before work that would be lost otherwise.

    Raises:
        UsageError: If it cannot.
    """
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def save(path: str, text: str) -> None:
    """Write *text* to *path*, in place of what was there.

    Raises:
        UsageError: If the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError | ValueError) -> UsageError:
    # A ValueError is a NUL in the path, or half a character in the text.
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(f"cannot write {path!r}: {reason}")
