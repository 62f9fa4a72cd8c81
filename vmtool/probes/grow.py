"""Growing in place, checked at every step, and the same growth by copying."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from vmtool.errors import VmtoolError
from vmtool.histograms import summarize_samples
from vmtool.machine.device_memory import shared_device
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_node_bytes
from vmtool.memory.errors import failed_call
from vmtool.memory.governor import Governor, Tier
from vmtool.probes.grow_by_copy import CopiedBuffer, DeviceCopiedBuffer, compare_copying
from vmtool.probes.grow_stamps import stamps_for
from vmtool.results.check_outcomes import CheckTally, unless
from vmtool.results.grow import GrowFailure, GrowResult, GrowSteps
from vmtool.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.backing import CudaBacking

#: The promises, in the order of the report.
CHECKS: Final = ("base", "committed", "contents", "zero", "released")


@dataclass(frozen=True, slots=True)
class GrowPlan:
    """What to do.

    Attributes:
        lengths: Every length in turn; see :func:`vmtool.probes.grow_lengths.lengths`.
        budget_bytes: The most that may be committed.
        against_copying: Whether to grow a copied buffer through the same lengths.
        node: The NUMA node that the pages must be on; ``None`` for any.
    """

    lengths: tuple[int, ...]
    budget_bytes: int
    against_copying: bool
    node: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The largest length."""
        return max(self.lengths)


def run_growth(
    backing: VirtualBacking,
    plan: GrowPlan,
    machine: MachineFacts,
    *,
    governor: Governor | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _steps: None,
) -> tuple[GrowResult, Exception | None]:
    """Take a buffer through the lengths of *plan*; nothing stays committed or reserved.

    Contents are written and checked between the timed steps; a device's by copies.

    Args:
        backing: Where the memory comes from.
        plan: What to do.
        machine: The facts of the machine, for the result.
        governor: Whose ledger is charged, if it has to be that of the backing's pool; its limit is
            set to the plan's budget.
        stop: Called between two steps; what was done until it returns ``True`` is the result.
        progress: Called after each step with the number of steps that are done.

    Returns:
        The result, and the error that ended the growth early: a step that was refused or failed.
        The result then has all that was measured before it.

    Raises:
        CallError: If the platform refuses the reservation.
    """
    governor = governor or Governor()
    governor.set_limit(backing.tier, plan.budget_bytes)
    growth, error, interrupted = _grow(backing, plan, governor, stop, progress)
    done = len(growth.committed)
    elapsed = growth.elapsed[:done]
    complete = done == len(plan.lengths) and not growth.checks.failed and error is None
    copying = None
    if plan.against_copying and complete and not interrupted:
        copied = (
            CopiedBuffer()
            if backing.tier is Tier.HOST
            else DeviceCopiedBuffer(cast("CudaBacking", backing).context)
        )
        copying = compare_copying(plan.lengths, elapsed, copied, stop=stop)
    steps = list(zip(growth.grows, elapsed, strict=False))
    result = GrowResult(
        machine=machine,
        backing=backing.name,
        device=backing.device_name,
        method=backing.method,
        complete=complete,
        interrupted=interrupted or stop(),
        passed=not growth.checks.failed,
        base=growth.base,
        capacity_bytes=_capacity(backing, plan),
        granule_bytes=backing.granularity,
        budget_bytes=plan.budget_bytes,
        planned_steps=len(plan.lengths),
        steps=GrowSteps(plan.lengths[:done], tuple(growth.committed), tuple(elapsed)),
        growing=summarize_samples([ns for up, ns in steps if up]),
        shrinking=summarize_samples([ns for up, ns in steps if not up]),
        checks=growth.checks.results(),
        copying=copying,
        ended_by=None if error is None else _failure(growth, error),
        node=plan.node,
    )
    return result, error


def _grow(
    backing: VirtualBacking,
    plan: GrowPlan,
    governor: Governor,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
) -> tuple[_MeasuredGrowth, Exception | None, bool]:
    """Do the steps; return what was measured, the error that ended them, and an interruption."""
    capacity = _capacity(backing, plan)
    growth: _MeasuredGrowth | None = None
    try:
        with VirtualBuffer(backing, capacity, governor=governor, holder="grow") as buffer:
            growth = _MeasuredGrowth(buffer, capacity, plan.node)
            for length in plan.lengths:
                if stop() or growth.checks.failed:
                    break
                growth.change_to(length)
                progress(len(growth.elapsed))
            growth.operation = "unreserve"
    except (VmtoolError, OSError, MemoryError) as error:
        if growth is None:
            raise
        return growth, error, False
    except KeyboardInterrupt:  # a second Ctrl-C, in the middle of a long step
        if growth is None:
            raise
        return growth, None, True
    return growth, None, False


