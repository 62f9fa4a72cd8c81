"""One reservation, measured: it must take address space and nothing else (B2)."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.memory.counters import Ledgers, bookkeeping_bytes, read_process, read_range
from vmtool.memory.governor import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.memory.backing import Reservation, VirtualBacking

#: The interpreter may map and touch a little of its own between the two readings.
PROCESS_TOLERANCE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """One ledger before and after, and what its change may be; ``None`` is not told here.

    Attributes:
        ledger: ``address space``, ``charge``, ``resident`` or ``mappings``; for a device only
            ``device memory``.
        before: The whole process before.
        after: The whole process after.
        in_range: Inside the reserved range only: exact.
        expected: What *in_range* must be.
        passed: Whether range and process agree with it; ``None`` where neither is told.
    """

    ledger: str
    before: int | None
    after: int | None
    in_range: int | None
    expected: int
    passed: bool | None

    @property
    def change(self) -> int | None:
        """The change of the whole process."""
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
    """

    backing: str
    method: str
    base: int
    capacity_bytes: int
    reserve_ns: int
    ledgers: tuple[LedgerCheck, ...]

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
    on_device = backing.tier is Tier.DEVICE
    # The first reading and the first call allocate what later ones reuse.
    read_process()
    backing.unreserve(backing.reserve(backing.granularity))
    before = _device_used(backing) if on_device else read_process()
    start = perf_counter_ns()
    reservation = backing.reserve(nbytes)
    elapsed = perf_counter_ns() - start
    try:
        if isinstance(before, Ledgers):
            after, inside = read_process(), read_range(reservation.base, nbytes)
            ledgers = check_ledgers(reservation, before, after, inside)
        else:
            ledgers = (_check_device(before, _device_used(backing), backing.granularity),)
        yield ReserveResult(
            backing=backing.name,
            method=backing.method,
            base=reservation.base,
            capacity_bytes=nbytes,
            reserve_ns=elapsed,
            ledgers=ledgers,
        )
    finally:
        backing.unreserve(reservation)


def _device_used(backing: VirtualBacking) -> int:
    """Return how much of the device's memory is in use, by anyone."""
    from vmtool.memory.cuda.devices import device, free_bytes

    ordinal = int(backing.name.partition(":")[2])
    return device(ordinal).total_bytes - free_bytes(ordinal)


def _check_device(before: int, after: int, slack: int) -> LedgerCheck:
    """A device's addresses are not the process's; what must not change is its memory in use."""
    passed = after - before < slack
    return LedgerCheck("device memory", before, after, None, 0, passed)


def check_ledgers(
    reservation: Reservation, before: Ledgers, after: Ledgers, inside: Ledgers
) -> tuple[LedgerCheck, ...]:
    """Hold the change of each ledger against B2.

    A new reservation is one mapping, or joins a neighbour; aligning its base may leave another on
    each side. Charge and residency must be exactly zero in the range itself; the process as a
    whole may have moved a little for other reasons.
    """

    def check(ledger: str, attribute: str, expected: tuple[int, int], slack: int) -> LedgerCheck:
        was, now, here = (getattr(each, attribute) for each in (before, after, inside))
        in_range, in_process = expected
        verdicts = []
        if here is not None:
            verdicts.append(here == in_range)
        if was is not None and now is not None:
            verdicts.append(abs(now - was - in_process) <= slack)
        return LedgerCheck(ledger, was, now, here, in_range, all(verdicts) if verdicts else None)

    space = (reservation.capacity, reservation.address_space_bytes)
    resident_slack = PROCESS_TOLERANCE_BYTES + bookkeeping_bytes(reservation.address_space_bytes)
    return (
        check("address space", "address_space_bytes", space, PROCESS_TOLERANCE_BYTES),
        check("charge", "charge_bytes", (0, 0), PROCESS_TOLERANCE_BYTES),
        check("resident", "resident_bytes", (0, 0), resident_slack),
        check("mappings", "mappings", (1, 1), 2),
    )
