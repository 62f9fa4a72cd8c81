"""What a worker has found so far, in numbers: while it runs and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory.backing import failed_call
from vmtool.results import PHASES, CallFailure, MethodResult
from vmtool.stress.messages import PhaseSoFar, WorkerReport
from vmtool.stress.recorder import join_phases
from vmtool.stress.verify import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.results import PhaseResult
    from vmtool.stress.journal import Journal
    from vmtool.stress.session import Problem, Session


def snapshot(session: Session, journal: Journal) -> Iterator[PhaseSoFar | WorkerReport]:
    """Yield what *session* found so far: phase by phase, and then the rest.

    One large message would make the heap grow a little with each new bucket, which a soak would
    find, rightly, and call a leak.
    """
    for index in range(len(session.settings.methods)):
        for phase in PHASES:
            yield PhaseSoFar(index, _phase(session, index, phase))
    yield report_of(session, journal, phases=False)


def report_of(
    session: Session, journal: Journal, *, phases: bool = True, complete: bool = False
) -> WorkerReport:
    """Return what *session* found so far, without verdicts.

    Args:
        session: No thread of it may be at work.
        journal: What each thread was doing when it failed.
        phases: Whether latencies and slopes are in it.
        complete: Whether the session did all that was planned.
    """
    checkpoints = session.checkpoints
    return WorkerReport(
        worker=session.plan.worker,
        complete=complete,
        interrupted=session.interrupted,
        overhead_ns=session.overhead_ns,
        base_addresses=session.base_addresses,
        resident_before_bytes=session.resident_before,
        resident_after_bytes=None,
        methods=tuple(
            _method(session, index, PHASES if phases else ())
            for index in range(len(session.settings.methods))
        ),
        checkpoints=(),
        checkpoint_ns=checkpoints.spent_ns if checkpoints else 0,
        busy_ns=session.busy_ns * session.settings.threads,
        slopes=checkpoints.slopes() if checkpoints and phases else (),
        verdicts=(),
        device=session.ground.device,
        failures=tuple(
            _failure(session, problem, journal)
            for problem in session.problems
            if not isinstance(problem.error, CorruptionError)
        ),
    )


def _phase(session: Session, index: int, phase: str) -> PhaseResult:
    seats = (seats[index] for seats in session.seats)
    return join_phases(phase, [seat.lane.recorders[phase].result(phase) for seat in seats])


def _method(session: Session, index: int, phases: Sequence[str]) -> MethodResult:
    seats = [seats[index] for seats in session.seats]
    found = [_phase(session, index, phase) for phase in phases]
    cycles = sum(seat.lane.cycles for seat in seats)
    wall_ns = session.wall_ns[index]
    per_second = 10**9 / wall_ns if wall_ns else 0.0
    committed = sum(seat.lane.recorders["commit"].total_bytes for seat in seats)
    return MethodResult(
        method=session.settings.methods[index],
        cycles=cycles,
        wall_ns=wall_ns,
        cycles_per_s=cycles * per_second,
        bytes_per_s=committed * per_second,
        degraded_bytes=sum(seat.subject.reservation.degraded.total for seat in seats),
        quarantined_bytes=sum(seat.subject.reservation.quarantined.total for seat in seats),
        phases=tuple(phase for phase in found if phase.summary.samples),
        calls=session.ground.calls(index),
    )


def _failure(session: Session, problem: Problem, journal: Journal) -> CallFailure:
    error = problem.error
    call = failed_call(error)
    entry = journal.read(problem.thread)
    struck = {(fault.call, fault.effect) for fault in session.faults.struck}
    injected = call is not None and (call.call, call.symbol) in struck
    return CallFailure(
        call=call.call if call else "",
        symbol=call.symbol if call else type(error).__name__,
        message=str(error),
        operation=entry.operation,
        granule=entry.granule,
        cycle=entry.cycle,
        worker=session.plan.worker,
        injected=injected,
        # What the machine had to do with it was nothing.
        cause="it was asked for" if injected else error.cause,
        hint="leave out --inject" if injected else error.hint,
    )
