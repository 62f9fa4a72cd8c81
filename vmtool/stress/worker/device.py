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
from vmtool.memory.counters import read_process
from vmtool.memory.cuda.calls import TIMED, CallTimes
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.cuda.driver import STREAM_NON_BLOCKING, CudaError
from vmtool.memory.cuda.pool import HandlePool
from vmtool.memory.governor import Tier
from vmtool.results.stress import (
    COUNTERS,
    DEVICE_COUNTERS,
    CallResult,
    CounterReading,
    UnmapResult,
)
from vmtool.stats import Histogram, summarize
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.worker.contents import DeviceContents
from vmtool.units import MIB, align_down

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.backing import Reservation
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.cuda.backing import CudaBacking, CudaReservation
    from vmtool.memory.faults import FaultyCalls
    from vmtool.memory.governor import Governor
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.target import CheckedBuffer

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
    """A CUDA device under a session: written by copies, counted by the driver."""

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

    def observer(self, buffers: Sequence[CheckedBuffer]) -> DeviceObserver:
        settings = self._settings
        return DeviceObserver(
            self._context,
            buffers,
            self.pooled_bytes,
            alone=settings.workers == 1,
            threads=settings.threads,
        )

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        # A pool is measured as it works in the long run: filled, by calls that are not timed.
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
        found = {name: kept.data() for name, kept in self._calls[method_index].items()}
        return tuple(
            CallResult(name, summarize(data), data) for name, data in found.items() if data.count
        )

    def pooled_bytes(self) -> int:
        pools = (self._pool(index) for index in range(len(self.backings)))
        return sum(pool.snapshot().charged_bytes for pool in pools if pool is not None)

    def measure_unmapping(self) -> UnmapResult:
        for index in range(len(self.backings)):
            if (pool := self._pool(index)) is not None:
                pool.trim()
        used = self._governor.ledger(Tier.DEVICE).used_bytes
        free = worker_budget(self._settings) - used
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


#: Asking costs a microsecond for each handle; larger buffers are not counted.
_MOST_CHUNKS: Final = 1 << 16


class DeviceObserver:
    """Compares buffers with what the driver counts.

    Args:
        context: The device.
        buffers: The buffers; nothing is committed in them yet.
        pooled_bytes: What is charged to pools now, mapped or not.
        alone: Whether no other worker uses the device.
        threads: Of this worker.
    """

    counters = DEVICE_COUNTERS

    def __init__(
        self,
        context: DeviceContext,
        buffers: Sequence[CheckedBuffer],
        pooled_bytes: Callable[[], int],
        *,
        alone: bool,
        threads: int,
    ) -> None:
        self._context = context
        self._buffers = buffers
        self._pooled_bytes = pooled_bytes
        self._alone = alone
        self._threads = threads
        # The location is a part of the description and dangles without it.
        self._access = context.driver.access(context.info.ordinal)
        self._used_before = self._used() or 0

    def compare(
        self,
        chosen: Sequence[CheckedBuffer],
        *,
        settled: bool,  # noqa: ARG002 - device memory is there from the commit on
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        everything = len(chosen) == len(self._buffers) or self._threads == 1
        expected, used = self._expected(), self._used() if everything else None
        grown = None if used is None else used - self._used_before
        memory = CounterReading(
            "device_memory",
            expected,
            None if grown is None else max(grown, 0),
            max(expected - DEVICE_TOLERANCE_BYTES, 0),
            expected + DEVICE_TOLERANCE_BYTES,
        )
        process = read_process()
        beyond: dict[str, int | None] = {
            name: getattr(process, name if name == "mappings" else f"{name}_bytes")
            for name in COUNTERS
        }
        beyond["device_memory"] = None if grown is None else grown - expected
        return (memory, self._mappings(chosen)), beyond

    def count_mapped(self) -> int:
        used = self._used()
        if (
            used is not None
            and used - self._used_before - self._pooled_bytes() > DEVICE_TOLERANCE_BYTES
        ):
            return len(self._buffers)
        return sum(not buffer.reservation.closed for buffer in self._buffers)

    def _expected(self) -> int:
        """Return what is committed or lost in buffers that no pool is charged for, and pooled."""
        return self._pooled_bytes() + sum(
            buffer.reservation.blocks.total + buffer.reservation.quarantined.total
            for buffer in self._buffers
            if buffer.method != "pooled"
        )

    def _mappings(self, chosen: Sequence[CheckedBuffer]) -> CounterReading:
        expected = 0
        observed: int | None = 0
        for buffer in chosen:
            reservation = buffer.reservation
            chunk = reservation.granularity
            expected += reservation.blocks.total // chunk
            if reservation.blocks.total // chunk > _MOST_CHUNKS or self._context.lost:
                observed = None
            elif observed is not None:
                for start, end in list(reservation.blocks):
                    observed += sum(
                        self._mapped(reservation, at) for at in range(start, end, chunk)
                    )
        return CounterReading("device_mappings", expected, observed, expected, expected)

    def _mapped(self, reservation: Reservation, offset: int) -> bool:
        try:
            access = self._context.call(
                "cuMemGetAccess", self._access.location, reservation.base + offset
            )
        except CudaError:
            return False
        return bool(access)

    def _used(self) -> int | None:
        return self._context.used_bytes_if_available() if self._alone else None
