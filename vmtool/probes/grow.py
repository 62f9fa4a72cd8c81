"""The other way to grow: get a larger block, copy everything, give the old block back."""

from __future__ import annotations

import errno
import mmap
import sys
from array import array
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, VmtoolError
from vmtool.memory.backing import failed_call
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor
from vmtool.probes.patterns import Stamps, marks_for
from vmtool.stats import Summary, summarize_samples
from vmtool.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.backing import VirtualBacking

#: Copying stops when its steps have taken so long: growing in small steps copies without bound.
COPY_LIMIT_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The same growth by copying.

    Attributes:
        steps: Growing steps done before the limit; the first so many of the plan.
        planned_steps: Growing steps in the plan.
        copied_bytes: What was copied together.
        copying: Latency of its steps.
        in_place: Latency of the same steps of the buffer that grew in place.
        copying_ns: Time of its steps together.
        in_place_ns: Time of the same steps in place.
        stopped: Why not all steps were done, or ``None``.
    """

    steps: int
    planned_steps: int
    copied_bytes: int
    copying: Summary
    in_place: Summary
    copying_ns: int
    in_place_ns: int
    stopped: str | None = None


class CopiedBuffer:
    """Bytes whose base moves at every growth, as with ``realloc`` of large blocks.

    The blocks come from the same kind of memory as a host backing's: private, anonymous, untouched.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Make the length *nbytes*: get, copy the first *keep* bytes, give back.

        Raises:
            CallError: If the platform has no such block; the old one stays.
        """
        block = _get(nbytes)
        if self._block is not None:
            with memoryview(block) as to, memoryview(self._block) as old:
                to[:keep] = old[:keep]
            self._block.close()
        self._block = block

    def view(self) -> memoryview:
        """Return a view of the bytes; release it before growing."""
        return memoryview(self._block or b"")

    def close(self) -> None:
        """Give the block back."""
        if self._block is not None:
            self._block.close()
            self._block = None


def compare_copying(
    lengths: Sequence[int],
    elapsed_ns: Sequence[int],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> CopyResult:
    """Grow a copied buffer through those *lengths* that grow, until something stops it.

    Args:
        lengths: Every length in turn, beginning after 0.
        elapsed_ns: What each step took in place.
        stop: Asked between two steps.
    """
    steps = [
        (before, length, ns)
        for before, length, ns in zip((0, *lengths), lengths, elapsed_ns, strict=False)
        if length > before
    ]
    copied_ns: list[int] = []
    spent_ns = 0
    stopped = None
    buffer = CopiedBuffer()
    stamps = Stamps(max(lengths))
    try:
        for before, length, _ in steps:
            if stop() or spent_ns > COPY_LIMIT_NS:
                stopped = "interrupted" if stop() else "it had taken 2 s"
                break
            start = perf_counter_ns()
            buffer.grow_to(length, keep=before)
            copied_ns.append(perf_counter_ns() - start)
            spent_ns += copied_ns[-1]
            with buffer.view() as view:
                stamps.write(view, before)  # an untouched source would copy too fast
    except CallError as error:
        stopped = str(error)
    finally:
        buffer.close()
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
    )


def _get(nbytes: int) -> mmap.mmap:
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


@dataclass(frozen=True, slots=True)
class GrowPlan:
    """What to do.

    Attributes:
        lengths: Every length in turn; see :func:`vmtool.probes.patterns.lengths`.
        budget_bytes: What may be committed at once.
        against_copying: Whether to grow a copied buffer through the same lengths.
    """

    lengths: tuple[int, ...]
    budget_bytes: int
    against_copying: bool

    @property
    def peak_bytes(self) -> int:
        """The largest length."""
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class GrowCheck:
    """One promise: how often it was looked at, and how it was first broken.

    Attributes:
        check: ``base stays``, ``committed follows length``, ``contents survive``,
            ``new memory is zero`` or ``all is released``.
        looked_at: Comparisons made; 0 where it can't be checked here, such as whether a device got
            back less than 32 MiB: its driver counts all that is in use.
        failure: What was found instead, or ``None``.
    """

    check: str
    looked_at: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class GrowFailure:
    """What ended a growth before its time.

    Attributes:
        operation: ``grow``, ``shrink``, ``check`` (of what a step did) or ``unreserve`` (at the end).
        step: The step it was in, counted from 1; that of the last one for ``unreserve``.
        length_bytes: The length that this step makes.
        call: The call that failed; empty if none did, as when the budget refused a lease.
        symbol: Its symbolic code, or the kind of error.
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
class GrowResult:
    """What happened.

    Attributes:
        complete: Whether the plan was done; ``False`` after an interruption, a failed check or a
            failed call.
        interrupted: Whether the user stopped it.
        base: The first address.
        capacity_bytes: The reservation.
        granule_bytes: The granule of the backing.
        lengths_bytes: The length after each step.
        committed_bytes: What was committed after each step.
        elapsed_ns: What each step took.
        growing: Latency of steps that grow.
        shrinking: Latency of steps that shrink.
        checks: The promises.
        copying: The comparison, or ``None`` if it was not made.
        device: The driver's own name of the device; ``None`` for the host.
        ended_by: What ended it, if it was not the plan, the user or a check.
        error: The same, to be raised when the result is out.
    """

    backing: str
    method: str
    complete: bool
    interrupted: bool
    base: int
    capacity_bytes: int
    granule_bytes: int
    lengths_bytes: tuple[int, ...]
    committed_bytes: tuple[int, ...]
    elapsed_ns: tuple[int, ...]
    growing: Summary
    shrinking: Summary
    checks: tuple[GrowCheck, ...]
    copying: CopyResult | None = None
    device: str | None = None
    ended_by: GrowFailure | None = None
    error: Exception | None = None

    @property
    def failure(self) -> GrowCheck | None:
        """The first check that failed, if any."""
        return next((check for check in self.checks if check.failure is not None), None)


