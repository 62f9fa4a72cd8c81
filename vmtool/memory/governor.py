"""The governor: limits on memory, and the ledger of its leases."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, Self

from vmtool.errors import RefusedError, UsageError
from vmtool.units import format_size, two_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping


class Owner:
    """A class that refuses ``copy`` and ``pickle``: two objects would release the same memory."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse.

        Raises:
            TypeError: Always, as for a lock or a file.
        """
        raise TypeError(f"cannot copy or pickle a {type(self).__name__}: it owns memory")


# Totals are compared with counters that platforms keep in 64 signed bits.
_MAX_TOTAL: Final = (1 << 63) - 1


class Tier(enum.Enum):
    """A kind of memory with its own limit."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class Role(enum.Enum):
    """What leased memory is for."""

    KV_CACHE = "kv-cache"
    WEIGHTS = "weights"
    WORKSPACE = "workspace"
    POOL = "pool"


@dataclass(frozen=True, eq=False, slots=True)
class Authority:
    """One ledger's identity: two authorities are the same only if they are the same object."""

    name: str


class BudgetError(RefusedError):
    """A lease that would exceed the limit of its tier; no other lease has changed.

    Attributes:
        tier: The tier that is full.
        requested_bytes: What was requested.
        used_bytes: What is leased already.
        limit_bytes: The limit.
    """

    def __init__(self, tier: Tier, requested: int, used: int, limit: int) -> None:
        left = max(limit - used, 0)
        leased, most = two_sizes(used, limit) if left else (format_size(used), format_size(limit))
        super().__init__(
            f"{format_size(requested)} ({requested} bytes) of {tier.value} memory refused: "
            f"{leased} of {most} are leased",
            cause=f"the budget is {format_size(limit)} and {format_size(left)} of it is left",
            hint="raise the budget, or release something first",
        )
        self.tier = tier
        self.requested_bytes = requested
        self.used_bytes = used
        self.limit_bytes = limit


@dataclass(slots=True)
class _Account:
    limit: int
    used: int = 0
    peak: int = 0
    leases: set[Lease] = field(default_factory=set)


class Lease(Owner):
    """Bytes of one tier that one holder may commit. Release it once; a second call is a no-op.

    Attributes:
        nbytes: How much is leased now.
        released: Whether everything was given back; it leases nothing any more.
        role: What it is for.
        holder: Who holds it, for the ledger.
    """

    __slots__ = (
        "__weakref__",
        "_account",
        "_lock",
        "_tier",
        "holder",
        "nbytes",
        "released",
        "role",
    )

    def __init__(
        self, account: _Account, tier: Tier, lock: threading.RLock, role: Role, holder: str
    ) -> None:
        self._account = account
        self._lock = lock
        self._tier = tier
        self.nbytes = 0
        self.released = False
        self.role = role
        self.holder = holder

    def grow(self, nbytes: int) -> None:
        """Lease *nbytes* more.

        Raises:
            UsageError: If *nbytes* is negative, or the lease was released.
            BudgetError: If the tier's limit would be exceeded; nothing has changed.
        """
        account = self._account
        with self._lock:
            if nbytes < 0 or self.released:
                raise UsageError(
                    "the lease was released already"
                    if self.released
                    else f"cannot lease {nbytes} more bytes"
                )
            if account.used + nbytes > account.limit:
                raise BudgetError(self._tier, nbytes, account.used, account.limit)
            account.used += nbytes
            self.nbytes += nbytes
            if account.used > account.peak:  # noqa: PLR1730 - max() is slower, and this is hot
                account.peak = account.used

    def shrink(self, nbytes: int) -> None:
        """Give back *nbytes*, at most what is leased. This cannot fail."""
        with self._lock:
            if nbytes > 0:
                nbytes = min(nbytes, self.nbytes)
                self.nbytes -= nbytes
                self._account.used -= nbytes

    def release(self) -> None:
        """Give back everything and leave the ledger. This cannot fail."""
        with self._lock:
            self._account.used -= self.nbytes
            self.nbytes = 0
            self.released = True
            self._account.leases.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class TierLedger:
    """What one tier's ledger says: integers of bytes, by role and by holder."""

    limit_bytes: int | None
    used_bytes: int
    peak_bytes: int
    by_role: Mapping[Role, int]
    by_holder: Mapping[str, int]


class Governor:
    """Limits per tier and the ledger of leases under them. Safe to use from several threads.

    Args:
        limits: Bytes per tier; a tier that is not named has no limit.
        authority: Whose ledger this is. Buffers on a backing with its own authority are refused
            unless it is this one (V4).
    """

    def __init__(
        self, limits: Mapping[Tier, int] | None = None, *, authority: Authority | None = None
    ) -> None:
        self.authority = authority if authority is not None else Authority("process")
        # Reentrant: a forgotten buffer may be collected, and give back its lease, while this thread
        # is in here.
        self._lock = threading.RLock()
        self._accounts = {tier: _Account(_MAX_TOTAL) for tier in Tier}
        for tier, limit in (limits or {}).items():
            self.set_limit(tier, limit)

    def lease(
        self, tier: Tier, nbytes: int = 0, *, role: Role = Role.KV_CACHE, holder: str = ""
    ) -> Lease:
        """Return a new lease of *nbytes* of *tier*.

        Raises:
            UsageError: If *nbytes* is negative.
            BudgetError: If the tier's limit would be exceeded; nothing has changed.
        """
        account = self._accounts[tier]
        lease = Lease(account, tier, self._lock, role, holder)
        lease.grow(nbytes)
        with self._lock:
            account.leases.add(lease)
        return lease

    def set_limit(self, tier: Tier, nbytes: int | None) -> None:
        """Set the limit of *tier*, ``None`` for none. Lowering it takes nothing from anyone."""
        if nbytes is not None and nbytes < 0:
            raise UsageError(f"a limit of {nbytes} bytes is negative")
        with self._lock:
            self._accounts[tier].limit = _MAX_TOTAL if nbytes is None else min(nbytes, _MAX_TOTAL)

    def ledger(self, tier: Tier) -> TierLedger:
        """Return a snapshot of one tier."""
        account = self._accounts[tier]
        by_role: dict[Role, int] = {}
        by_holder: dict[str, int] = {}
        with self._lock:
            for lease in list(account.leases):
                by_role[lease.role] = by_role.get(lease.role, 0) + lease.nbytes
                by_holder[lease.holder] = by_holder.get(lease.holder, 0) + lease.nbytes
            limit = None if account.limit == _MAX_TOTAL else account.limit
            return TierLedger(limit, account.used, account.peak, by_role, by_holder)
