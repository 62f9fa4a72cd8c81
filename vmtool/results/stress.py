"""What a stress run found: frozen types that hold numbers and facts, and no presentation."""

from __future__ import annotations

import enum
from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any, Final

from vmtool.stats import HistogramData, Summary  # noqa: TC001 - likewise

#: The phases in the order of a cycle; ``verify`` is the harness's own and is not a platform cost.
PHASES: Final = ("commit", "touch", "verify", "release")
#: The ledgers that are held against the kernel's.
COUNTERS: Final = ("address_space", "charge", "resident", "mappings")
#: The ledgers of a device, which are held against its driver's.
DEVICE_COUNTERS: Final = ("device_memory", "device_mappings")


class Outcome(enum.Enum):
    """How a run ended; whether its checks passed is told by the verdicts."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    CALL_FAILED = "call-failed"
    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class StressSettings:
    """What was asked for, with the defaults filled in.

    Attributes:
        capacity_bytes: Reserved for each buffer; every thread has one buffer.
        budget_bytes: What the whole run may have committed at once.
        cycles: Commits per method and thread; ``None`` when *duration_ns* decides.
        duration_ns: How long to run; ``None`` when *cycles* decides.
        touch: ``none``, ``first`` (a few bytes of each 4 KiB) or ``full``.
        verify: ``off``, ``sample`` (two 4 KiB pieces of each granule) or ``full``.
        inject: Faults that were asked for, such as ``mmap:3=ENOMEM``.
        chunk_bytes: Of one physical handle of a device; ``None`` for the host, or what the driver
            recommends.
        retain_bytes: What a pool keeps unmapped at most; ``None``: everything.
    """

    backing: str
    methods: tuple[str, ...]
    pattern: str
    capacity_bytes: int
    budget_bytes: int
    granule_bytes: int
    cycles: int | None
    duration_ns: int | None
    touch: str
    verify: str
    huge: bool
    prefault: bool
    threads: int
    workers: int
    seed: int
    inject: tuple[str, ...] = ()
    chunk_bytes: int | None = None
    retain_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """The latencies of one phase.

    Attributes:
        phase: One of :data:`PHASES`.
        total_bytes: Bytes that the samples cover together.
        summary: Median, percentiles and the rest.
        histogram: Every sample, in buckets.
        round_medians_ns: The median of each round (bounded: long runs join neighbouring rounds),
            which shows drift and gives an interval that does not assume independent samples.
    """

    phase: str
    total_bytes: int
    summary: Summary
    histogram: HistogramData
    round_medians_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The latencies of one driver call, whatever phase it was made in.

    Attributes:
        call: Such as ``cuMemMap``.
        summary: Median, percentiles and the rest.
        histogram: Every call that succeeded, in buckets.
    """

    call: str
    summary: Summary
    histogram: HistogramData


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What one commit method did.

    Attributes:
        cycles: Commits that succeeded.
        wall_ns: Time in the loop, harness and verification included, checkpoints not.
        cycles_per_s: Cycles by *wall_ns*, all threads and workers together.
        bytes_per_s: Committed bytes by *wall_ns*, likewise.
        degraded_bytes: The most that was ever released without a guard (mapping limit).
        quarantined_bytes: What the platform would not give back.
        phases: In the order of :data:`PHASES`; phases without samples are left out.
        calls: Each driver call apart, in the order of a cycle; empty for the host.
    """

    method: str
    cycles: int
    wall_ns: int
    cycles_per_s: float
    bytes_per_s: float
    degraded_bytes: int
    quarantined_bytes: int
    phases: tuple[PhaseResult, ...]
    calls: tuple[CallResult, ...] = ()

    def phase(self, name: str) -> PhaseResult | None:
        """Return the phase called *name*, if it has samples."""
        return next((phase for phase in self.phases if phase.phase == name), None)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """One ledger at a checkpoint: bytes, or a count for ``mappings``; ``None`` is not told here.

    Attributes:
        low: The least the kernel's count may be if vmtool's belief is true.
        high: The most it may be; both include the stated tolerance.
    """

    ledger: str
    believed: int
    observed: int | None
    low: int
    high: int

    @property
    def agrees(self) -> bool:
        """Whether the kernel's count is what vmtool believes; an unknown one cannot differ."""
        return self.observed is None or self.low <= self.observed <= self.high


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The four ledgers of one worker at one moment.

    Attributes:
        at_ns: Since the worker's first cycle.
        cycle: Cycles done by then.
        buffers: The reserved ranges: exact counts, held against vmtool's belief.
        process: The whole process beyond what vmtool believes, by ledger: what leak slopes use.
    """

    at_ns: int
    cycle: int
    worker: int
    method: str
    buffers: tuple[CounterReading, ...]
    process: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class CounterSlope:
    """The growth of one ledger of one worker beyond vmtool's belief, per cycle.

    Attributes:
        per_cycle: Theil-Sen slope; bytes, or mappings, per cycle.
        low: Lower end of the confidence interval.
        high: Upper end.
        confidence: Such as 0.99.
        points: Checkpoints it rests on.
        grown: The slope times the cycles that the points span.
        floor: Growth below this is never called a leak.
        leaks: Whether the interval is above zero and the growth, also at the pace of the later half,
            above the floor.
    """

    ledger: str
    worker: int
    per_cycle: float
    low: float
    high: float
    confidence: float
    points: int
    grown: int
    floor: int
    leaks: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check.

    Attributes:
        check: A stable name: ``contents``, ``zero``, ``base``, ``ledger.resident``,
            ``leak.charge``, ``released`` ...
        passed: ``None`` when it could not be made here or was not asked for.
        detail: What was compared, with the numbers.
        hint: What to do when it failed.
    """

    check: str
    passed: bool | None
    detail: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Accident:
    """How a worker ended that did not end by itself, and what it was doing.

    Attributes:
        kind: ``signal``, ``exit`` or ``hang``.
        signal: Such as ``SIGSEGV``; ``None`` for others.
        exit_code: The worker's own, if it had one.
        operation: The phase in flight: ``commit``, ``touch``, ``verify``, ``release``,
            ``checkpoint``, ``reserve``, ``unreserve`` or ``idle``.
        granule: The first granule that it worked on.
        cycle: The cycle.
        thread: Of that worker.
        cause: The likely cause.
        hint: What to do.
    """

    kind: str
    signal: str | None
    exit_code: int | None
    operation: str
    method: str
    granule: int
    cycle: int
    thread: int
    worker: int
    cause: str
    hint: str


