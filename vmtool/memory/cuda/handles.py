"""Where physical handles of one size come from: the driver, each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from vmtool.memory.cuda.errors import CudaError

if TYPE_CHECKING:
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.governor import Authority


class HandleSource(Protocol):
    """Gives out handles of one size and takes them back. Safe to use from several threads."""

    @property
    def authority(self) -> Authority | None:
        """Whose ledger owns the bytes behind the handles; ``None``: whoever maps them."""

    @property
    def dirty(self) -> bool:
        """Whether a handle may hold another block's bytes, so that what is mapped must be cleared."""

    def take(self) -> int:
        """Return a handle that nothing else maps.

        Raises:
            CudaError: If the driver has no memory for one.
            BudgetError: If the authority's limit would be exceeded.
        """

    def give(self, handle: int) -> None:
        """Take back a handle that is mapped nowhere.

        Raises:
            CudaError: If the driver does not take it; it is then counted as lost.
        """


class ColdHandles:
    """Creates a handle whenever one is needed, and releases it at once.

    Attributes:
        lost: Handles that the driver did not take back; their memory stays in use.
    """

    authority: Authority | None = None
    dirty = False

    def __init__(self, context: DeviceContext, nbytes: int, properties: Any) -> None:
        self._context = context
        self._nbytes = nbytes
        self._properties = properties
        self.lost: list[int] = []

    def take(self) -> int:
        """Create a handle; see :class:`HandleSource`."""
        handle: int = self._context.call("cuMemCreate", self._nbytes, self._properties, 0)
        return handle

    def give(self, handle: int) -> None:
        """Release a handle; see :class:`HandleSource`."""
        try:
            self._context.call("cuMemRelease", handle)
        except CudaError:
            self.lost.append(handle)
            raise
