"""Where physical handles come from: created each time, or kept in a pool after they were unmapped."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vmtool.errors import UsageError
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.memory.governor import Governor, Role, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.governor import Authority, Lease


class HandleSource(Protocol):
    """Hands out handles of one size and takes them back. Safe to use from several threads."""

    @property
    def authority(self) -> Authority | None:
        """Whose ledger owns the bytes behind the handles; ``None``: the one that maps them."""

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
        handle: int = self._context.call("cuMemCreate", self._nbytes, self._properties, 0)
        return handle

    def give(self, handle: int) -> None:
        try:
            self._context.call("cuMemRelease", handle)
        except CudaError:
            self.lost.append(handle)
            raise


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """What a pool held and did; it stays true after the pool is gone.

    Attributes:
        handle_bytes: The size of one handle.
        mapped: Handles that are mapped somewhere.
        shared: Mappings beyond the first of each handle.
        pooled: Handles that are kept unmapped.
        quarantined: Handles that the driver did not take back; they stay charged.
        peak: The most handles held at once.
        created: Calls of cuMemCreate that succeeded.
        hits: Handles taken from the pool instead.
        returned: Handles that came back to the pool.
        released: Handles given back to the driver.
    """

    handle_bytes: int
    mapped: int
    shared: int
    pooled: int
    quarantined: int
    peak: int
    created: int
    hits: int
    returned: int
    released: int

    @property
    def charged_bytes(self) -> int:
        """Bytes that the pool's authority is charged with: every handle once, mapped or not."""
        return (self.mapped + self.pooled + self.quarantined) * self.handle_bytes


