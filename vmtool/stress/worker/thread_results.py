"""What the threads of a worker did with each method, and what ended one of them early."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from vmtool.memory.cuda.errors import DeviceLostError
from vmtool.memory.errors import failed_call
from vmtool.results.stress import CallFailure, MethodResult
from vmtool.stress.journal import FILL, OPERATIONS
from vmtool.stress.worker.phase_samples import join_phases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vmtool.errors import VmtoolError
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.stress import CallResult, PhaseResult
    from vmtool.stress.journal import Entry
    from vmtool.stress.worker.operation_runner import OperationRunner
    from vmtool.stress.worker.target import CheckedBuffer


@dataclass(slots=True)
class ThreadBuffer:
    """One thread's buffer under one method, with everything that belongs to it."""

    buffer: VirtualBuffer
    runner: OperationRunner
    checked: CheckedBuffer


class WorkerProblem(NamedTuple):
    """What ended a thread early."""

    thread: int
    error: VmtoolError


def phase_result(items: Iterable[ThreadBuffer], phase: str) -> PhaseResult:
    """Return what all threads recorded of one phase of a method."""
    return join_phases(phase, [item.runner.recorders[phase].result(phase) for item in items])


def method_result(
    method: str,
    items: Sequence[ThreadBuffer],
    phases: Iterable[str],
    wall_ns: int,
    calls: tuple[CallResult, ...],
) -> MethodResult:
    """Return what all threads did with one method.

    Args:
        method: Its name.
        items: The buffer of each thread.
        phases: Those to report.
        wall_ns: The time of its rounds.
        calls: What the driver took.
    """
    found = [phase_result(items, phase) for phase in phases]
    cycles = sum(item.runner.cycles for item in items)
    per_second = 10**9 / wall_ns if wall_ns else 0.0
    committed = sum(item.runner.recorders["commit"].total_bytes for item in items)
    return MethodResult(
        method=method,
        cycles=cycles,
        wall_ns=wall_ns,
        cycles_per_s=cycles * per_second,
        bytes_per_s=committed * per_second,
        degraded_bytes=sum(item.checked.reservation.degraded.total for item in items),
        quarantined_bytes=sum(item.checked.reservation.quarantined.total for item in items),
        phases=tuple(phase for phase in found if phase.summary.samples),
        calls=calls,
    )


def call_failure(error: VmtoolError, entry: Entry, faults: FaultyCalls, worker: int) -> CallFailure:
    """Return what *error* was, and which operation it ended.

    Args:
        error: What a thread ended with.
        entry: What the journal says that the thread was doing.
        faults: Those that were injected.
        worker: The number of this worker.
    """
    call = failed_call(error)
    struck = {(fault.call, fault.effect) for fault in faults.applied}
    injected = call is not None and (call.call, call.symbol) in struck
    operation, cycle, granule = entry.operation, entry.cycle, entry.granule
    pool = operation == OPERATIONS[FILL]
    if pool:
        trimming = call is not None and call.call == "cuMemRelease"
        operation = f"{'trim' if trimming else 'fill'} of the pool"
    return CallFailure(
        call=call.call if call else "",
        symbol=call.symbol if call else type(error).__name__,
        message=str(error),
        operation=operation,
        granule=None if pool else granule,
        cycle=None if pool else cycle,
        worker=worker,
        injected=injected,
        # The machine had nothing to do with it.
        cause="--inject made this call fail" if injected else error.cause,
        hint="leave out --inject" if injected else error.hint,
    )


def unmap_failure(failure: CallFailure, error: VmtoolError, *, beside_work: bool) -> CallFailure:
    """Return the failure of the one measurement that unmaps beside running work.

    Args:
        failure: As of any other call.
        error: What it ended with.
        beside_work: Whether the work was running when it failed.
    """
    failure = replace(failure, operation="unmap beside work", granule=None, cycle=None)
    if not beside_work:  # so it was not the work that did it
        return failure
    lost = isinstance(error, DeviceLostError)
    what = "ended the context" if lost else "failed"
    return replace(
        failure,
        message=f"unmapping while other work ran {what}: {error}",
        hint="an engine must synchronise before it unmaps on this device" if lost else failure.hint,
    )
