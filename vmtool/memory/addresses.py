"""Access to memory by address: copying, comparing, viewing as bytes, and allocating zeroed memory."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# On Windows None is not the C library; msvcrt has the same two functions.
_libc: Final = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
_libc.memcmp.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
_libc.memcmp.restype = ctypes.c_int
_libc.memmove.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t]
_libc.memmove.restype = ctypes.c_size_t

#: ``copy(to, from, nbytes)``. Like any call through ctypes it lets other threads run meanwhile.
copy: Final[Callable[[int, int, int], int]] = _libc.memmove
#: ``differs(a, b, nbytes)`` is 0 when the bytes are equal. Other threads run meanwhile.
differs: Final[Callable[[int, int, int], int]] = _libc.memcmp


def window(base: int, nbytes: int) -> memoryview:
    """Return a writable view of ``base..base + nbytes`` as bytes.

    Making it touches nothing, so the range may be one that is only reserved; using a part that is
    not committed kills the process. It does not keep the range alive: drop it before.
    """
    return memoryview((ctypes.c_ubyte * nbytes).from_address(base)).cast("B")


class Block:
    """Zeroed memory of our own with a known address.

    Attributes:
        address: Its first byte, aligned to 64 bytes.
        view: Its bytes, writable.
    """

    __slots__ = ("_owner", "address", "view")

    def __init__(self, nbytes: int) -> None:
        self._owner = (ctypes.c_ubyte * (nbytes + 63))()
        skip = -ctypes.addressof(self._owner) % 64  # a cache line, for equal copying speed
        self.address = ctypes.addressof(self._owner) + skip
        self.view = memoryview(self._owner).cast("B")[skip : skip + nbytes]