class HandlePool:
    """Handles of one device, context, size and kind, charged to one authority (V4).

    A handle is charged when it is created and until the driver has taken it back; mapping and
    unmapping it changes nothing. What is mapped from a pool is cleared, new or not, so that memory
    from it always reads as zero, unless *clear* is off. With ``retain_bytes=0`` it keeps nothing and
    still lets mappings share a handle. It implements :class:`HandleSource`.

    Args:
        context: The device.
        nbytes: The size of every handle: the chunk of the backings that use the pool.
        properties: The allocation properties of every handle.
        governor: Whose ledger is charged; buffers on top must have this governor or none.
        retain_bytes: How much is kept unmapped at most; ``None``: everything.
        clear: Whether what is mapped is cleared. Engines do without: they write before they read.

    Attributes:
        dirty: Whether what is mapped must be cleared.
        quarantined: Handles that the driver did not take back.
    """

    def __init__(
        self,
        context: DeviceContext,
        nbytes: int,
        properties: Any,
        *,
        governor: Governor | None = None,
        retain_bytes: int | None = None,
        clear: bool = True,
    ) -> None:
        self.dirty = clear
        if retain_bytes is not None and retain_bytes < 0:
            raise UsageError(f"a pool cannot retain {retain_bytes} bytes")
        self.nbytes = nbytes
        self._context = context
        self._properties = properties
        self._retain = None if retain_bytes is None else retain_bytes // nbytes
        self._governor = governor or Governor()
        self._lease: Lease = self._governor.lease(
            Tier.DEVICE, role=Role.POOL, holder=f"pool of cuda:{context.info.ordinal}"
        )
        # Reentrant: a forgotten reservation may be collected, and give back its handles, while this
        # thread is in here.
        self._lock = threading.RLock()
        self._users: dict[int, int] = {}  # mapped handles, and how often each is
        self._free: list[int] = []  # the last one in is the first one out: it may be in a cache
        self.quarantined: list[int] = []
        self._peak = self._created = self._hits = self._returned = self._released = 0
        # A forgotten pool gives back what it kept: at exit after the reservations, before the context.
        weakref.finalize(self, _abandon, context, self._free)

    @property
    def authority(self) -> Authority:
        """Whose ledger owns every byte behind the handles."""
        return self._governor.authority

    def take(self) -> int:
        with self._lock:
            if self._free:
                handle = self._free.pop()
                self._hits += 1
                self._users[handle] = 1
                return handle
        handle = self._create()
        with self._lock:
            self._users[handle] = 1
            self._note_created()
        return handle

    def fill(self, keep_bytes: int, *, progress: Callable[[], None] = lambda: None) -> None:
        """Create handles until *keep_bytes* are kept unmapped, or what the bound allows.

        Args:
            keep_bytes: How much.
            progress: Called after each handle: filling a large device takes half a minute.

        Raises:
            CudaError: If the driver has no memory for one; those before it are kept.
            BudgetError: If the authority's limit would be exceeded; likewise.
        """
        wanted = keep_bytes // self.nbytes
        if self._retain is not None:
            wanted = min(wanted, self._retain)
        while len(self._free) < wanted:
            handle = self._create()
            with self._lock:
                self._free.append(handle)
                self._note_created()
            progress()

    def share(self, handles: Iterable[int]) -> None:
        """Note that each of *handles* is about to be mapped once more.

        Raises:
            UsageError: If one of them is not mapped from this pool; nothing has changed.
        """
        wanted = list(handles)
        with self._lock:
            for handle in wanted:
                if handle not in self._users:
                    raise UsageError(f"handle {handle} is not mapped from this pool")
            for handle in wanted:
                self._users[handle] += 1

    def give(self, handle: int) -> None:
        """Take back one mapping of a handle; with the last it is kept, or released.

        Raises:
            CudaError: If the driver does not take it; it is quarantined and stays charged.
        """
        with self._lock:
            users = self._users[handle] - 1
            if users:
                self._users[handle] = users
                return
            del self._users[handle]
            if self._retain is None or len(self._free) < self._retain:
                self._free.append(handle)
                self._returned += 1
                return
        self._release(handle)

    def trim(self, keep_bytes: int = 0, *, progress: Callable[[], None] = lambda: None) -> int:
        """Release unmapped handles until at most *keep_bytes* are kept; return the bytes given back.

        Args:
            keep_bytes: How much.
            progress: Called after each handle.

        Raises:
            UsageError: If *keep_bytes* is negative.
            CudaError: If the driver does not take one; the others are released all the same.
        """
        if keep_bytes < 0:
            raise UsageError(f"a pool cannot keep {keep_bytes} bytes")
        keep = keep_bytes // self.nbytes
        with self._lock:
            surplus = self._free[keep:]
            del self._free[keep:]
        failure: CudaError | None = None
        done = 0
        for handle in surplus:
            try:
                self._release(handle)
                done += 1
            except CudaError as error:
                failure = failure or error
            progress()
        if failure is not None:
            raise failure
        return done * self.nbytes

    def snapshot(self) -> PoolSnapshot:
        """Return the gauges and counters of this moment."""
        with self._lock:
            return PoolSnapshot(
                handle_bytes=self.nbytes,
                mapped=len(self._users),
                shared=sum(self._users.values()) - len(self._users),
                pooled=len(self._free),
                quarantined=len(self.quarantined),
                peak=self._peak,
                created=self._created,
                hits=self._hits,
                returned=self._returned,
                released=self._released,
            )

    def close(self) -> None:
        """Release every unmapped handle and leave the ledger; a second call is a no-op.

        Raises:
            UsageError: If handles are still mapped; nothing has changed.
            CudaError: If the driver does not take one; its bytes stay charged.
        """
        with self._lock:
            mapped = 0 if self._context.lost else len(self._users)
        if mapped:
            raise UsageError(
                f"{mapped} handles of the pool are still mapped", hint="close its buffers"
            )
        if not self._context.lost:
            self.trim()
        if not self.quarantined:
            self._lease.release()

    def _create(self) -> int:
        self._lease.grow(self.nbytes)
        try:
            handle: int = self._context.call("cuMemCreate", self.nbytes, self._properties, 0)
        except BaseException:
            self._lease.shrink(self.nbytes)
            raise
        return handle

    def _note_created(self) -> None:
        self._created += 1
        self._peak = max(self._peak, len(self._users) + len(self._free))

    def _release(self, handle: int) -> None:
        try:
            self._context.call("cuMemRelease", handle)
        except CudaError:
            with self._lock:
                self.quarantined.append(handle)
            raise
        self._lease.shrink(self.nbytes)
        with self._lock:
            self._released += 1


def _abandon(context: DeviceContext, handles: list[int]) -> None:
    while handles and not context.lost:
        # One that fails does not keep the others; the process's end takes what is left.
        with contextlib.suppress(CudaError):
            context.call("cuMemRelease", handles.pop())
