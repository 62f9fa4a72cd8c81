"""What is checked when a worker ends: contents, bases, ledger, budget, counters, and the release of everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.memory.cuda.errors import DeviceLostError
from vmtool.memory.governor import BudgetError, Tier
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.stress.plan import worker_budget
from vmtool.stress.worker.contents import CorruptionError
from vmtool.stress.worker.host_counters import HostObserver
from vmtool.stress.worker.thread_results import ThreadBuffer, WorkerProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.governor import Governor
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.checkpoint import Checkpoints
    from vmtool.stress.worker.target import CounterObserver, Target

_CLOSE_TRIES: Final = 2  # one retry separates a refusal that passes from one that stays


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
