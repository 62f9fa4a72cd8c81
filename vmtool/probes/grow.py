"""Growing in place through planned lengths, with checks at every step, and the same by copying."""

from __future__ import annotations

import errno
import mmap
import sys
from array import array
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from vmtool.errors import CallError, UnavailableError, UsageError, VmtoolError
from vmtool.histograms import summarize_samples
from vmtool.machine.device_memory import shared_device
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_node_bytes
from vmtool.memory.errors import failed_call
from vmtool.memory.governor import Governor, Tier
from vmtool.probes.grow_stamps import Stamps, stamps_for
from vmtool.results.check_outcomes import CheckTally, unless
from vmtool.results.grow import CopyResult, GrowFailure, GrowResult, GrowSteps
from vmtool.units import align_up, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.context import DeviceContext


PATTERNS: Final = ("linear", "doubling", "sawtooth")
#: More steps than this would measure the harness and fill the memory with samples.
MAX_STEPS: Final = 1 << 18
#: A tooth goes up by the first number of steps and down by the second.
_TOOTH_UP: Final = 4
_TOOTH_DOWN: Final = 2
#: The promises, in the order of the report.
CHECKS: Final = ("base", "committed", "contents", "zero", "released")
#: Copying stops after so long: the smaller the steps, the more is copied.
COPY_LIMIT_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True)
class GrowPlan:
    """What to do.

    Attributes:
        lengths: Every length in turn; see :func:`plan_lengths`.
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


def plan_lengths(pattern: str, to: int, step: int) -> list[int]:
    """Return every length in turn; the last is 0.

    ``linear`` goes up and down by *step*; ``doubling`` starts at *step*, doubles, and halves on
    the way down; ``sawtooth`` goes up four steps and down two until it reaches the peak, then down
    by four. Each reaches *to* exactly.

    Args:
        pattern: One of :data:`PATTERNS`.
        to: The peak in bytes, positive.
        step: The step in bytes, positive.

    Raises:
        UsageError: If the pattern is unknown, or there would be more than 262,144 steps.
    """
    if pattern not in PATTERNS:
        raise UsageError(f"unknown pattern {pattern!r}", hint=f"use one of {', '.join(PATTERNS)}")
    if pattern == "doubling":
        up = _doublings(to, step)
        return [*up, *reversed(up[:-1]), 0]
    steps = -(-to // step) * (4 if pattern == "sawtooth" else 2)
    if steps > MAX_STEPS:
        least = -(-to * steps // (MAX_STEPS * -(-to // step)))
        raise UsageError(
            f"{steps:,} steps of {format_size(step)} are more than {MAX_STEPS:,}",
            hint=f"use a step of {least} bytes or more",
        )
    if pattern == "linear":
        up = [*range(step, to, step), to]
        return [*up, *reversed(up[:-1]), 0]
    return [*_teeth(to, step), *range(to - _TOOTH_UP * step, 0, -_TOOTH_UP * step), 0]


def _doublings(to: int, step: int) -> list[int]:
    up = []
    length = step
    while length < to:
        up.append(length)
        length *= 2
    return [*up, to]


def _teeth(to: int, step: int) -> list[int]:
    found = []
    low = 0
    while True:
        for rise in range(1, _TOOTH_UP + 1):
            found.append(min(low + rise * step, to))
            if found[-1] == to:
                return found
        low += (_TOOTH_UP - _TOOTH_DOWN) * step
        found.append(low)


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
            else _DeviceCopiedBuffer(cast("CudaBacking", backing).context)
        )
        copying = _compare_copying(plan.lengths, elapsed, copied, stop=stop)
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


class CopiedBuffer:
    """Bytes whose base moves at every growth, as with ``realloc`` of large blocks.

    The blocks come from the same kind of memory as a host backing's: private, anonymous, untouched.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._stamps, self._stamped = Stamps(0), 0

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Get a block of *nbytes*, copy the first *keep* bytes into it, and free the old block.

        Raises:
            CallError: If the platform refuses the block; the old one stays.
        """
        block = _map_block(nbytes)
        if self._block is not None:
            with memoryview(block) as to, memoryview(self._block) as old:
                to[:keep] = old[:keep]
            self._block.close()
        self._block = block

    def touch(self, before: int, length: int) -> None:
        """Write to what was added: an untouched source would copy too fast."""
        if length > self._stamped:
            self._stamps, self._stamped = Stamps(2 * length), 2 * length
        with self.view() as view:
            self._stamps.write(view, before)

    def view(self) -> memoryview:
        """Return a view of the bytes; release it before growing."""
        return memoryview(self._block or b"")

    def close(self) -> None:
        """Free the block."""
        if self._block is not None:
            self._block.close()
            self._block = None


class _DeviceCopiedBuffer:
    """The same on a device: ``cuMemAlloc``, a copy on the device, and ``cuMemFree``."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._address = 0

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Get memory of *nbytes*, copy the first *keep* bytes into it, wait, and free the old.

        Raises:
            CudaError: If the driver refuses; the old memory stays.
            UnavailableError: If the driver lacks one of the calls.
        """
        call = self._context.call
        self._context.driver.require("cuMemAlloc", "cuMemcpyDtoD", "cuMemFree")
        with self._context.current():
            address = call("cuMemAlloc", nbytes)
            old, self._address = self._address, address
            if old:
                try:
                    call("cuMemcpyDtoD", address, old, keep)
                    call("cuStreamSynchronize", 0)
                except CallError:
                    self._address = old
                    call("cuMemFree", address)
                    raise
                call("cuMemFree", old)

    def touch(self, _before: int, _length: int) -> None:
        """Do nothing: device memory is there once allocated."""

    def close(self) -> None:
        """Free the memory."""
        if self._address and not self._context.lost:
            with self._context.current():
                self._context.call("cuMemFree", self._address)
        self._address = 0


def _compare_copying(
    lengths: Sequence[int],
    elapsed_ns: Sequence[int],
    buffer: CopiedBuffer | _DeviceCopiedBuffer,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> CopyResult:
    """Grow a copied buffer through those *lengths* that grow, until something stops it.

    Args:
        lengths: Every length in turn.
        elapsed_ns: The time of each step in place.
        buffer: What to grow; it is closed at the end.
        stop: Called between two steps.
    """
    steps = [
        (before, length, ns)
        for before, length, ns in zip((0, *lengths), lengths, elapsed_ns, strict=False)
        if length > before
    ]
    copied_ns: list[int] = []
    spent_ns = 0
    stopped = None
    try:
        for before, length, _ in steps:
            if stop() or spent_ns > COPY_LIMIT_NS:
                stopped = "interrupted" if stop() else "time limit"
                break
            start = perf_counter_ns()
            buffer.grow_to(length, keep=before)
            copied_ns.append(perf_counter_ns() - start)
            spent_ns += copied_ns[-1]
            buffer.touch(before, length)
    except (CallError, UnavailableError) as error:
        stopped = str(error)
    finally:
        try:
            buffer.close()
        except CallError as error:
            stopped = stopped or str(error)
    in_place_ns = [ns for _, _, ns in steps[: len(copied_ns)]]
    return CopyResult(
        steps=len(copied_ns),
        planned_steps=len(steps),
        copied_bytes=sum(before for before, _, _ in steps[: len(copied_ns)]),
        copying=summarize_samples(copied_ns),
        in_place=summarize_samples(in_place_ns),
        copying_ns=spent_ns,
        in_place_ns=sum(in_place_ns),
        stopped=stopped,
        faster_from_bytes=_faster_from(steps, copied_ns),
    )


def _faster_from(steps: Sequence[tuple[int, int, int]], copied_ns: Sequence[int]) -> int | None:
    """Return the smallest length from which every step was faster in place, if any."""
    start = None
    for (_, length, ns), copied in reversed(list(zip(steps, copied_ns, strict=False))):
        if ns >= copied:
            break
        start = length
    return start


def _map_block(nbytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        else:  # mypy needs both branches spelled out
            return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        code = error.errno or 0
        symbol = errno.errorcode.get(code, "UNKNOWN")
        raise CallError(
            "mmap.mmap", f"-1, {nbytes}", code=code, symbol=symbol, detail=error.strerror or ""
        ) from error
