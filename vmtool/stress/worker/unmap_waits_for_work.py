"""Whether cuMemUnmap and cuMemRelease wait for work that is running elsewhere on the device.

Sources contradict each other (docs/platform-facts.md#cuda-unmap), so it is measured: a range is filled over and
over on a stream; meanwhile a handle that the work does not touch is unmapped, or released. A call has
waited if it took most of what was left of the work when it was made.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.context import CallTimes
from vmtool.memory.cuda.driver import STREAM_NON_BLOCKING
from vmtool.memory.cuda.errors_and_diagnosis import NOT_READY, CudaError
from vmtool.memory.errors import Unwinding
from vmtool.units import MIB, align_down, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.memory.cuda.backing import CudaBacking

_ROUNDS: Final = 9
#: The range that is filled; smaller where the budget is.
_WORK_BYTES: Final = 64 * MIB
#: The work has to outlast a call: it lasts this long, or this many times the call on an idle device.
_WORK_NS: Final = 5 * 10**6
_WORK_PART: Final = 20
_CALLS: Final = (
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuMemsetD8Async",
    "cuStreamQuery",
)
#: A stream takes about a thousand launches before it makes the caller wait.
_MOST_FILLS: Final = 512


@dataclass(slots=True)
class CallBesideWork:
    """One call's rounds.

    Attributes:
        idle_ns: What it took on an idle device.
        busy_ns: The same while another range was being filled.
        left_ns: What was left of the work when it was made.
        waited: For each round whether it waited; rounds in which the work ended by itself before or
            during the call are left out.
    """

    idle_ns: list[int] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)
    left_ns: list[int] = field(default_factory=list)
    waited: list[bool] = field(default_factory=list)

    @property
    def waits(self) -> bool | None:
        """Whether it waits, by most rounds; ``None`` if the work always ended too early."""
        return sum(self.waited) * 2 > len(self.waited) if self.waited else None

    def add(self, took_ns: int, rest_ns: int, planned_ns: int) -> None:
        """Add one busy round.

        Args:
            took_ns: What the call took.
            rest_ns: How long the work went on after it; 0 if it had ended.
            planned_ns: What was left of the work at the call, by how long it lasts undisturbed.
        """
        self.busy_ns.append(took_ns)
        if rest_ns:
            self.left_ns.append(took_ns + rest_ns)
            self.waited.append(took_ns > rest_ns)
        else:
            self.left_ns.append(max(planned_ns, 0))
            if planned_ns > 0 and 2 * took_ns > planned_ns:
                self.waited.append(True)


@dataclass(slots=True)
class Waiting:
    """What was measured.

    Attributes:
        unmap: cuMemUnmap.
        release: cuMemRelease.
        synchronise_ns: cuCtxSynchronize on an idle device.
        work_ns: How long the work lasts with nothing beside it.
    """

    unmap: CallBesideWork = field(default_factory=CallBesideWork)
    release: CallBesideWork = field(default_factory=CallBesideWork)
    synchronise_ns: list[int] = field(default_factory=list)
    work_ns: int = 0


def measure_waiting(
    kind: str,
    *,
    chunk: int | None,
    budget_bytes: int,
    beat: memoryview | None = None,
    working: Callable[[bool], None] = lambda _running: None,
) -> Waiting:
    """Unmap and release one handle over and over, on an idle device and beside work.

    Args:
        kind: ``cuda`` or ``cuda:N``.
        chunk: Bytes of the handle.
        budget_bytes: What may be committed; more than 65 chunks and 64 MiB is not used.
        beat: One word that each timed call counts up; see :class:`CallTimes`.
        working: Called with true before there is work beside the calls, with false after it.

    Raises:
        RefusedError: If the budget does not hold two chunks.
        UnavailableError: If the driver lacks a call of the measurement.
        VmtoolError: If the memory cannot be had, or the driver fails.
    """
    backing = open_device(kind, chunk=chunk, times=CallTimes(beat))
    unit = backing.granularity
    work = align_down(min(_WORK_BYTES, budget_bytes - unit), unit) or unit
    with Unwinding() as stack:
        stack.undo(backing.close)
        backing.context.driver.require(*_CALLS)
        if work + unit > budget_bytes:
            raise RefusedError(
                f"the {format_size(budget_bytes)} left of the budget is too small for two chunks of "
                f"{format_size(unit)}"
            )
        handle_range = backing.reserve(unit)
        stack.undo(backing.unreserve, handle_range)
        filled = backing.reserve(work)
        stack.undo(backing.unreserve, filled)
        backing.commit(filled, 0, work)
        stack.enter_context(backing.context.current())
        stream: int = backing.context.call("cuStreamCreate", STREAM_NON_BLOCKING)
        stack.undo(backing.context.call, "cuStreamDestroy", stream)
        probe = _Probe(backing, handle_range.base, stream, (filled.base, work))
        stack.undo(probe.give_back)
        return probe.run(working)


class _Probe:
    """The rounds of one measurement; the device's context is current."""

    def __init__(
        self, backing: CudaBacking, address: int, stream: int, work: tuple[int, int]
    ) -> None:
        self._call = backing.context.call
        self._address = address
        self._unit = backing.granularity
        self._properties = backing.properties
        self._access = [backing.context.driver.access(backing.context.info.ordinal)]
        self._stream = stream
        self._base, self._nbytes = work
        self._found = Waiting()
        self._fills = 1
        self._handle: int | None = None
        self._mapped = False

    def run(self, working: Callable[[bool], None]) -> Waiting:
        found = self._found
        for _ in range(_ROUNDS):
            found.synchronise_ns.append(self._time("cuCtxSynchronize"))
            handle = self._map()
            found.unmap.idle_ns.append(self._time("cuMemUnmap", self._address, self._unit))
            self._mapped = False
            found.release.idle_ns.append(self._time("cuMemRelease", handle))
            self._handle = None
        working(True)
        self._calibrate()
        for _ in range(_ROUNDS):
            handle = self._map()
            self._beside(found.unmap, "cuMemUnmap", self._address, self._unit)
            self._beside(found.release, "cuMemRelease", handle)
        working(False)
        return found

    def give_back(self) -> None:
        """Wait for the work, unmap and release what a failure has left; a second call is a no-op."""
        if self._handle is None:
            return
        with suppress(CudaError):
            self._call("cuStreamSynchronize", self._stream)
        try:
            if self._mapped:
                self._call("cuMemUnmap", self._address, self._unit)
        finally:
            self._call("cuMemRelease", self._handle)

    def _map(self) -> int:
        handle: int = self._call("cuMemCreate", self._unit, self._properties, 0)
        self._handle = handle
        self._call("cuMemMap", self._address, self._unit, 0, handle, 0)
        self._mapped = True
        self._call("cuMemSetAccess", self._address, self._unit, self._access, 1)
        return handle

    def _time(self, name: str, *arguments: int) -> int:
        began = perf_counter_ns()
        self._call(name, *arguments)
        return perf_counter_ns() - began

    def _beside(self, found: CallBesideWork, name: str, *arguments: int) -> None:
        began = perf_counter_ns()
        self._submit()
        running = self._running()
        called = perf_counter_ns()
        took = self._time(name, *arguments)
        if name == "cuMemUnmap":
            self._mapped = False
        else:
            self._handle = None
        still = self._running()
        after = perf_counter_ns()
        self._call("cuStreamSynchronize", self._stream)
        if running:
            rest = perf_counter_ns() - after if still else 0
            found.add(took, rest, self._found.work_ns - (called - began))

    def _calibrate(self) -> None:
        """Choose how many fills last long enough for a call to fall into them, and time those."""
        slowest = max(*self._found.unmap.idle_ns, *self._found.release.idle_ns)
        wanted_ns = max(_WORK_NS, _WORK_PART * slowest)
        self._fills = min(-(-wanted_ns // self._work()), _MOST_FILLS)
        self._found.work_ns = self._work()

    def _work(self) -> int:
        began = perf_counter_ns()
        self._submit()
        self._call("cuStreamSynchronize", self._stream)
        return max(perf_counter_ns() - began, 1)

    def _submit(self) -> None:
        for _ in range(self._fills):
            self._call("cuMemsetD8Async", self._base, 0x5A, self._nbytes, self._stream)

    def _running(self) -> bool:
        try:
            self._call("cuStreamQuery", self._stream)
        except CudaError as error:
            if error.code != NOT_READY:
                raise
            return True
        return False
