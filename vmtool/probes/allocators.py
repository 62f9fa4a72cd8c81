"""A device's other allocators, compared with virtual memory management, and the cost of chunks.

``cuMemAlloc`` and ``cuMemAllocAsync`` are baselines, not backings: they have no address range of their
own, cannot grow in place and give nothing back in part.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import RefusedError, VmtoolError
from vmtool.machine.device_facts import is_fresh_zero, read_device_facts
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.context import CallTimes
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, DeviceLostError
from vmtool.memory.errors import Unwinding
from vmtool.results.allocators import AllocationTiming, ChunkCost, DeviceAllocators, GrowthTiming
from vmtool.units import GIB, align_down, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.reservation import Reservation

_MANAGED: Final = ("cold", "pooled")
_BASELINES: Final = ("malloc", "async")
#: Multiples of the driver's granularity that are tried as chunks: 6 and 20 MiB are those of kvcached
#: and PyTorch where it is 2 MiB.
_CHUNK_FACTORS: Final = (1, 2, 3, 4, 8, 10, 16, 32, 64, 128, 256, 512)
_SIZE_FACTOR: Final = 4
_KNEE: Final = 1.1
_ALL: Final = (1 << 64) - 1
_COPYING: Final = ("cuMemAlloc", "cuMemcpyDtoD", "cuMemFree")
_ASYNC_CALLS: Final = (
    "cuDeviceGetDefaultMemPool",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
)


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """What to measure.

    Attributes:
        most_bytes: The largest allocation; at most half of *budget_bytes*.
        budget_bytes: What may be in use at once.
        rounds: How many times to measure each, in turn with the others.
    """

    most_bytes: int
    budget_bytes: int
    rounds: int = 9


class _Allocator(Protocol):
    def allocate(self, nbytes: int) -> int:
        """Return the address of *nbytes* that can be used."""

    def release(self, address: int, nbytes: int) -> None:
        """Give them back."""


class _Managed:
    """Commits behind a range that is reserved once."""

    def __init__(self, backing: CudaBacking, most: int, stack: Unwinding) -> None:
        self._backing = backing
        stack.undo(backing.close)
        self._reservation: Reservation = backing.reserve(most)
        stack.undo(backing.unreserve, self._reservation)

    def allocate(self, nbytes: int) -> int:
        self._backing.commit(self._reservation, 0, nbytes)
        return self._reservation.base

    def release(self, _address: int, nbytes: int) -> None:
        self._backing.release(self._reservation, 0, nbytes)


class _Malloc:
    def __init__(self, context: DeviceContext) -> None:
        context.driver.require("cuMemAlloc", "cuMemFree")
        self._call = context.call

    def allocate(self, nbytes: int) -> int:
        address: int = self._call("cuMemAlloc", nbytes)
        return address

    def release(self, address: int, _nbytes: int) -> None:
        self._call("cuMemFree", address)


class _Async:
    """Stream-ordered allocation whose pool keeps everything, as engines set it."""

    def __init__(self, context: DeviceContext, stack: Unwinding) -> None:
        self._call = context.call
        context.driver.require(*_ASYNC_CALLS)
        pool = context.call("cuDeviceGetDefaultMemPool", context.info.ordinal)
        context.driver.set_release_threshold(pool, _ALL)
        stack.undo(context.call, "cuMemPoolTrimTo", pool, 0)
        stack.undo(context.driver.set_release_threshold, pool, 0)  # the driver's default

    def allocate(self, nbytes: int) -> int:
        address: int = self._call("cuMemAllocAsync", nbytes, 0)
        self._call("cuStreamSynchronize", 0)
        return address

    def release(self, address: int, _nbytes: int) -> None:
        self._call("cuMemFreeAsync", address, 0)
        self._call("cuStreamSynchronize", 0)


def measure_allocators(
    ordinal: int,
    options: AllocatorOptions,
    *,
    progress: Callable[[str], None] = lambda _what: None,
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[DeviceAllocators, VmtoolError | None]:
    """Measure every allocator of a device at every size, growth by copying, and chunks.

    Args:
        ordinal: The device.
        options: What to measure.
        progress: Called with what comes next.
        stopping: Called between two sizes; true stops; what was measured until then is returned.

    Returns:
        What was measured, and the error that ended it early, or ``None``.

    Raises:
        UnavailableError: If there is no such device, or it cannot map memory.
        RefusedError: If the budget does not hold two granules.
        CudaError: If the device fails before anything was measured.
    """
    kind = f"cuda:{ordinal}"
    backing = open_device(kind)
    unit, context = backing.granularity, backing.context
    most = align_down(min(options.most_bytes, options.budget_bytes // 2), unit)
    measured = _Measured()
    failed: VmtoolError | None = None
    try:
        with Unwinding() as stack:
            stack.undo(backing.close)
            if most < unit:
                raise RefusedError(
                    f"a budget of {format_size(options.budget_bytes)} is too small for two granules "
                    f"of {format_size(unit)}"
                )
            facts = replace(read_device_facts(context.info), fresh_zero=is_fresh_zero(kind))
            stack.enter_context(context.current())
            _measure(measured, backing, _sizes(unit, most), options, progress, stopping)
    except VmtoolError as error:
        if not measured.timings:
            raise
        failed = error
    result = DeviceAllocators(
        backing=kind,
        device=facts,
        granularity_bytes=unit,
        timings=tuple(measured.timings),
        faster_from_bytes=faster_from(measured.timings),
        growth=tuple(measured.growth),
        grows_faster_from_bytes=_grows_faster_from(measured.growth),
        chunks=tuple(measured.chunks),
        knee_bytes=knee(measured.chunks),
        complete=failed is None and not stopping(),
        error=None if failed is None else str(failed),
    )
    return result, failed


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured so far."""

    timings: list[AllocationTiming] = field(default_factory=list)
    growth: list[GrowthTiming] = field(default_factory=list)
    chunks: list[ChunkCost] = field(default_factory=list)


