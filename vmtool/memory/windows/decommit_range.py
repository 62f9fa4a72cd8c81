"""A plain reservation on Windows, whose pages are committed and decommitted in place."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import ctypes
from typing import TYPE_CHECKING

from vmtool.memory.errors import QuarantineError
from vmtool.memory.windows.calls import (
    MEM_COMMIT,
    MEM_DECOMMIT,
    MEM_RELEASE,
    PAGE_READWRITE,
    WindowsCalls,
    call_error,
)

if TYPE_CHECKING:
    from vmtool.memory.reservation import Reservation


class DecommitRange:
    """A plain reservation in which pages are committed and decommitted in place.

    Args:
        calls: The calls to make.
        reservation: The reservation; only its maps are kept, so that it can be reclaimed.
    """

    def __init__(self, calls: WindowsCalls, reservation: Reservation) -> None:
        self._calls = calls
        self._base = reservation.base
        self._blocks = reservation.blocks
        self._quarantined = reservation.quarantined

    def commit(self, offset: int, nbytes: int) -> None:
        address = self._base + offset
        if not self._calls.VirtualAlloc(address, nbytes, MEM_COMMIT, PAGE_READWRITE):
            code = ctypes.get_last_error()
            # Nothing says that a refused call committed no page. Decommitting a page that is not
            # committed is allowed. It comes before the error is made, which takes memory.
            undone = self._calls.VirtualFree(address, nbytes, MEM_DECOMMIT)
            span = (offset, offset + nbytes)
            if not undone:
                self._quarantined.add(*span)
            ctypes.set_last_error(code)
            error = call_error("VirtualAlloc", address, nbytes, MEM_COMMIT)
            if not undone:
                raise QuarantineError(span, error) from error
            raise error
        self._blocks.add(offset, offset + nbytes)

    def release(self, offset: int, nbytes: int) -> None:
        address = self._base + offset
        if not self._calls.VirtualFree(address, nbytes, MEM_DECOMMIT):
            raise call_error("VirtualFree", address, nbytes, MEM_DECOMMIT)
        self._blocks.remove(offset, offset + nbytes)

    def close(self) -> None:
        if not self._calls.VirtualFree(self._base, 0, MEM_RELEASE):
            raise call_error("VirtualFree", self._base, 0, MEM_RELEASE)
