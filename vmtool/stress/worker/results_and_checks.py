"""What a worker reports: its methods' results, the calls that failed, and the final checks.

The checks are of contents, bases, ledger, budget and counters, and that everything is released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.errors import VmtoolError
from vmtool.memory.cuda.errors_and_diagnosis import DeviceLostError
from vmtool.memory.errors import failed_call
from vmtool.memory.governor import BudgetError, Tier
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.stress import CallFailure, MethodResult
from vmtool.stress.journal import FILL, OPERATIONS
from vmtool.stress.plan import worker_budget
from vmtool.stress.worker.host_contents import CorruptionError
from vmtool.stress.worker.host_counters import HostObserver
from vmtool.stress.worker.timed_operations import join_phases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.governor import Governor
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import CallResult, PhaseResult, StressSettings
    from vmtool.stress.journal import Entry
    from vmtool.stress.worker.checkpoint import CheckedBuffer, Checkpoints, CounterObserver
    from vmtool.stress.worker.host_target import Target
    from vmtool.stress.worker.timed_operations import OperationRunner

_CLOSE_TRIES: Final = 2  # one retry separates a refusal that passes from one that stays


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


def peak_bytes(governor: Governor) -> int:
    """Return the most that was leased at once."""
    return max(governor.ledger(tier).peak_bytes for tier in (Tier.HOST, Tier.DEVICE))


@dataclass(frozen=True, slots=True)
class FinalChecks:
    """The checks of one worker at its end.

    Attributes:
        settings: What was done.
        buffers: Of every thread and method.
        base_addresses: Where they were reserved.
        problems: What ended threads early; closing may add to it.
        governor: Who gave the leases.
        target: The memory.
        observer: Who counts it.
        checkpoints: Where the counters were compared, if they were.
        faults: The calls, with the faults that were injected.
    """

    settings: StressSettings
    buffers: Sequence[ThreadBuffer]
    base_addresses: tuple[int, ...]
    problems: list[WorkerProblem]
    governor: Governor
    target: Target
    observer: CounterObserver
    checkpoints: Checkpoints | None
    faults: FaultyCalls

    def before_closing(self) -> list[Check]:
        """Return the checks that need the buffers as they are."""
        return [self._contents(), self._zero(), self._base(), self._leases(), self._budget()]

    def by_closing(self) -> list[Check]:
        """Close every buffer; return whether all was released, and what was counted until then."""
        checks = [self._released(self._close_buffers()), *self._counters()]
        if self.settings.node is not None:
            checks.append(self._node(self.settings.node))
        if self.settings.inject:
            checks.append(self._injected())
        return checks

    def _cycles(self) -> int:
        return sum(item.runner.cycles for item in self.buffers)

    def _injected(self) -> Check:
        """A fault that never happened proves nothing, and the user must know."""
        missing = [fault for fault in self.faults.faults if fault not in self.faults.applied]
        if not missing:
            return Check("inject", CheckOutcome.PASSED, {"faults": len(self.faults.faults)})
        fault = missing[0]
        made = self.faults.counts.get(fault.call, 0)
        values: dict[str, Value] = {"fault": str(fault), "call": fault.call, "calls": made}
        return Check("inject", CheckOutcome.NOT_DONE, {"reason": "did not happen", **values})

    def _node(self, node: int) -> Check:
        """Return whether all pages were on the chosen NUMA node whenever the kernel was asked."""
        observer = self.observer
        elsewhere = observer.elsewhere_bytes if isinstance(observer, HostObserver) else None
        if elsewhere is None:
            return Check.not_done("node", "not available")
        if not self._cycles():
            return Check.not_done("node", "no cycles")
        values = {"node": node, "elsewhere_bytes": elsewhere}
        return Check("node", CheckOutcome.of(not elsewhere), values)

    def _contents(self) -> Check:
        verify = self.settings.verify
        if verify == "off":
            return Check.not_done("contents", "not requested")
        for problem in self.problems:
            error = problem.error
            if isinstance(error, CorruptionError) and error.corruption.check != "zero":
                return Check("contents", CheckOutcome.FAILED, error.corruption.values())
        spans = sum(
            item.runner.recorders["verify"].result("verify").summary.samples
            for item in self.buffers
        )
        if not spans:
            return Check.not_done("contents", "no cycles")
        return Check("contents", CheckOutcome.PASSED, {"verify": verify, "spans": spans})

    def _zero(self) -> Check:
        if self.settings.verify == "off":
            return Check.not_done("zero", "not requested")
        promising = {item.checked.method for item in self.buffers if item.buffer.backing.zeroes}
        if not promising:
            return Check.not_done("zero", "not promised")
        for problem in self.problems:
            error = problem.error
            if isinstance(error, CorruptionError) and error.corruption.check == "zero":
                return Check("zero", CheckOutcome.FAILED, error.corruption.values())
        if not self._cycles():
            return Check.not_done("zero", "no cycles")
        return Check("zero", CheckOutcome.PASSED, {"methods": ", ".join(sorted(promising))})

    def _base(self) -> Check:
        bases = zip((item.buffer.base for item in self.buffers), self.base_addresses, strict=True)
        values: dict[str, Value] = {"moved": sum(now != before for now, before in bases)}
        values["buffers"] = len(self.base_addresses)
        return Check("base", CheckOutcome.of(not values["moved"]), values)

    def _leases(self) -> Check:
        """The governor's ledger and the buffers' maps agree on the bytes (V2, B8)."""
        held = self.target.pooled_bytes() + sum(
            item.buffer.committed + item.checked.reservation.quarantined.total
            for item in self.buffers
            if item.buffer.backing.accounting.authority is None
        )
        leased = self._leased()
        values: dict[str, Value] = {"leased_bytes": leased, "committed_bytes": held}
        return Check("leases", CheckOutcome.of(held == leased), values)

    def _leased(self) -> int:
        return sum(self.governor.ledger(tier).used_bytes for tier in (Tier.HOST, Tier.DEVICE))

    def _budget(self) -> Check:
        """The governor let nobody over the limit, and refuses the first byte beyond it (V2)."""
        governor, limit = self.governor, worker_budget(self.settings)
        peak = peak_bytes(self.governor)
        refused = 0
        for tier in (Tier.HOST, Tier.DEVICE):
            used = governor.ledger(tier).used_bytes
            try:
                governor.lease(tier, limit - used + 1).release()
            except BudgetError:
                refused += governor.ledger(tier).used_bytes == used
        return Check(
            "budget",
            CheckOutcome.of(peak <= limit and refused == 2),
            {"peak_bytes": peak, "limit_bytes": limit, "next_byte_refused": refused == 2},
        )

    def _close_buffers(self) -> list[VmtoolError]:
        """Close every buffer; return the refusals that stayed."""
        refusals: list[VmtoolError] = []
        # One more for a device that the last one found lost: nothing is called on it any more.
        for done in range(_CLOSE_TRIES + 1):
            if done == _CLOSE_TRIES and not any(isinstance(e, DeviceLostError) for e in refusals):
                break
            refusals = []
            for item in self.buffers:
                try:
                    item.buffer.close()
                except VmtoolError as error:
                    refusals.append(error)
                    if isinstance(error, DeviceLostError) and not self.problems:
                        self.problems.append(WorkerProblem(0, error))
        return refusals

    def _released(self, refusals: list[VmtoolError]) -> Check:
        if refusals:
            return Check("released", CheckOutcome.FAILED, {"error": str(refusals[0])})
        leased = self._leased() - self.target.pooled_bytes()
        mapped, buffers = None, len(self.base_addresses)
        try:
            mapped = self.observer.count_mapped()
        except VmtoolError as error:  # a device that does not answer
            self.problems.append(WorkerProblem(0, error))
        return Check(
            "released",
            CheckOutcome.of(not mapped and not leased),
            {"mapped": mapped, "buffers": buffers, "leased_bytes": leased},
        )

    def _counters(self) -> list[Check]:
        checkpoints, checks = self.checkpoints, []
        values: dict[str, Value]
        for name in self.observer.counters:
            check = f"counters.{name}"
            if checkpoints is None:
                checks.append(Check.not_done(check, "no checkpoints"))
            elif name in self.observer.doubts and name not in checkpoints.differing:
                values = dict(self.observer.doubts[name])
                checks.append(Check(check, CheckOutcome.NOT_DONE, values))
            elif name not in checkpoints.compared:
                checks.append(Check.not_done(check, "not available"))
            elif (differing := checkpoints.differing.get(name)) is None:
                checks.append(Check(check, CheckOutcome.PASSED, {"checkpoints": checkpoints.count}))
            else:
                reading = next(r for r in differing.buffers if r.counter == name)
                values = {
                    "method": differing.method,
                    "cycle": differing.cycle,
                    "observed": reading.observed,
                    "expected": reading.expected,
                    "low": reading.low,
                    "high": reading.high,
                }
                checks.append(Check(check, CheckOutcome.FAILED, values))
        return checks
