"""The result of ``vmtool stress``: frozen types with numbers and facts, and no sentences."""

from __future__ import annotations

import enum
from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any, Final

from vmtool.histograms import HistogramData, Summary  # noqa: TC001 - likewise
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise
from vmtool.results.check_outcomes import Check, Value, all_passed

#: The phases in the order of a cycle; ``verify`` is the harness's own and is not a platform cost.
PHASES: Final = ("commit", "touch", "verify", "release")
#: The counters that are compared with the kernel's.
COUNTERS: Final = ("address_space", "charge", "resident", "mappings")
#: The counters of a device, which are compared with its driver's.
DEVICE_COUNTERS: Final = ("device_memory", "device_mappings")
#: What all processes use of a device, where ours is not counted apart (see ``leak.device_memory``).
DEVICE_IN_USE: Final = "device_in_use"


class Outcome(enum.Enum):
    """How a run ended; whether its checks passed is another question."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    CALL_FAILED = "call-failed"
    CRASHED = "crashed"
    HUNG = "hung"


#: At the end of a method's name: the same method, asking for huge pages.
HUGE: Final = "+huge"
#: Every commit method of any system and of devices, also those that this machine does not have.
METHODS: Final = (
    *("fixed", "protect", "advise"),
    *("view", "private", "decommit"),  # of Windows
    *("cold", "pooled"),  # of devices
)


def base_method(name: str) -> str:
    """Return the commit method behind *name*, which may end in ``+huge``."""
    return name.removesuffix(HUGE)


def full_name(method: str, *, huge: bool) -> str:
    """Return the name of *method* by what it did, with ``+huge`` where the run has ``--huge``."""
    return base_method(method) + HUGE if huge else method


@dataclass(frozen=True, slots=True)
class StressSettings:
    """What a run does: the user's options, and after planning with the defaults filled in.

    Zero, empty or ``None`` is "not given" until :func:`vmtool.stress.plan.settle` has filled it in.

    Attributes:
        methods: Names of commit methods, default first; one that ends in ``+huge`` asks for huge
            pages.
        capacity_bytes: Reserved for each buffer; every thread has one buffer.
        budget_bytes: What the whole run may have committed at once.
        cycles: Commits per method and thread; ``None`` when only *duration_ns* decides.
        duration_ns: How long to run; with *cycles*, whichever comes first.
        touch: ``none``, ``first`` (a few bytes of each 4 KiB) or ``full``.
        verify: ``off``, ``sample`` (two 4 KiB pieces of each granule) or ``full``.
        huge: Whether every method asks for huge pages.
        inject: Faults to inject, such as ``mmap:3=ENOMEM``.
        chunk_bytes: The size of one physical handle of a device; ``None`` for the host, or what
            the driver recommends.
        retain_bytes: What a pool keeps unmapped at most; ``None``: everything.
        runs: In how many fresh sets of worker processes the plan is repeated; *cycles* and
            *duration_ns* are totals of all of them.
        hold: Whether the whole budget is committed and touched once, and checked.
        label: The user's own words for this run.
        huge_page_bytes: The size of the reserved huge pages to use; ``None``: none.
        node: The NUMA node to commit on; ``None``: any.
        clear: Whether memory of a pool is cleared when it is mapped; engines do without.
        devices: With the backing ``cuda:all``, the backing of each device, such as ``cuda:0``; the
            workers are divided among them.
    """

    backing: str = "host"
    methods: tuple[str, ...] = ()
    pattern: str = "tail"
    capacity_bytes: int = 0
    budget_bytes: int = 0
    granule_bytes: int = 0
    cycles: int | None = None
    duration_ns: int | None = None
    touch: str = "full"
    verify: str = ""
    huge: bool = False
    prefault: bool = False
    threads: int = 1
    workers: int = 1
    seed: int = 0
    inject: tuple[str, ...] = ()
    chunk_bytes: int | None = None
    retain_bytes: int | None = None
    runs: int = 0
    hold: bool = False
    label: str | None = None
    huge_page_bytes: int | None = None
    node: int | None = None
    clear: bool = True
    devices: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """The backing of each device in use; the backing itself where it is one."""
        return self.devices or (self.backing,)

    def backing_of(self, worker: int) -> str:
        """Return the backing that worker number *worker* uses."""
        return self.places[worker % len(self.places)]

    def uses_huge(self, method: str) -> bool:
        """Return whether *method* asks for huge pages in this run."""
        return self.huge or method.endswith(HUGE)

    def full_name(self, method: str) -> str:
        """Return the name of *method* in this run, with ``+huge`` where it asks for huge pages."""
        return full_name(method, huge=self.huge)


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
        call: The name of the call, such as ``cuMemMap``.
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
        cycles_per_s: Cycles divided by *wall_ns*, all threads and workers together.
        bytes_per_s: Committed bytes divided by *wall_ns*, all threads and workers together.
        degraded_bytes: The most that was ever released without a guard (mapping limit).
        quarantined_bytes: What the platform would not give back.
        phases: The phases in the order of :data:`PHASES`; those without samples are left out.
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
    """One counter at a checkpoint: bytes, or a count for ``mappings``.

    Attributes:
        expected: What vmtool expects from its own totals.
        observed: What the kernel or driver counts; ``None`` where that is not available.
        low: The least that *observed* may be if *expected* is right.
        high: The most it may be; both include the stated tolerance.
    """

    counter: str
    expected: int
    observed: int | None
    low: int
    high: int

    @property
    def agrees(self) -> bool:
        """Whether the kernel's count is what vmtool expects; an unknown one cannot differ."""
        return self.observed is None or self.low <= self.observed <= self.high


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The counters of one worker at one moment.

    Attributes:
        at_ns: Since the worker's first cycle.
        cycle: Cycles done by then.
        run: Which run the worker belongs to.
        buffers: The reserved ranges: exact counts, compared with what vmtool expects.
        process: The whole process beyond what vmtool expects, by counter: what leak slopes use.
    """

    at_ns: int
    cycle: int
    worker: int
    method: str
    buffers: tuple[CounterReading, ...]
    process: Mapping[str, int | None]
    run: int = 0


@dataclass(frozen=True, slots=True)
class CounterSlope:
    """The growth of one counter of one worker beyond what vmtool expects, per cycle.

    Attributes:
        worker: Which worker; its processes in all runs together.
        per_cycle: Theil-Sen slope; bytes, or mappings, per cycle.
        low: Lower end of the confidence interval.
        high: Upper end.
        confidence: The confidence of the interval, such as 0.99.
        points: Checkpoints it rests on.
        grown: The slope times the cycles that the points of one run span.
        floor: Growth of one process below this is never called a leak.
        detectable_per_cycle: The smallest leak that these checkpoints could have shown.
        leaks: Whether the interval is above zero and the growth, also at the pace of the later half,
            above the floor.
    """

    counter: str
    worker: int
    per_cycle: float
    low: float
    high: float
    confidence: float
    points: int
    grown: int
    floor: int
    detectable_per_cycle: float
    leaks: bool


@dataclass(frozen=True, slots=True)
class Accident:
    """How a worker died, and what it was doing.

    Attributes:
        kind: ``signal``, ``exit`` or ``hang``.
        signal: The signal that ended it, such as ``SIGSEGV``; ``None`` where none did.
        exit_code: The worker's own, if it had one.
        operation: The phase in flight: ``commit``, ``touch``, ``verify``, ``release``,
            ``checkpoint``, ``reserve``, ``unreserve`` or ``idle``.
        granule: The first granule that it worked on.
        cycle: The cycle in which it happened.
        thread: The thread of that worker.
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
        granule: ``None`` where the call was made for no granule: on a pool, or after the cycles.
        cycle: ``None`` where the call was made in no cycle.
        injected: Whether ``--inject`` made it fail.
    """

    call: str
    symbol: str
    message: str
    operation: str
    granule: int | None
    cycle: int | None
    worker: int
    injected: bool
    cause: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class UnmapResult:
    """Whether unmapping and releasing waited for work that was running elsewhere on the device.

    A call has waited if it took most of what was left of the work when it was made. Where it was not
    measured, all but *fresh_zero* and *access_ns* is ``None``, and *rounds* 0.

    Attributes:
        waited: Whether cuMemUnmap did; ``None`` if the work never lasted long enough.
        rounds: How often unmapping was timed, idle and busy.
        idle_ns: The median of one cuMemUnmap on an idle device.
        busy_ns: The median of one cuMemUnmap while another range was being filled.
        work_ns: How long that filling lasted, the median.
        idle_synchronise_ns: The median of one cuCtxSynchronize on an idle device, which vmtool
            makes before each unmap.
        left_ns: What was left of the work when cuMemUnmap was called, the median.
        release_waited: Whether cuMemRelease waited, judged as ``waited`` is.
        release_idle_ns: The median of one cuMemRelease on an idle device.
        release_busy_ns: The median of one cuMemRelease while another range was being filled.
        release_left_ns: What was left of the work when cuMemRelease was called, the median.
        fresh_zero: Whether a handle created afterwards read as zero; ``None`` without room for one.
        access_ns: The median of cuMemSetAccess on one new mapping: for the device alone, then with one of
            its peers, with two, and so on; empty without room for one.
        not_measured: Why waiting was not measured: no memory, no budget, or a driver without a call.
    """

    waited: bool | None = None
    rounds: int = 0
    idle_ns: int | None = None
    busy_ns: int | None = None
    work_ns: int | None = None
    idle_synchronise_ns: int | None = None
    left_ns: int | None = None
    release_waited: bool | None = None
    release_idle_ns: int | None = None
    release_busy_ns: int | None = None
    release_left_ns: int | None = None
    fresh_zero: bool | None = None
    access_ns: tuple[int, ...] = ()
    not_measured: str | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The rate of one method with every worker and thread, against one of each.

    Attributes:
        single_cycles_per_s: Cycles per second with one worker and one thread.
        cycles_per_s: Cycles per second with all workers and threads.
        speedup: The second rate divided by the first.
    """

    method: str
    workers: int
    threads: int
    single_cycles_per_s: float
    cycles_per_s: float
    speedup: float


