"""One reservation, measured: it must take address space and nothing else (B2)."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from vmtool.memory.counters import read_process, read_range
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.governor import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vmtool.memory.backing import Reservation, VirtualBacking
    from vmtool.memory.counters import Counters
    from vmtool.memory.cuda.backing import CudaBacking

#: The interpreter may map and touch a little of its own between the two readings.
PROCESS_TOLERANCE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """One ledger before and after, and what its change may be; ``None`` is not told here.

    Attributes:
        ledger: ``address space``, ``charge``, ``resident`` or ``mappings``; for a device only
            ``device memory``.
        before: The whole process or device before.
        after: The same, after.
        in_range: Inside the reserved range only: exact.
        expected: What *in_range* must be; on a device, the change.
        passed: Whether range and whole are as they must be; ``None`` where neither is told.
    """

    ledger: str
    before: int | None
    after: int | None
    in_range: int | None
    expected: int
    passed: bool | None

    @property
    def change(self) -> int | None:
        """The change of the whole."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """What one reservation was and cost.

    Attributes:
        backing: The backing.
        method: Its commit method.
        base: The first address.
        capacity_bytes: The size.
        reserve_ns: How long the call took.
        ledgers: The four ledgers.
        device: The driver's own name of the device; ``None`` for the host.
    """

    backing: str
    method: str
    base: int
    capacity_bytes: int
    reserve_ns: int
    ledgers: tuple[LedgerCheck, ...]
    device: str | None = None

    @property
    def passed(self) -> bool:
        """Whether no ledger says otherwise."""
        return all(check.passed is not False for check in self.ledgers)


@contextmanager
def measured_reservation(backing: VirtualBacking, nbytes: int) -> Iterator[ReserveResult]:
    """Reserve *nbytes* and yield what that changed; the addresses are given back at the end.

    Raises:
        MisalignedError: If *nbytes* is not a multiple of the granularity.
        CallError: If the platform refuses.
    """
    # The first reading and the first call allocate what later ones reuse.
    _read(backing)
    backing.unreserve(backing.reserve(backing.granularity))
    before = _read(backing)
    start = perf_counter_ns()
    reservation = backing.reserve(nbytes)
    elapsed = perf_counter_ns() - start
    try:
        after = _read(backing)
        inside = {}
        if backing.tier is Tier.HOST:
            inside = _by_name(read_range(reservation.base, reservation.capacity))
        yield ReserveResult(
            backing=backing.name,
            method=backing.method,
            base=reservation.base,
            capacity_bytes=nbytes,
            reserve_ns=elapsed,
            ledgers=check_ledgers(reservation, before, after, inside),
            device=backing.device_name,
        )
    finally:
        backing.unreserve(reservation)


def check_ledgers(
    reservation: Reservation,
    before: Mapping[str, int | None],
    after: Mapping[str, int | None],
    inside: Mapping[str, int | None],
) -> tuple[LedgerCheck, ...]:
    """Hold the change of each ledger against B2.

    A new reservation is one mapping, or joins a neighbour; aligning its base may leave another on
    each side. Charge and residency must be exactly zero in the range itself; the process, or the
    device, as a whole may have moved a little for other reasons.

    Args:
        reservation: What was reserved in between.
        before: The ledgers of the whole, by name.
        after: The same, after.
        inside: Those of the reserved range; empty where they are not told.
    """
    space = reservation.address_space_bytes
    slack = PROCESS_TOLERANCE_BYTES
    # In the range, in the whole, and how far the whole may be off.
    expected = {
        "address space": (reservation.capacity, space, slack),
        "charge": (0, 0, slack),
        "resident": (0, 0, slack),
        "mappings": (1, 1, 2),
        # Never so much that a range committed as a whole would pass.
        "device memory": (0, 0, min(DEVICE_TOLERANCE_BYTES, reservation.capacity - 1)),
    }
    return tuple(
        _check(name, (before[name], after[name]), inside.get(name), expected[name])
        for name in before
    )


def _check(
    ledger: str,
    whole: tuple[int | None, int | None],
    here: int | None,
    expected: tuple[int, int, int],
) -> LedgerCheck:
    was, now = whole
    in_range, change, slack = expected
    verdicts = []
    if here is not None:
        verdicts.append(here == in_range)
    if was is not None and now is not None:
        verdicts.append(abs(now - was - change) <= slack)
    return LedgerCheck(ledger, was, now, here, in_range, all(verdicts) if verdicts else None)


def _read(backing: VirtualBacking) -> dict[str, int | None]:
    """Return the ledgers of this process, or the memory in use on the device."""
    if backing.tier is not Tier.DEVICE:
        return _by_name(read_process())
    context = cast("CudaBacking", backing).context  # the only one with memory of a device
    return {"device memory": context.used_bytes()}


def _by_name(ledgers: Counters) -> dict[str, int | None]:
    return {
        "address space": ledgers.address_space_bytes,
        "charge": ledgers.charge_bytes,
        "resident": ledgers.resident_bytes,
        "mappings": ledgers.mappings,
    }
