"""The end of a worker's run: the last checks, everything given back, and the verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.memory.counters import read_process
from vmtool.memory.governor import BudgetError, Tier
from vmtool.results import DEVICE_LEDGERS, LEDGERS, Verdict
from vmtool.stress.journal import OPERATION, UNRESERVE
from vmtool.stress.plan import worker_budget
from vmtool.stress.reporting import report_of
from vmtool.stress.verify import CorruptionError
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.results import LedgerSlope, UnmapResult
    from vmtool.stress.journal import Journal
    from vmtool.stress.messages import WorkerReport
    from vmtool.stress.session import Seat, Session

# One retry tells a refusal that passes from one that stays.
_CLOSE_TRIES: Final = 2


def close_session(session: Session, journal: Journal) -> WorkerReport:
    """Check everything once more, give everything back, and return the final report."""
    if session.checkpoints is not None:
        session.checkpoints.take_all(session.cycles(), settled=not session.problems)
    # Made before anything is closed: a closed buffer no longer tells what it held.
    report = report_of(session, journal, complete=not session.problems and not session.interrupted)
    verdicts = [_contents(session), _zero(session), _base(session), _leases(session)]
    verdicts.append(_budget(session))
    for thread in range(session.settings.threads):
        journal.slot(thread)[OPERATION] = UNRESERVE
    refusals = _close_all(session)
    verdicts.append(_released(session, refusals))
    verdicts += _ledgers(session) + _leaks(session, report.slopes)
    if session.settings.inject:
        verdicts.append(_injected(session))
    return replace(
        report,
        verdicts=tuple(verdicts),
        unmapping=_unmapping(session, complete=report.complete),
        resident_after_bytes=read_process().resident_bytes,
    )


def _unmapping(session: Session, *, complete: bool) -> UnmapResult | None:
    """Measure it once a run, after everything else, where memory and time allow it."""
    if not complete or not session.plan.checks or session.plan.worker:
        return None
    try:
        return session.ground.measure_unmapping()
    except VmtoolError:
        return None  # a device that is full, or has failed: the run itself was complete


def _injected(session: Session) -> Verdict:
    """A fault that never happened proves nothing, and the user must know."""
    missing = [fault for fault in session.faults.faults if fault not in session.faults.struck]
    if not missing:
        return Verdict("inject", passed=True, detail="every fault that was asked for happened")
    fault = missing[0]
    made = session.faults.counts.get(fault.call, 0)
    return Verdict(
        "inject",
        passed=None,
        detail=f"{fault} did not happen: {fault.call} was called {made} times",
        hint="use a smaller N, more cycles, or another --method",
    )


def _seats(session: Session) -> list[Seat]:
    return [seat for seats in session.seats for seat in seats]


def _contents(session: Session) -> Verdict:
    if session.settings.verify == "off":
        return Verdict("contents", None, "not asked for")
    for problem in session.problems:
        error = problem.error
        if isinstance(error, CorruptionError) and error.corruption.check != "zero":
            return Verdict("contents", passed=False, detail=str(error), hint=error.hint)
    checked = sum(
        seat.lane.recorders["verify"].result("verify").summary.samples for seat in _seats(session)
    )
    how = "every byte" if session.settings.verify == "full" else "two pieces of 4 KiB"
    return Verdict(
        "contents",
        passed=True,
        detail=f"{how} of each released span held what was written ({checked:,} spans)",
    )


def _zero(session: Session) -> Verdict:
    if session.settings.verify == "off":
        return Verdict("zero", None, "not asked for")
    if not any(seat.buffer.backing.zeroes for seat in _seats(session)):
        return Verdict("zero", None, "this memory does not promise to be zero when fresh")
    for problem in session.problems:
        error = problem.error
        if isinstance(error, CorruptionError) and error.corruption.check == "zero":
            return Verdict("zero", passed=False, detail=str(error), hint=error.hint)
    promising = {
        seat.buffer.backing.method for seat in _seats(session) if seat.buffer.backing.zeroes
    }
    methods = ", ".join(name for name in session.settings.methods if name in promising)
    return Verdict("zero", passed=True, detail=f"freshly committed memory read as zero ({methods})")


def _base(session: Session) -> Verdict:
    now = tuple(seat.buffer.base for seat in _seats(session))
    moved = sum(a != b for a, b in zip(now, session.base_addresses, strict=True))
    return Verdict("base", passed=not moved, detail=f"{moved} of {len(now)} buffers moved")


def _leases(session: Session) -> Verdict:
    """The governor's ledger and the buffers' maps tell of the same bytes (V2, B8)."""
    held = session.ground.pooled_bytes() + sum(
        seat.buffer.committed + seat.subject.reservation.quarantined.total
        for seat in _seats(session)
        if seat.buffer.backing.accounting.authority is None
    )
    leased = sum(session.governor.ledger(tier).used_bytes for tier in (Tier.HOST, Tier.DEVICE))
    return Verdict(
        "leases",
        passed=held == leased,
        detail=f"{leased} bytes leased, {held} committed, pooled or quarantined",
    )


def _budget(session: Session) -> Verdict:
    """The governor let nobody over the limit, and refuses the first byte beyond it (V2)."""
    governor, limit = session.governor, worker_budget(session.settings)
    peak = max(governor.ledger(tier).peak_bytes for tier in (Tier.HOST, Tier.DEVICE))
    refused = 0
    for tier in (Tier.HOST, Tier.DEVICE):
        used = governor.ledger(tier).used_bytes
        try:
            governor.lease(tier, limit - used + 1).release()
        except BudgetError:
            refused += governor.ledger(tier).used_bytes == used
    return Verdict(
        "budget",
        passed=peak <= limit and refused == 2,
        detail=f"at most {format_size(peak)} of {format_size(limit)} were committed at once, and "
        f"one byte more was {'refused' if refused == 2 else 'not refused'}",
    )


def _close_all(session: Session) -> list[VmtoolError]:
    """Close every buffer; return the refusals that stayed."""
    refusals: list[VmtoolError] = []
    for seat in _seats(session):
        for attempt in range(_CLOSE_TRIES):
            try:
                seat.buffer.close()
                break
            except VmtoolError as error:
                if attempt == _CLOSE_TRIES - 1:
                    refusals.append(error)
    return refusals


def _released(session: Session, refusals: list[VmtoolError]) -> Verdict:
    if refusals:
        return Verdict("released", passed=False, detail=str(refusals[0]), hint=refusals[0].hint)
    leased = sum(session.governor.ledger(tier).used_bytes for tier in (Tier.HOST, Tier.DEVICE))
    leased -= session.ground.pooled_bytes()
    left, buffers = session.observer.still_held(), len(session.base_addresses)
    mapped = (
        f"whether any of {buffers} buffers is still mapped is not told here"
        if left is None
        else f"{left} of {buffers} buffers are still mapped"
    )
    return Verdict(
        "released", passed=not left and not leased, detail=f"{mapped}, {leased} bytes leased"
    )


def _ledgers(session: Session) -> list[Verdict]:
    checkpoints = session.checkpoints
    if checkpoints is None:
        names = session.observer.ledgers
        return [Verdict(f"ledger.{name}", None, "no checkpoints were taken") for name in names]
    verdicts = []
    for name in session.observer.ledgers:
        differing = checkpoints.differing.get(name)
        if name not in checkpoints.told:
            verdicts.append(Verdict(f"ledger.{name}", None, "this platform does not tell it"))
        elif differing is None:
            detail = f"agreed at {checkpoints.compared} checkpoints"
            verdicts.append(Verdict(f"ledger.{name}", passed=True, detail=detail))
        else:
            reading = next(r for r in differing.buffers if r.ledger == name)
            unit = "" if name.endswith("mappings") else " bytes"
            who = "the driver" if name in DEVICE_LEDGERS else "the kernel"
            detail = (
                f"{differing.method}, cycle {differing.cycle}: {who} counts "
                f"{reading.observed}{unit}, vmtool believes {reading.believed} "
                f"(allowed {reading.low} to {reading.high})"
            )
            hint = "another --method shows whether the method or the kernel is at fault"
            verdicts.append(Verdict(f"ledger.{name}", passed=False, detail=detail, hint=hint))
    return verdicts


def _leaks(session: Session, slopes: tuple[LedgerSlope, ...]) -> list[Verdict]:
    verdicts, checkpoints = [], session.checkpoints
    names = dict.fromkeys((*LEDGERS, *(slope.ledger for slope in slopes)))
    for name in names:
        slope = next((slope for slope in slopes if slope.ledger == name), None)
        if slope is None and checkpoints is not None and name not in checkpoints.counted:
            verdicts.append(Verdict(f"leak.{name}", None, "this platform does not tell it"))
            continue
        if slope is None:
            detail = "too few checkpoints for a slope"
            verdicts.append(Verdict(f"leak.{name}", None, detail, "run for longer: --duration 10s"))
            continue
        unit = "mappings" if name == "mappings" else "bytes"
        detail = (
            f"{slope.per_cycle:.3g} {unit} a cycle ({slope.low:.3g} to {slope.high:.3g} with "
            f"{slope.confidence:.0%} confidence), {slope.grown} in all"
        )
        hint = "confirm with --soak 10m; --method all shows which method leaks"
        verdicts.append(
            Verdict(f"leak.{name}", not slope.leaks, detail, hint if slope.leaks else None)
        )
    return verdicts