def _capacity(backing: VirtualBacking, plan: GrowPlan) -> int:
    return align_up(plan.peak_bytes, backing.granularity)


def _failure(growth: _MeasuredGrowth, error: Exception) -> GrowFailure:
    call = failed_call(error)
    return GrowFailure(
        operation=growth.operation,
        step=growth.begun,
        length_bytes=growth.length,
        call=call.call if call else "",
        symbol=call.symbol if call else type(error).__name__,
        message=str(error) or "this process cannot get more memory",
        cause=getattr(error, "cause", None),
        hint=getattr(error, "hint", None),
    )


class _MeasuredGrowth:
    """One buffer on its way through the lengths, and what was measured of it."""

    def __init__(self, buffer: VirtualBuffer, capacity: int, node: int | None) -> None:
        self.checks = CheckTally(CHECKS if node is None else (*CHECKS, "node"))
        self.elapsed = array("Q")
        self.committed = array("Q")
        self.grows: list[bool] = []
        self.base = buffer.base
        self.operation = "grow"
        self.begun = self.length = 0
        self._buffer = buffer
        self._granule = buffer.backing.granularity
        self._zeroes = buffer.backing.zeroes
        self._stamps = stamps_for(buffer, capacity)
        self._node = node

    def change_to(self, length: int) -> None:
        buffer = self._buffer
        before = len(buffer)
        grow = length > before
        turn = bool(self.grows) and grow != self.grows[-1]
        self.begun, self.length, self.operation = self.begun + 1, length, "check"
        if turn:
            self._check_contents(before, everything=True)
        self.operation = "grow" if grow else "shrink"
        change = buffer.grow_to if grow else buffer.shrink_to
        start = perf_counter_ns()
        change(length)
        self.elapsed.append(perf_counter_ns() - start)
        self.grows.append(grow)
        self.committed.append(buffer.committed)
        self.operation = "check"
        self._check_step(before, length)

    def _check_step(self, before: int, length: int) -> None:
        buffer = self._buffer
        self.checks.record("base", 1, **unless(buffer.base == self.base, base=buffer.base))
        as_due = buffer.committed == align_up(length, self._granule)
        found = unless(as_due, committed_bytes=buffer.committed, length_bytes=length)
        self.checks.record("committed", 1, **found)
        if length == 0:
            unreleased = self._stamps.unreleased_bytes()
            if unreleased is not None:
                found = unless(not unreleased, unreleased_bytes=unreleased)
                self.checks.record("released", 1, **found)
            elif self._stamps.others_bytes is not None:
                self.checks.doubt(
                    "released", **shared_device(others_bytes=self._stamps.others_bytes)
                )
            return
        if self.checks.failed:
            return  # reading memory that is not as it should be may kill the process
        if length > before:
            self._check_contents(before, everything=False)
            if self._zeroes:
                at = self._stamps.find_nonzero(align_up(before, self._granule))
                self.checks.record("zero", 1, **unless(at is None, offset=at or 0))
            self._stamps.write(before)
        else:
            self._check_contents(length, everything=False)

    def _check_contents(self, length: int, *, everything: bool) -> None:
        """Compare stamps in the first *length* bytes."""
        if not length:
            return
        compared = self._stamps.compared
        at = self._stamps.find_wrong(length, everything=everything)
        compared = self._stamps.compared - compared
        self.checks.record("contents", compared, **unless(at is None, offset=at or 0))
        if everything and self._node is not None:
            self._check_node(self._node)

    def _check_node(self, node: int) -> None:
        """Compare where the kernel says that the pages are with the node that was chosen."""
        found = read_node_bytes(self.base, self._buffer.reservation.capacity)
        if found is not None:
            elsewhere = sum(nbytes for number, nbytes in found.items() if number != node)
            self.checks.record("node", 1, **unless(not elsewhere, elsewhere_bytes=elsewhere))
