"""The result of ``vmtool reserve``: one reservation and the counters around it."""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.machine.facts import MachineFacts  # noqa: TC001 - decoding reads the types
from vmtool.results.check_outcomes import Check  # noqa: TC001


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """One reservation, and what it changed.

    Attributes:
        machine: The facts of the machine before it.
        backing: The backing.
        device: The driver's name of the device; ``None`` for the host.
        method: The commit method.
        base: The first address.
        requested_bytes: The requested size.
        capacity_bytes: The size of the reservation: the requested size in whole granules.
        reserve_ns: How long the call took.
        checks: One for each counter: ``counters.address_space``, ``counters.charge``,
            ``counters.resident`` and ``counters.mappings``; for a device ``counters.device_memory``
            alone. Each has ``before``, ``after`` and ``change`` of the whole process or device,
            ``in_range`` of the reservation alone, and ``expected`` of that (or of the change, for a
            device); ``_bytes`` is added to the names of all but mappings.
        passed: Whether no check failed.
    """

    machine: MachineFacts
    backing: str
    device: str | None
    method: str
    base: int
    requested_bytes: int
    capacity_bytes: int
    reserve_ns: int
    checks: tuple[Check, ...]
    passed: bool
