"""Whether this Windows is Wine, which is not Windows and must not be reported as it."""

from __future__ import annotations

import functools
import sys
from typing import Final

#: What is said of every figure that was taken on Wine.
NOT_WINDOWS: Final = "these are not figures of Windows"


@functools.cache
def wine_version() -> str | None:
    """Return the version of Wine, such as ``10.0``, or ``None`` on anything else."""
    if sys.platform == "win32":
        import ctypes

        try:
            version = ctypes.WinDLL("ntdll").wine_get_version
        except AttributeError:  # only Wine's ntdll exports it
            return None
        version.restype = ctypes.c_char_p
        text: bytes = version()
        return text.decode("ascii", errors="replace")
    else:  # mypy needs both branches spelled out
        return None


def not_windows() -> str | None:
    """Return the line that marks figures taken on Wine; ``None`` on anything else."""
    version = wine_version()
    return None if version is None else f"on Wine {version}: {NOT_WINDOWS}"


def marked(method: str) -> str:
    """Return *method* as the figures of this run are labelled: on Wine they are not Windows'."""
    version = wine_version()
    return method if version is None else f"{method}, Wine {version}"
