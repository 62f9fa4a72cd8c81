"""What ``vmtool allocators`` found on each device."""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.machine.device_facts import DeviceFacts  # noqa: TC001 - decoding reads the types


@dataclass(frozen=True, slots=True)
class AllocationTiming:
    """One way to get memory, at one size.

    Attributes:
        method: ``cold`` (handles created and released), ``pooled`` (kept, not cleared), ``malloc``
            (``cuMemAlloc``) or ``async`` (``cuMemAllocAsync`` with all of it kept in its pool).
        nbytes: How much at once.
        rounds: How often.
        allocate_ns: Median until it can be used.
        release_ns: Median until it is given back.
        error: Why it was not measured; ``None`` if it was.
    """

    method: str
    nbytes: int
    rounds: int = 0
    allocate_ns: int | None = None
    release_ns: int | None = None
    error: str | None = None

    @property
    def total_ns(self) -> int | None:
        """Both together."""
        if self.allocate_ns is None or self.release_ns is None:
            return None
        return self.allocate_ns + self.release_ns


@dataclass(frozen=True, slots=True)
class GrowthTiming:
    """Doubling a buffer, in place and by copying.

    Attributes:
        from_bytes: Its length before; it doubles.
        in_place_ns: Median of committing as much again behind it.
        copying_ns: Median of ``cuMemAlloc`` of the double, a copy on the device, a wait for it, and
            ``cuMemFree`` of the old.
    """

    from_bytes: int
    in_place_ns: int
    copying_ns: int


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What committing and releasing costs with handles of one size.

    Attributes:
        chunk_bytes: The size of a handle.
        span_bytes: What was committed and released at once.
        calls_ns: Median of each driver call, by its name.
        ns_per_gib: All calls of a commit and its release, for each GiB.
    """

    chunk_bytes: int
    span_bytes: int
    calls_ns: dict[str, int]
    ns_per_gib: int


@dataclass(frozen=True, slots=True)
class StepLatency:
    """How long the steps of some work took.

    Attributes:
        steps: How many.
        median_ns: Half of them took at most this.
        p99_ns: 99 of 100 took at most this.
        max_ns: The longest.
    """

    steps: int
    median_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class BesideWork:
    """Mapping and unmapping one range while work runs on another.

    Attributes:
        cycles: How often the range was mapped, filled, checked and unmapped meanwhile.
        alone: The steps of the work with nothing beside it.
        beside: The steps of the work with the cycles beside it.
        work_intact: Whether the work's own memory held what it wrote.
        range_intact: Whether the range held what was written to it, each time.
        error: What ended it; ``None`` if nothing did.
        lost: Whether the device was lost by it.
        available: Whether the driver has the calls of the measurement.
    """

    cycles: int = 0
    alone: StepLatency | None = None
    beside: StepLatency | None = None
    work_intact: bool | None = None
    range_intact: bool | None = None
    error: str | None = None
    lost: bool = False
    available: bool = True


@dataclass(frozen=True, slots=True)
class DeviceAllocators:
    """One device's allocators beside virtual memory management.

    Attributes:
        backing: The name of the device, such as ``cuda:0``.
        device: The device.
        granularity_bytes: The size of a handle in ``timings`` and ``growth``.
        timings: How long allocating and freeing took, by size and method.
        faster_from_bytes: The smallest size from which a method of virtual memory management was
            faster than a baseline at every size tried, by ``METHOD<BASELINE``; ``None``: at none.
        growth: Doubling, by length.
        grows_faster_from_bytes: The smallest length from which doubling in place was faster than
            copying at every length tried; ``None``: at none.
        chunks: The sweep of chunk sizes.
        knee_bytes: The smallest chunk that costs at most a tenth more for each GiB than the cheapest.
        beside: Mapping beside running work; ``None`` if it was not asked for.
        complete: Whether all of it was measured.
        error: What ended it early, such as a lost device; ``None`` if nothing did.
    """

    backing: str
    device: DeviceFacts
    granularity_bytes: int
    timings: tuple[AllocationTiming, ...]
    faster_from_bytes: dict[str, int | None]
    growth: tuple[GrowthTiming, ...]
    chunks: tuple[ChunkCost, ...]
    knee_bytes: int | None
    beside: BesideWork | None = None
    grows_faster_from_bytes: int | None = None
    complete: bool = True
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AllocatorsResult:
    """Allocators beside virtual memory management.

    Attributes:
        devices: Each device, measured one after the other.
    """

    devices: tuple[DeviceAllocators, ...]
