"""One reservation, measured: it must take address space and nothing else (B2)."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from vmtool.machine.device_memory import DeviceMemoryUse, shared_device
from vmtool.memory.counters import read_process, read_range
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.governor import Tier
from vmtool.results.check_outcomes import Check, CheckOutcome, all_passed
from vmtool.results.reserve import ReserveResult
from vmtool.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.counters import Counters
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.reservation import Reservation

#: The interpreter may map and touch a little of its own between the two readings.
PROCESS_TOLERANCE_BYTES: Final = 1 << 20


@contextmanager
def measured_reservation(
    backing: VirtualBacking, requested: int, machine: MachineFacts
) -> Iterator[ReserveResult]:
    """Reserve and yield what that changed; the reservation is given back at the end.

    Args:
        backing: Where to reserve.
        requested: The size in bytes; it is rounded up to whole granules.
        machine: The facts of the machine, for the result.

    Raises:
        CallError: If the platform refuses.
    """
    nbytes = align_up(requested, backing.granularity)
    use = None
    if backing.tier is Tier.DEVICE:
        use = DeviceMemoryUse(cast("CudaBacking", backing).context)  # the only backing of this tier
    # The first reading and the first call allocate what later ones reuse.
    _read(use)
    backing.unreserve(backing.reserve(backing.granularity))
    before = _read(use)
    start = perf_counter_ns()
    reservation = backing.reserve(nbytes)
    elapsed = perf_counter_ns() - start
    try:
        after = _read(use)
        inside = {}
        if backing.tier is Tier.HOST:
            inside = _by_name(read_range(reservation.base, reservation.capacity))
        checks = check_counters(
            reservation, before, after, inside, shared=use is not None and not use.ours
        )
        yield ReserveResult(
            machine=machine,
            backing=backing.name,
            device=backing.device_name,
            method=backing.method,
            base=reservation.base,
            requested_bytes=requested,
            capacity_bytes=nbytes,
            reserve_ns=elapsed,
            checks=checks,
            passed=all_passed(checks),
        )
    finally:
        backing.unreserve(reservation)
        if use is not None:
            use.close()


def check_counters(
    reservation: Reservation,
    before: Mapping[str, int | None],
    after: Mapping[str, int | None],
    in_range: Mapping[str, int | None],
    *,
    shared: bool = False,
) -> tuple[Check, ...]:
    """Compare the change of each counter with B2.

    A new reservation is one mapping, or joins a neighbour; aligning its base may leave another on
    each side. Charge and resident memory must be zero in the range itself; the process, or the
    device, as a whole may change a little for other reasons.

    Args:
        reservation: What was reserved in between.
        before: The counters of the whole, by name.
        after: The same, after.
        in_range: Those of the reserved range; empty where they are unknown.
        shared: Whether the device's counter has other processes' memory in it. A change that is not
            the size of the range is then theirs, and the check is not done.
    """
    space = reservation.address_space_bytes
    slack = PROCESS_TOLERANCE_BYTES
    # Expected in the range, the expected change of the whole, and how much that may be off.
    expected = {
        "address_space": (reservation.capacity, space, slack),
        "charge": (0, 0, slack),
        "resident": (0, 0, slack),
        "mappings": (1, 1, 2),
        # Less than the capacity, so that a range committed as a whole does not pass.
        "device_memory": (0, 0, min(DEVICE_TOLERANCE_BYTES, reservation.capacity - 1)),
    }
    checks = tuple(
        _check(name, before[name], after[name], in_range.get(name), expected[name])
        for name in before
    )
    return tuple(map(_not_ours, checks, repeat(reservation.capacity))) if shared else checks


def _not_ours(check: Check, capacity: int) -> Check:
    change = check.values.get("change_bytes")
    if not check.failed or not isinstance(change, int):
        return check
    if abs(change - capacity) <= DEVICE_TOLERANCE_BYTES:
        return check
    return Check(check.name, CheckOutcome.NOT_DONE, shared_device(**check.values))


def _check(
    counter: str,
    before: int | None,
    after: int | None,
    in_range: int | None,
    expected: tuple[int, int, int],
) -> Check:
    due_in_range, due_change, slack = expected
    change = None if before is None or after is None else after - before
    results = []
    if in_range is not None:
        results.append(in_range == due_in_range)
    if change is not None:
        results.append(abs(change - due_change) <= slack)
    unit = "" if counter == "mappings" else "_bytes"
    return Check(
        f"counters.{counter}",
        CheckOutcome.of(all(results) if results else None),
        {
            f"before{unit}": before,
            f"after{unit}": after,
            f"change{unit}": change,
            f"in_range{unit}": in_range,
            f"expected{unit}": due_in_range,
        },
    )


def _read(use: DeviceMemoryUse | None) -> dict[str, int | None]:
    """Return the counters of this process, or the memory in use on the device."""
    return _by_name(read_process()) if use is None else {"device_memory": use.read()}


def _by_name(counters: Counters) -> dict[str, int | None]:
    return {
        "address_space": counters.address_space_bytes,
        "charge": counters.charge_bytes,
        "resident": counters.resident_bytes,
        "mappings": counters.mappings,
    }
