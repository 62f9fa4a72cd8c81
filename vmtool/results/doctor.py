"""The result of ``vmtool doctor``: findings about the machine and its devices."""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.machine.device_facts import DeviceFacts  # noqa: TC001 - decoding reads the types
from vmtool.machine.doctor.findings import Finding  # noqa: TC001
from vmtool.machine.facts import MachineFacts  # noqa: TC001
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001


@dataclass(frozen=True, slots=True)
class RatingCounts:
    """How many findings have each rating."""

    ok: int
    note: int
    problem: int


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """What was found.

    Attributes:
        machine: The facts of the machine.
        available_bytes: What this process can still commit; ``None`` where it is unknown.
        safe_bytes: What it can commit without endangering the machine.
        limiting_bound: The limit that ``safe_bytes`` comes from: the kind of a finding.
        machine_findings: About the machine; empty where only a device was selected.
        device_findings: About CUDA devices; empty where only the host was selected.
        counts: How many findings have each rating.
        conditions: When and where it was found; ``None`` unless a document was asked for.
        devices: The facts of each device that was examined; empty unless a document was asked for.
    """

    machine: MachineFacts
    available_bytes: int | None
    safe_bytes: int
    limiting_bound: str
    machine_findings: tuple[Finding, ...]
    device_findings: tuple[Finding, ...]
    counts: RatingCounts
    conditions: RunConditions | None = None
    devices: tuple[DeviceFacts, ...] = ()

    @classmethod
    def of(
        cls,
        facts: MachineFacts,
        machine_findings: tuple[Finding, ...],
        device_findings: tuple[Finding, ...],
        conditions: RunConditions | None = None,
        devices: tuple[DeviceFacts, ...] = (),
    ) -> DoctorResult:
        """Return the result with what follows from *facts* and the findings."""
        ratings = [finding.rating.value for finding in (*machine_findings, *device_findings)]
        return cls(
            machine=facts,
            available_bytes=facts.available_bytes,
            safe_bytes=facts.safe_bytes,
            limiting_bound=facts.limiting_bound,
            machine_findings=machine_findings,
            device_findings=device_findings,
            counts=RatingCounts(*map(ratings.count, ("ok", "note", "problem"))),
            conditions=conditions,
            devices=devices,
        )
