"""Whether this Windows is Wine, found out without loading anything that only Windows has."""

from __future__ import annotations

import functools
import sys


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
    else:
        return None
