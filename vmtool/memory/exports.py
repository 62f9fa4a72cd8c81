"""What was lent out of a buffer and is still alive, so that nothing is pulled from under it."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.memory.buffer import VirtualBuffer


class LiveViewError(UsageError):
    """A close, release or shrink that would pull memory from under a live view of it."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(
            f"a live view shows the first {nbytes} bytes",
            hint="release the views and arrays made from this buffer first",
        )


class Export:
    """The first bytes of a buffer, lent to someone. It keeps the buffer, and so the memory.

    Attributes:
        nbytes: How many bytes.
    """

    __slots__ = ("__weakref__", "_buffer", "nbytes")

    def __init__(self, buffer: VirtualBuffer, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes


class Exports:
    """The exports of one buffer, as long as they live.

    Attributes:
        made: References to the exports made so far; empty is the common case.
        lent_bytes: Bytes lent through an interface that never says when it is done with them:
            ``__cuda_array_interface__``, whose users keep the buffer itself.
    """

    __slots__ = ("lent_bytes", "made")

    def __init__(self) -> None:
        self.made: list[weakref.ref[Export]] = []
        self.lent_bytes = 0

    def add(self, buffer: VirtualBuffer) -> Export:
        """Return a new export of the buffer's length."""
        export = Export(buffer, len(buffer))
        self.made = [ref for ref in self.made if ref() is not None]
        self.made.append(weakref.ref(export))
        return export

    def check(self, start: int, end: int) -> None:
        """Raise if anything lent shows a byte of ``start..end``.

        Raises:
            LiveViewError: If something does.
        """
        longest = max(self.live_bytes(), self.lent_bytes)
        if start < min(end, longest):
            raise LiveViewError(longest)

    def live_bytes(self) -> int:
        """Return how many bytes the longest export that is alive shows."""
        self.made = [ref for ref in self.made if ref() is not None]
        return max((export.nbytes for ref in self.made if (export := ref())), default=0)


def host_view(export: Export, address: int) -> memoryview:
    """Return the exported bytes at *address* as a writable view that keeps the export."""
    array = (ctypes.c_ubyte * export.nbytes).from_address(address)
    array.export = export  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def cuda_array_interface(address: int, nbytes: int) -> dict[str, Any]:
    """Return version 3 of ``__cuda_array_interface__`` for bytes at a device address."""
    return {
        "shape": (nbytes,),
        "typestr": "|u1",
        "data": (address, False),
        "strides": None,
        "stream": None,  # nothing of ours is in flight: the backing waits for what it starts
        "version": 3,
    }