class _Promises:
    """Counts the comparisons of each promise and keeps the first that fails."""

    def __init__(self) -> None:
        self._looked = dict.fromkeys(
            (
                "base stays",
                "committed follows length",
                "contents survive",
                "new memory is zero",
                "all is released",
            ),
            0,
        )
        self._failures: dict[str, str] = {}

    def hold(self, check: str, failure: str | None, looked_at: int = 1) -> None:
        self._looked[check] += looked_at
        if failure is not None:
            self._failures.setdefault(check, failure)

    @property
    def broken(self) -> bool:
        return bool(self._failures)

    def results(self) -> tuple[GrowCheck, ...]:
        return tuple(
            GrowCheck(check, looked, self._failures.get(check))
            for check, looked in self._looked.items()
        )


def run_growth(
    backing: VirtualBacking,
    plan: GrowPlan,
    *,
    governor: Governor | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _steps: None,
) -> GrowResult:
    """Take a buffer through the lengths of *plan*; nothing stays committed or reserved.

    Contents are written and checked between the timed steps; a device's by copies. A step that is
    refused or fails is in the result, with all that was measured before it.

    Args:
        backing: Where the memory comes from.
        plan: What to do.
        governor: Whose ledger is charged, if it has to be that of the backing's pool; its limit is
            set to the plan's budget.
        stop: Asked between two steps; what was done until then is returned.
        progress: Told after each step how many are done.

    Raises:
        CallError: If the platform refuses the reservation.
    """
    governor = governor or Governor()
    governor.set_limit(backing.tier, plan.budget_bytes)
    capacity = align_up(plan.peak_bytes, backing.granularity)
    trial: _Trial | None = None
    error: Exception | None = None
    interrupted = False
    try:
        with VirtualBuffer(backing, capacity, governor=governor, holder="grow") as buffer:
            trial = _Trial(buffer, capacity)
            for length in plan.lengths:
                if stop() or trial.promises.broken:
                    break
                trial.step(length)
                progress(len(trial.elapsed))
            trial.operation = "unreserve"
    except (VmtoolError, OSError, MemoryError) as failure:
        if trial is None:
            raise
        error = failure
    except KeyboardInterrupt:  # a user who does not wait for the end of a long step
        if trial is None:
            raise
        interrupted = True
    done = len(trial.committed)
    elapsed = trial.elapsed[:done]
    complete = done == len(plan.lengths) and not trial.promises.broken and error is None
    copying = None
    if plan.against_copying and complete and not interrupted:
        copying = compare_copying(plan.lengths, elapsed, stop=stop)
    steps = list(zip(trial.grows, elapsed, strict=False))
    return GrowResult(
        backing=backing.name,
        device=backing.device_name,
        method=backing.method,
        complete=complete,
        interrupted=interrupted or stop(),
        base=trial.base,
        capacity_bytes=capacity,
        granule_bytes=backing.granularity,
        lengths_bytes=tuple(plan.lengths[:done]),
        committed_bytes=tuple(trial.committed),
        elapsed_ns=tuple(elapsed),
        growing=summarize_samples([ns for up, ns in steps if up]),
        shrinking=summarize_samples([ns for up, ns in steps if not up]),
        checks=trial.promises.results(),
        copying=copying,
        ended_by=None if error is None else _failure(trial, error),
        error=error,
    )