@dataclass(frozen=True, slots=True)
class CallFailure:
    """An operating system or driver call that ended a run.

    Attributes:
        injected: Whether ``--inject`` made it fail.
    """

    call: str
    symbol: str
    message: str
    operation: str
    granule: int
    cycle: int
    worker: int
    injected: bool
    cause: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class UnmapResult:
    """Whether unmapping waited for work that was running elsewhere on the device.

    Attributes:
        waited: ``None`` if the work never lasted long enough to tell.
        rounds: How often unmapping was timed, idle and busy.
        idle_ns: The median of one cuMemUnmap on an idle device.
        busy_ns: The same while another range was being filled.
        work_ns: How long that filling lasted, the median.
        idle_synchronise_ns: The median of one cuCtxSynchronize on an idle device, which vmtool
            makes before each unmap.
    """

    waited: bool | None
    rounds: int
    idle_ns: int
    busy_ns: int
    work_ns: int
    idle_synchronise_ns: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """The rate of one method with every worker and thread, against one of each.

    Attributes:
        single_cycles_per_s: With one worker and one thread.
        cycles_per_s: With all.
        speedup: The quotient.
    """

    method: str
    workers: int
    threads: int
    single_cycles_per_s: float
    cycles_per_s: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which method to use on this machine."""

    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning about how far to trust the numbers, and something to try."""

    kind: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class StressResult:
    """One run of ``vmtool stress``.

    Attributes:
        settings: What was asked for.
        outcome: How it ended.
        wall_ns: From the first worker's start to the last one's end.
        overhead_ns: What the harness adds to one sample: the median of an empty phase.
        base_addresses: The base of each buffer, by worker and thread; none ever moved.
        resident_before_bytes: Of the first worker, before its first cycle; ``None`` if not told.
        resident_after_bytes: After its last, everything released.
        methods: In the order asked for.
        checkpoints: Bounded: long runs keep evenly spaced ones.
        checkpoint_share: The part of the workers' time that checkpoints took.
        machine: Facts about the machine, as ``vmtool doctor`` tells them.
        device: The driver's own name of the device; ``None`` for the host.
        unmapping: What running work does to unmapping; ``None`` for the host, or if it was not
            measured.
    """

    settings: StressSettings
    outcome: Outcome
    wall_ns: int
    overhead_ns: int
    base_addresses: tuple[int, ...]
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    methods: tuple[MethodResult, ...]
    recommendation: Recommendation | None
    scaling: tuple[Scaling, ...]
    checkpoints: tuple[Checkpoint, ...]
    checkpoint_share: float
    slopes: tuple[CounterSlope, ...]
    verdicts: tuple[Verdict, ...]
    accidents: tuple[Accident, ...]
    failures: tuple[CallFailure, ...]
    warnings: tuple[Advice, ...]
    machine: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    unmapping: UnmapResult | None = None

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(verdict.passed is not False for verdict in self.verdicts)

    def method(self, name: str) -> MethodResult | None:
        """Return the result of the method called *name*."""
        return next((method for method in self.methods if method.method == name), None)
