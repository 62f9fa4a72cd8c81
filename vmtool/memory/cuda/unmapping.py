"""Whether cuMemUnmap waits for work that is running elsewhere on the device.

Sources contradict each other (docs/platform-facts.md), so it is measured: a range is filled over
and over on a stream, and another range is unmapped meanwhile.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError
from vmtool.memory import open_device
from vmtool.memory.cuda.calls import CallTimes
from vmtool.memory.cuda.driver import STREAM_NON_BLOCKING
from vmtool.memory.cuda.errors import CudaError
from vmtool.units import MIB, align_down

if TYPE_CHECKING:
    from vmtool.memory.cuda.backing import CudaBacking, CudaReservation

_ROUNDS: Final = 9
#: The range that is filled; smaller where the budget is.
_WORK_BYTES: Final = 64 * MIB
#: The work has to outlast an unmap: this long, or so many times one on an idle device.
_WORK_NS: Final = 5 * 10**6
_WORK_PART: Final = 20
#: A stream takes about a thousand launches before it makes the caller wait.
_MOST_FILLS: Final = 512
_NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY: the stream has work left


@dataclass(slots=True)
class Unmapping:
    """Nanoseconds of each round.

    Attributes:
        idle_ns: cuMemUnmap on an idle device.
        busy_ns: cuMemUnmap while another range is being filled.
        work_ns: How long that filling lasted.
        synchronise_ns: cuCtxSynchronize on an idle device.
        finished: For each busy round, whether the work had ended when cuMemUnmap returned; rounds
            where it had ended before are left out.
    """

    idle_ns: list[int] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)
    work_ns: list[int] = field(default_factory=list)
    synchronise_ns: list[int] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)

    @property
    def waited(self) -> bool | None:
        """Whether unmapping waits, by most rounds; ``None`` if the work never lasted."""
        return sum(self.finished) * 2 > len(self.finished) if self.finished else None


def measure_unmapping(kind: str, *, chunk: int | None, budget_bytes: int) -> Unmapping:
    """Unmap one handle over and over, on an idle device and while another range is filled.

    Args:
        kind: ``cuda`` or ``cuda:N``.
        chunk: Bytes of the handle that is unmapped.
        budget_bytes: What may be committed; more than 65 chunks and 64 MiB is not used.

    Raises:
        RefusedError: If the budget does not hold two chunks.
        VmtoolError: If the memory cannot be had, or the driver fails.
    """
    times = CallTimes()
    backing = open_device(kind, chunk=chunk, times=times)
    unit = backing.granularity
    work = align_down(min(_WORK_BYTES, budget_bytes - unit), unit) or unit
    if work + unit > budget_bytes:
        raise RefusedError(f"{budget_bytes} bytes do not hold two chunks of {unit} bytes")
    with ExitStack() as stack:
        reservation = backing.reserve(unit)
        stack.callback(backing.unreserve, reservation)
        filled = backing.reserve(work)
        stack.callback(backing.unreserve, filled)
        backing.commit(filled, 0, work)
        stack.enter_context(backing.context.current())
        stream: int = backing.context.call("cuStreamCreate", STREAM_NON_BLOCKING)
        stack.callback(backing.context.call, "cuStreamDestroy", stream)
        probe = _Probe(backing, reservation, times)
        return probe.run(stream, filled.base, work)


class _Probe:
    """The rounds of one measurement."""

    def __init__(
        self, backing: CudaBacking, reservation: CudaReservation, times: CallTimes
    ) -> None:
        self._call = backing.context.call
        self._mapped = reservation.mapped
        self._times = times
        self._found = Unmapping()

    def run(self, stream: int, base: int, nbytes: int) -> Unmapping:
        found = self._found
        for _ in range(_ROUNDS):
            self._call("cuCtxSynchronize")
            found.synchronise_ns.append(self._times.take()["cuCtxSynchronize"][-1])
            found.idle_ns.append(self._unmap())
        fills = self._calibrate(stream, base, nbytes)
        for _ in range(_ROUNDS):
            self._mapped.map(0, self._mapped.chunk)
            began = perf_counter_ns()
            for _ in range(fills):
                self._call("cuMemsetD8Async", base, 0x5A, nbytes, stream)
            running = self._running(stream)
            elapsed = self._unmap(mapped=True)
            ended = not self._running(stream)
            self._call("cuStreamSynchronize", stream)
            found.work_ns.append(perf_counter_ns() - began)
            found.busy_ns.append(elapsed)
            if running:
                found.finished.append(ended)
        return found

    def _unmap(self, *, mapped: bool = False) -> int:
        """Unmap the handle, which no work touches; return how long the call took."""
        if not mapped:
            self._mapped.map(0, self._mapped.chunk)
        self._mapped.unmap(0, self._mapped.chunk, wait=False)
        return self._times.take()["cuMemUnmap"][-1]

    def _calibrate(self, stream: int, base: int, nbytes: int) -> int:
        """Return how many fills last long enough for an unmap to fall into them."""
        began = perf_counter_ns()
        self._call("cuMemsetD8Async", base, 0x5A, nbytes, stream)
        self._call("cuStreamSynchronize", stream)
        one_ns = max(perf_counter_ns() - began, 1)
        wanted_ns = max(_WORK_NS, _WORK_PART * max(self._found.idle_ns))
        return min(-(-wanted_ns // one_ns), _MOST_FILLS)

    def _running(self, stream: int) -> bool:
        try:
            self._call("cuStreamQuery", stream)
        except CudaError as error:
            if error.code != _NOT_READY:
                raise
            return True
        return False