class MethodReason(enum.Enum):
    """Why a method is to be used."""

    #: All others clearly cost over 25 % more.
    FASTEST = "fastest"
    #: It does not clearly cost over 25 % more than the cheapest, which promises less.
    PROMISES_MORE = "promises-more"
    #: It is the cheapest, but not clearly; of those near it none promises more.
    NO_CLEAR_WINNER = "no-clear-winner"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which method to use on this machine.

    Attributes:
        method: Its name; ``+huge`` at the end asks for huge pages.
        cycle_ns: The medians of commit, touch and release together, by method.
        fastest: The method with the cheapest cycle.
        without_huge: That method without huge pages, where both were measured.
        huge_factor: How many times cheaper a cycle of that method is with huge pages.
    """

    method: str
    reason: MethodReason
    cycle_ns: Mapping[str, int]
    fastest: str
    without_huge: str | None = None
    huge_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning about how far to trust the numbers.

    Attributes:
        kind: A stable name, such as ``few-samples`` or ``drift``.
        method: Which method it is about; ``None``: the whole run.
        values: The numbers; the report writes the sentence and something to try.
    """

    kind: str
    method: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HoldResult:
    """The whole budget committed and touched at once.

    Attributes:
        bytes: What was committed and touched.
        budget_bytes: What was to be committed and touched.
        wall_ns: How long committing and touching took.
        resident_bytes: Resident memory of the worker's process then; ``None`` if not available.
    """

    bytes: int
    budget_bytes: int
    wall_ns: int
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One of several devices: the workers that used it, all runs together.

    Attributes:
        backing: The name of the device, such as ``cuda:0``.
        device: The driver's own name of it; ``None`` if no worker reported.
        outcome: How its workers ended.
        methods: The methods in the order requested.
        unmapping: What running work does to unmapping on it; ``None`` after a failure.
        machine: Facts about the device.
        peers: The other devices, such as ``cuda:1``, that had access to what was committed on it.
    """

    backing: str
    device: str | None
    outcome: Outcome
    methods: tuple[MethodResult, ...]
    unmapping: UnmapResult | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """One of several runs of the same plan, in worker processes of its own.

    Attributes:
        index: The number of the run, from 0, in the order they ran.
        outcome: How it ended.
        wall_ns: The time from its first worker's start to the last one's end.
        order: The methods in the order in which this run took turns.
        methods: The methods in the order requested.
    """

    index: int
    outcome: Outcome
    wall_ns: int
    order: tuple[str, ...]
    methods: tuple[MethodResult, ...]

    def method(self, name: str) -> MethodResult | None:
        """Return the result of the method called *name*."""
        return next((method for method in self.methods if method.method == name), None)


@dataclass(frozen=True, slots=True)
class StressResult:
    """The result of ``vmtool stress``.

    Attributes:
        settings: What was requested.
        outcome: How it ended.
        wall_ns: The time from the first worker's start to the last one's end.
        overhead_ns: What the harness adds to one sample: the median of an empty phase.
        base_addresses: The base of each buffer, by run, worker and thread; none ever moved.
        resident_before_bytes: Resident memory of the first worker before its first cycle; ``None``
            where that is not available.
        resident_after_bytes: After its last, everything released.
        peak_committed_bytes: The most that was committed at once, all workers together; ``None``
            where a worker ended without a report.
        peak_resident_bytes: The most that the workers of one run had resident, each at its own
            peak, added up; ``None`` where not available.
        budget_reached: Whether *peak_committed_bytes* came within one granule a thread of the
            budget.
        hold: The whole budget committed at once, where that was requested.
        methods: All runs together, in the order requested.
        runs: Each run apart, in the order they ran.
        checkpoints: Bounded: long runs keep evenly spaced ones.
        checkpoint_share: The part of the workers' time that checkpoints took.
        conditions: When, where and beside what it ran.
        machine: Facts about the machine, as ``vmtool doctor`` shows them.
        device: The driver's own name of the device; ``None`` for the host.
        unmapping: What running work does to unmapping; ``None`` for the host, or after a
            failure; of several devices that of the first.
        devices: The result of each device, with the backing ``cuda:all``.
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
    checks: tuple[Check, ...]
    accidents: tuple[Accident, ...]
    failures: tuple[CallFailure, ...]
    warnings: tuple[Advice, ...]
    machine: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    unmapping: UnmapResult | None = None
    runs: tuple[RunResult, ...] = ()
    conditions: RunConditions | None = None
    peak_committed_bytes: int | None = None
    peak_resident_bytes: int | None = None
    budget_reached: bool = False
    hold: HoldResult | None = None
    devices: tuple[DeviceResult, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all_passed(self.checks)

    def method(self, name: str) -> MethodResult | None:
        """Return the result of the method called *name*."""
        return next((method for method in self.methods if method.method == name), None)
