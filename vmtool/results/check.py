"""What ``vmtool check`` found: the machine's verdict, and each kind of memory on it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any

from vmtool.machine.doctor.findings import Finding  # noqa: TC001 - likewise
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise
from vmtool.results.check_outcomes import Check  # noqa: TC001 - likewise
from vmtool.results.matrix import GranuleChoice  # noqa: TC001 - likewise
from vmtool.results.stress import Recommendation, StressResult  # noqa: TC001 - likewise


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """One kind of memory, measured and checked.

    Attributes:
        backing: ``host`` or ``cuda:N``.
        device: The driver's own name of the device; ``None`` for the host.
        refused: Why nothing was measured; ``None`` where it was.
        recommendation: The method to use, with the cost of a cycle of each.
        granules: Each granule with its best method, ascending.
        best_granule: That of *granules* to use: the cheapest, and within 5 % the smallest.
        checks: Contents, counters, leaks and guards.
        stress: The run behind them.
    """

    backing: str
    device: str | None
    refused: str | None = None
    recommendation: Recommendation | None = None
    granules: tuple[GranuleChoice, ...] = ()
    best_granule: GranuleChoice | None = None
    checks: tuple[Check, ...] = ()
    stress: StressResult | None = None


@dataclass(frozen=True, slots=True)
class MachineCheckResult:
    """The result of ``vmtool check``.

    Attributes:
        wall_ns: How long the whole check took.
        complete: Whether everything was tried; an interrupt leaves the rest out.
        passed: Whether nothing is wrong: no problem of the machine and no failed check.
        safe_bytes: What can be committed here without endangering the machine.
        limiting_bound: The limit that this comes from.
        findings: What the doctor found, without what is as it should be.
        memory: Each kind of memory, the host first.
        machine: Facts about the machine, as ``vmtool doctor`` shows them.
    """

    wall_ns: int
    complete: bool
    passed: bool
    safe_bytes: int
    limiting_bound: str
    findings: tuple[Finding, ...]
    memory: tuple[MemoryCheck, ...]
    conditions: RunConditions | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
