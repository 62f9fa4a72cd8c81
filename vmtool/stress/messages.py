"""The messages between a worker and its parent: one JSON object per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vmtool.json_documents import plain
from vmtool.results.check_outcomes import Check  # noqa: TC001 - decoded at run time
from vmtool.results.stress import (  # noqa: TC001 - likewise
    CallFailure,
    Checkpoint,
    HoldResult,
    MethodResult,
    PhaseResult,
    StressSettings,
    UnmapResult,
)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What one worker is to do.

    Attributes:
        settings: Of the whole run; :func:`vmtool.stress.plan.worker_budget` is this worker's share.
        worker: Which worker it is.
        checks: Whether to take checkpoints of the counters.
        run: Which of several runs it belongs to.
    """

    settings: StressSettings
    worker: int
    checks: bool = True
    run: int = 0


@dataclass(frozen=True, slots=True)
class WorkerError:
    """A refusal that ended the worker before its first cycle, to be raised again by the parent."""

    exit_code: int
    kind: str
    message: str
    cause: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class PhaseSoFar:
    """One phase of one method, while the worker goes on."""

    method_index: int
    phase: PhaseResult


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker found, so far or in the end.

    Attributes:
        complete: Whether it ended by itself with everything that was requested.
        interrupted: Whether it was asked to stop before.
        checkpoints: Kept by the parent, to whom each is sent when it is taken.
        methods: In a report of a worker that goes on without their phases, which are sent apart.
        checkpoint_ns: Time in checkpoints.
        busy_ns: Time in rounds, checkpoints included.
        checks: Those that only the worker can make.
        peak_committed_bytes: The most that it had committed at once.
        peak_resident_bytes: The most that its process had resident; ``None`` if not available.
        device: The driver's own name of the device; ``None`` for the host.
        unmapping: What running work does to unmapping, if this worker measured it.
    """

    worker: int
    complete: bool
    interrupted: bool
    overhead_ns: int
    base_addresses: tuple[int, ...]
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    methods: tuple[MethodResult, ...]
    checkpoints: tuple[Checkpoint, ...]
    checkpoint_ns: int
    busy_ns: int
    checks: tuple[Check, ...]
    failures: tuple[CallFailure, ...]
    device: str | None = None
    unmapping: UnmapResult | None = None
    peak_committed_bytes: int = 0
    peak_resident_bytes: int | None = None
    hold: HoldResult | None = None


def encode(message: str, value: Any = None) -> str:
    """Return one line that carries *value*, a dataclass or nothing, under the name *message*."""
    return json.dumps({"message": message, "value": plain(value)}, separators=(",", ":")) + "\n"