def _measure(
    measured: _Measured,
    backing: CudaBacking,
    sizes: Sequence[int],
    options: AllocatorOptions,
    progress: Callable[[str], None],
    stopping: Callable[[], bool],
) -> None:
    context, rounds = backing.context, options.rounds
    for nbytes in sizes:
        if stopping():
            return
        progress(f"allocating {format_size(nbytes)}")
        _at_size(measured.timings, backing.name, context, nbytes, rounds)
    copies = context.driver.has(*_COPYING)
    for nbytes in [size for size in sizes if copies and 3 * size <= options.budget_bytes]:
        if stopping():
            return
        progress(f"growing from {format_size(nbytes)}")
        measured.growth.append(_grow(backing, nbytes, rounds))
    minimum = backing.units.reserve_bytes
    for factor in _CHUNK_FACTORS:
        chunk = factor * minimum
        span = align_down(min(GIB, options.budget_bytes // 2), chunk)
        if not span or stopping():
            return
        progress(f"chunks of {format_size(chunk)}")
        measured.chunks.append(_chunk(backing.name, chunk, span, rounds))


def faster_from(timings: Sequence[AllocationTiming]) -> dict[str, int | None]:
    """Return from what size each managed method was always faster than each baseline, if any."""
    totals = {(each.method, each.nbytes): each.total_ns for each in timings}
    sizes = sorted({each.nbytes for each in timings}, reverse=True)
    found: dict[str, int | None] = {}
    for method in _MANAGED:
        for baseline in _BASELINES:
            start = None
            for nbytes in sizes:
                ours, theirs = totals.get((method, nbytes)), totals.get((baseline, nbytes))
                if ours is None or theirs is None or ours >= theirs:
                    break
                start = nbytes
            found[f"{method}<{baseline}"] = start
    return found


def _grows_faster_from(growth: Sequence[GrowthTiming]) -> int | None:
    """Return from what length doubling in place was always faster than copying, if any."""
    start = None
    for each in sorted(growth, key=lambda each: each.from_bytes, reverse=True):
        if each.in_place_ns >= each.copying_ns:
            break
        start = each.from_bytes
    return start


def knee(chunks: Sequence[ChunkCost]) -> int | None:
    """Return the smallest chunk that costs at most a tenth more than the cheapest."""
    if not chunks:
        return None
    least = min(each.ns_per_gib for each in chunks)
    return min(each.chunk_bytes for each in chunks if each.ns_per_gib <= _KNEE * least)


def _sizes(unit: int, most: int) -> list[int]:
    sizes = [unit]
    while sizes[-1] * _SIZE_FACTOR <= most:
        sizes.append(sizes[-1] * _SIZE_FACTOR)
    return sizes


def _at_size(
    found: list[AllocationTiming], kind: str, context: DeviceContext, nbytes: int, rounds: int
) -> None:
    """Measure every allocator in turn, so that drift meets them alike, and add it to *found*.

    If an error ends it, the rounds before it count, if every allocator had one.
    """
    allocators: dict[str, _Allocator] = {}
    errors: dict[str, str] = {}
    samples: dict[str, list[tuple[int, int]]] = {name: [] for name in (*_MANAGED, *_BASELINES)}
    try:
        with Unwinding() as stack:
            makers: dict[str, Callable[[], _Allocator]] = {
                "cold": lambda: _Managed(open_device(kind), nbytes, stack),
                "pooled": lambda: _Managed(
                    open_device(kind, method="pooled", clear=False), nbytes, stack
                ),
                "malloc": lambda: _Malloc(context),
                "async": lambda: _Async(context, stack),
            }
            for name in samples:
                try:
                    allocators[name] = makers[name]()
                    _cycle(allocators[name], nbytes)  # loads what is loaded once, fills the pools
                except DeviceLostError:
                    raise
                except VmtoolError as error:
                    errors[name] = str(error)
                    allocators.pop(name, None)
            for _ in range(rounds):
                for name, allocator in allocators.items():
                    samples[name].append(_cycle(allocator, nbytes))
    finally:
        if len(allocators) + len(errors) == len(samples) and all(
            samples[name] for name in allocators
        ):
            found += [
                AllocationTiming(name, nbytes, error=errors[name])
                if name in errors
                else AllocationTiming(
                    name,
                    nbytes,
                    len(taken),
                    *(round(median(column)) for column in zip(*taken, strict=True)),
                )
                for name, taken in samples.items()
            ]


def _cycle(allocator: _Allocator, nbytes: int) -> tuple[int, int]:
    began = perf_counter_ns()
    address = allocator.allocate(nbytes)
    got = perf_counter_ns()
    allocator.release(address, nbytes)
    return got - began, perf_counter_ns() - got


def _grow(backing: CudaBacking, nbytes: int, rounds: int) -> GrowthTiming:
    """Double a buffer of *nbytes*, in place and by allocating, copying and freeing."""
    call = backing.context.call
    reservation = backing.reserve(2 * nbytes)
    in_place, copying = [], []
    with Unwinding() as stack:
        stack.undo(backing.unreserve, reservation)
        backing.commit(reservation, 0, nbytes)
        for _ in range(rounds):
            began = perf_counter_ns()
            backing.commit(reservation, nbytes, nbytes)
            in_place.append(perf_counter_ns() - began)
            backing.release(reservation, nbytes, nbytes)
    for _ in range(rounds):
        old = call("cuMemAlloc", nbytes)
        began = perf_counter_ns()
        try:
            new = call("cuMemAlloc", 2 * nbytes)
            with Unwinding() as stack:
                stack.undo(call, "cuMemFree", new)
                call("cuMemcpyDtoD", new, old, nbytes)
                call("cuStreamSynchronize", 0)
                call("cuMemFree", old)
                old = 0
                copying.append(perf_counter_ns() - began)
        finally:
            if old:
                with suppress(CudaError):
                    call("cuMemFree", old)
    return GrowthTiming(nbytes, round(median(in_place)), round(median(copying)))


def _chunk(kind: str, chunk: int, span: int, rounds: int) -> ChunkCost:
    times = CallTimes()
    backing = open_device(kind, chunk=chunk, times=times)
    with Unwinding() as stack:
        stack.undo(backing.close)
        reservation = backing.reserve(span)
        stack.undo(backing.unreserve, reservation)
        backing.commit(reservation, 0, span)  # a warm-up
        backing.release(reservation, 0, span)
        times.take()
        for _ in range(rounds):
            backing.commit(reservation, 0, span)
            backing.release(reservation, 0, span)
        taken = times.take()
    together = sum(sum(samples) for samples in taken.values())
    return ChunkCost(
        chunk_bytes=chunk,
        span_bytes=span,
        calls_ns={name: round(median(samples)) for name, samples in taken.items()},
        ns_per_gib=round(together / rounds / span * GIB),
    )
