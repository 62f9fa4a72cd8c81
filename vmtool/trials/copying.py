"""The other way to grow: get a larger block, copy everything, give the old block back."""

from __future__ import annotations

import errno
import mmap
import sys

from vmtool.errors import CallError


class CopiedBuffer:
    """Bytes whose base moves at every growth, as with ``realloc`` of large blocks.

    The blocks come from the same kind of memory as a host backing's: private, anonymous, untouched.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Make the length *nbytes*: get, copy the first *keep* bytes, give back.

        Raises:
            CallError: If the platform has no such block; the old one stays.
        """
        block = _get(nbytes)
        if self._block is not None:
            with memoryview(block) as to, memoryview(self._block) as old:
                to[:keep] = old[:keep]
            self._block.close()
        self._block = block

    def view(self) -> memoryview:
        """Return a view of the bytes; release it before growing."""
        return memoryview(self._block or b"")

    def close(self) -> None:
        """Give the block back."""
        if self._block is not None:
            self._block.close()
            self._block = None


def _get(nbytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        else:  # mypy needs both branches spelled out
            return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        code = error.errno or 0
        symbol = errno.errorcode.get(code, "UNKNOWN")
        raise CallError(
            "mmap.mmap", f"-1, {nbytes}", code=code, symbol=symbol, detail=error.strerror or ""
        ) from error
