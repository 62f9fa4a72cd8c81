"""What macOS's ``sysctl`` tells; nothing where the C library has none, as on Linux."""

from __future__ import annotations

import ctypes
from typing import Final

_TEXT_BYTES: Final = 256


def read_text(name: str) -> str | None:
    """Return what ``sysctl -n NAME`` prints; ``None`` if there is nothing of that name.

    Args:
        name: Of a text, such as ``machdep.cpu.brand_string``.
    """
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return None
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    size = ctypes.c_size_t(_TEXT_BYTES)
    if sysctl(name.encode("ascii"), text, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return text.value.decode("utf-8", errors="replace") or None
