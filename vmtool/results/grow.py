"""The result of ``vmtool grow``: a buffer grown and shrunk in place, checked at every step."""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.histograms import Summary  # noqa: TC001
from vmtool.machine.facts import MachineFacts  # noqa: TC001 - decoding reads the types
from vmtool.results.check_outcomes import Check  # noqa: TC001


@dataclass(frozen=True, slots=True)
class CopyResult:
    """That growth by copying into ever larger blocks.

    Attributes:
        steps: Growing steps done before the limit; the first of the plan.
        planned_steps: Growing steps in the plan.
        copied_bytes: The bytes that were copied, all steps together.
        copying: Latency of its steps.
        in_place: Latency of the same steps of the buffer that grew in place.
        copying_ns: Time of its steps together.
        in_place_ns: Time of the same steps in place.
        stopped: Why it ended early: ``interrupted``, ``time limit`` or the error; ``None`` if it
            did not.
        faster_from_bytes: The smallest length from which every step was faster in place than by
            copying; ``None``: not even the last was.
    """

    steps: int
    planned_steps: int
    copied_bytes: int
    copying: Summary
    in_place: Summary
    copying_ns: int
    in_place_ns: int
    stopped: str | None = None
    faster_from_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GrowFailure:
    """What ended a growth early.

    Attributes:
        operation: ``grow``, ``shrink``, ``check`` (of what a step did) or ``unreserve`` (at the end).
        step: The step, counted from 1; the last one for ``unreserve``.
        length_bytes: The length that this step makes.
        call: The call that failed; empty if none did, as when the budget refused a lease.
        symbol: Its symbolic code, or the kind of error.
        message: The error.
        cause: The likely cause on this machine, or ``None``.
        hint: What to do about it, or ``None``.
    """

    operation: str
    step: int
    length_bytes: int
    call: str
    symbol: str
    message: str
    cause: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class GrowSteps:
    """The steps in order, each list with one item a step.

    Attributes:
        length_bytes: The length after each step.
        committed_bytes: The committed bytes after each step.
        elapsed_ns: The time of each step.
    """

    length_bytes: tuple[int, ...]
    committed_bytes: tuple[int, ...]
    elapsed_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GrowResult:
    """A growth in place.

    Attributes:
        machine: The facts of the machine before it.
        backing: The backing.
        device: The driver's name of the device; ``None`` for the host.
        method: The commit method.
        complete: Whether the whole plan was done.
        interrupted: Whether the user stopped it.
        passed: Whether no check failed.
        base: The first address.
        capacity_bytes: The size of the reservation.
        granule_bytes: The granule of the backing.
        budget_bytes: The most that might be committed.
        planned_steps: Steps in the plan.
        steps: The steps that were done.
        growing: Latency of the steps that grow.
        shrinking: Latency of the steps that shrink.
        checks: ``base``, ``committed``, ``contents``, ``zero`` and ``released``, and ``node`` where
            one was chosen: each with the number of comparisons (``compared``) and, if it failed,
            what was found.
        copying: The comparison with copying, or ``None`` if it was not made.
        ended_by: What ended it, other than the plan, the user or a check.
        node: The NUMA node that was chosen.
    """

    machine: MachineFacts
    backing: str
    device: str | None
    method: str
    complete: bool
    interrupted: bool
    passed: bool
    base: int
    capacity_bytes: int
    granule_bytes: int
    budget_bytes: int
    planned_steps: int
    steps: GrowSteps
    growing: Summary
    shrinking: Summary
    checks: tuple[Check, ...]
    copying: CopyResult | None
    ended_by: GrowFailure | None
    node: int | None = None
