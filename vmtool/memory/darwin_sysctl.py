"""What macOS's ``sysctl`` tells; nothing where the C library has none, as on Linux."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TEXT_BYTES: Final = 256
_NUMBER_BYTES: Final = 8


def read_text(name: str) -> str | None:
    """Return what ``sysctl -n NAME`` prints; ``None`` if there is nothing of that name.

    Args:
        name: Of a text, such as ``machdep.cpu.brand_string``.
    """
    text = _read(name, _TEXT_BYTES)
    return text.partition(b"\0")[0].decode("utf-8", errors="replace") or None


def read_integer(name: str) -> int | None:
    """Return the number called *name*, such as ``kern.hv_vmm_present``; ``None`` if there is none."""
    number = _read(name, _NUMBER_BYTES)
    return int.from_bytes(number, sys.byteorder) if number else None


def _read(name: str, most: int) -> bytes:
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return b""
    value = ctypes.create_string_buffer(most)
    size = ctypes.c_size_t(most)
    if sysctl(name.encode("ascii"), value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return b""
    return value.raw[: size.value]