def _failure(trial: _Trial, error: Exception) -> GrowFailure:
    call = failed_call(error)
    return GrowFailure(
        operation=trial.operation,
        step=trial.begun,
        length_bytes=trial.length,
        call=call.call if call else "",
        symbol=call.symbol if call else type(error).__name__,
        message=str(error) or "this process cannot have more memory",
        cause=getattr(error, "cause", None),
        hint=getattr(error, "hint", None),
    )


class _Trial:
    """One buffer on its way through the lengths, and what was seen."""

    def __init__(self, buffer: VirtualBuffer, capacity: int) -> None:
        self.promises = _Promises()
        self.elapsed = array("Q")
        self.committed = array("Q")
        self.grows: list[bool] = []
        self.base = buffer.base
        self.operation = "grow"
        self.begun = self.length = 0
        self._buffer = buffer
        self._granule = buffer.backing.granularity
        self._zeroes = buffer.backing.zeroes
        self._marks = marks_for(buffer, capacity)

    def step(self, length: int) -> None:
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
        buffer, hold = self._buffer, self.promises.hold
        moved = buffer.base != self.base
        hold("base stays", f"it moved to {buffer.base:#x}" if moved else None)
        due = align_up(length, self._granule)
        found = f"{buffer.committed} bytes are committed for a length of {length}"
        hold("committed follows length", None if buffer.committed == due else found)
        if length == 0:
            self._check_released()
            return
        if self.promises.broken:
            return  # where the memory is not what it should be, looking at it may be fatal
        if length > before:
            self._check_contents(before, everything=False)
            if self._zeroes:
                at = self._marks.not_zero(align_up(before, self._granule))
                words = None if at is None else f"the byte at offset {at} is not zero"
                hold("new memory is zero", words)
            self._marks.write(before)
        else:
            self._check_contents(length, everything=False)

    def _check_contents(self, length: int, *, everything: bool) -> None:
        """Compare stamps in the first *length* bytes."""
        if not length:
            return
        checked = self._marks.checked
        at = self._marks.wrong(length, everything=everything)
        words = None if at is None else f"what was written at offset {at} is gone"
        self.promises.hold("contents survive", words, self._marks.checked - checked)

    def _check_released(self) -> None:
        left = self._marks.left_bytes()
        if left is not None:
            words = f"{left} bytes are still {self._marks.left} at length 0" if left else None
            self.promises.hold("all is released", words)
