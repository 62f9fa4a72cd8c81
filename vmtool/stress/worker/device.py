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
from vmtool.memory import device_ordinal, open_device
from vmtool.memory.cuda.calls import TIMED, CallTimes
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.driver import STREAM_NON_BLOCKING, CudaError
from vmtool.memory.cuda.pool import HandlePool
from vmtool.memory.governor import Tier
from vmtool.results.stress import CallResult, UnmapResult
from vmtool.stats import Histogram, summarize
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.worker.contents import DeviceContents
from vmtool.stress.worker.expected import DeviceObserver
from vmtool.units import MIB, align_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.cuda.backing import CudaBacking, CudaReservation
    from vmtool.memory.faults import FaultyCalls
    from vmtool.memory.governor import Governor
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.checkpoint import CheckedBuffer

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


class DeviceTarget:
    """Implements :class:`vmtool.stress.worker.target.Target`."""

    def __init__(
        self, settings: StressSettings, governor: Governor, faults: FaultyCalls | None
    ) -> None:
        self._settings = settings
        self._governor = governor
        self._times = [CallTimes() for _ in settings.methods]
        # All of them now: what grows while it runs looks like a leak.
        self._calls = [{name: Histogram() for name in TIMED} for _ in settings.methods]
        # One of its own for writing and looking: out of the methods' clocks, and without faults.
        self._context = DeviceContext(device_ordinal(settings.backing) or 0)
        self.device = self._context.info.name
        self.backings = [
            open_device(
                settings.backing,
                method=method,
                chunk=settings.chunk_bytes,
                retain=settings.retain_bytes if method == "pooled" else None,
                governor=governor,
                times=times,
                faults=faults,
            )
            for method, times in zip(settings.methods, self._times, strict=True)
        ]

    def contents(self, buffer: VirtualBuffer, buffer_id: int) -> DeviceContents:
        """Return what fills *buffer* on the device and reads it back."""
        settings = self._settings
        return DeviceContents(
            DeviceCopies(self._context),
            buffer.reservation,
            settings.granule_bytes,
            buffer_id=buffer_id,
            touch=settings.touch,
            verify=settings.verify,
            zeroes=buffer.backing.zeroes,
        )

    def observer(self, subjects: Sequence[CheckedBuffer]) -> DeviceObserver:
        """Return what asks the driver about *subjects*."""
        settings = self._settings
        return DeviceObserver(
            self._context,
            subjects,
            self.pooled_bytes,
            alone=settings.workers == 1,
            threads=settings.threads,
        )

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        """Keep the calls of a round, empty its pool, and fill that of the next.

        A pool is measured as it works in the long run: filled, by calls that are not timed.
        """
        if last is not None:
            self._keep(last, drop=warm_up)
        if last != coming and last is not None and (pool := self._pool(last)) is not None:
            pool.trim()
            self._keep(last, drop=True)
        if coming is not None and (pool := self._pool(coming)) is not None:
            settings = self._settings
            pool.fill(live_limit(settings) * settings.granule_bytes * settings.threads)
            self._keep(coming, drop=True)

    def calls(self, method_index: int, /) -> tuple[CallResult, ...]:
        """Return the latencies of each driver call of a method so far."""
        found = {name: kept.data() for name, kept in self._calls[method_index].items()}
        return tuple(
            CallResult(name, summarize(data), data) for name, data in found.items() if data.count
        )

    def pooled_bytes(self) -> int:
        """Return what is charged to pools, whether it is mapped or not."""
        pools = (self._pool(index) for index in range(len(self.backings)))
        return sum(pool.snapshot().charged_bytes for pool in pools if pool is not None)

    def measure_unmapping(self) -> UnmapResult:
        """Tell whether unmapping waits for running work, within what the budget has left."""
        for index in range(len(self.backings)):
            if (pool := self._pool(index)) is not None:
                pool.trim()
        ledger = self._governor.ledger(Tier.DEVICE)
        free = worker_budget(self._settings) - ledger.used_bytes
        found = measure_unmapping(
            self._settings.backing, chunk=self._settings.chunk_bytes, budget_bytes=free
        )
        return UnmapResult(
            waited=found.waited,
            rounds=len(found.idle_ns),
            idle_ns=_median(found.idle_ns),
            busy_ns=_median(found.busy_ns),
            work_ns=_median(found.work_ns),
            idle_synchronise_ns=_median(found.synchronise_ns),
        )

    def _pool(self, index: int) -> HandlePool | None:
        source = self.backings[index].source
        return source if isinstance(source, HandlePool) else None

    def _keep(self, index: int, *, drop: bool) -> None:
        for name, samples in self._times[index].take().items():
            if not drop:
                self._calls[index][name].extend(samples)


def _median(samples: Sequence[int]) -> int:
    return sorted(samples)[len(samples) // 2] if samples else 0
