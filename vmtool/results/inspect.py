"""What ``vmtool inspect`` found in a process: frozen types that hold numbers, no sentences."""

from __future__ import annotations

import enum
from collections.abc import Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass

from vmtool.machine.facts import MachineFacts  # noqa: TC001
from vmtool.machine.nvml import DeviceProcess  # noqa: TC001
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001
from vmtool.results.check_outcomes import Check  # noqa: TC001


class WatchEnding(enum.StrEnum):
    """How the inspection of a process ended."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    PROCESS_ENDED = "process ended"


class FindingRating(enum.StrEnum):
    """How much a finding matters."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The process that was inspected.

    Attributes:
        pid: Its PID, as this process sees it.
        name: The short name that the kernel keeps.
        command: Its command line; empty where it may not be read.
        user: Its owner's name.
        started_ns: When it started, in nanoseconds since 1970; a reused PID has another.
        own_pid_namespace: Whether it runs in another PID namespace than vmtool.
        exit_code: The exit code of a command that inspect started, or 128 and its signal;
            ``None`` while it runs.
    """

    pid: int
    name: str
    command: tuple[str, ...] = ()
    user: str | None = None
    started_ns: int | None = None
    own_pid_namespace: bool | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """A program that the process ran; each but the first was started by an exec.

    Attributes:
        at_ns: The time of its first sample.
        name: The short name that the kernel keeps.
        command: Its command line; empty where it may not be read.
    """

    at_ns: int
    name: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one process at one moment; ``None`` is not available.

    Attributes:
        at_ns: Since the first sample.
        address_space_bytes: Addresses taken (``VmSize``).
        charge_bytes: Private writable memory (``VmData`` and ``VmStk``): what commit accounting
            holds against the process.
        resident_bytes: Memory that is in RAM (``VmRSS``).
        anonymous_bytes: Resident and anonymous (``RssAnon``).
        file_bytes: Resident pages of files (``RssFile``).
        shared_bytes: Resident shared memory (``RssShmem``).
        swapped_bytes: Swapped out (``VmSwap``).
        page_table_bytes: Page tables (``VmPTE``).
        locked_bytes: Locked by mlock (``VmLck``).
        pinned_bytes: Pinned, for example by a driver (``VmPin``).
        hugetlb_bytes: Reserved huge pages in use (``HugetlbPages``).
        huge_bytes: Memory in transparent huge pages; read seldom.
        areas: Memory areas (VMAs); read seldom.
        minor_faults: Page faults without I/O since the process started.
        major_faults: Page faults with I/O since the process started.
        threads: Threads.
        descriptors: Open descriptors (handles on Windows).
        cpu_ns: CPU time since the process started.
        group_bytes: What is charged to its control group (``memory.current``).
        group_used_bytes: The part of that which is not file cache that the kernel drops at a limit.
    """

    at_ns: int
    address_space_bytes: int | None = None
    charge_bytes: int | None = None
    resident_bytes: int | None = None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    shared_bytes: int | None = None
    swapped_bytes: int | None = None
    page_table_bytes: int | None = None
    locked_bytes: int | None = None
    pinned_bytes: int | None = None
    hugetlb_bytes: int | None = None
    huge_bytes: int | None = None
    areas: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    threads: int | None = None
    descriptors: int | None = None
    cpu_ns: int | None = None
    group_bytes: int | None = None
    group_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit and what is used of it.

    Attributes:
        name: The name of the limit, such as ``RLIMIT_AS``, ``vm.max_map_count`` or ``memory.max``.
        counter: The counter that it bounds: a field of :class:`Sample`, or the tasks of others
            as well, ``user_tasks`` or ``group_tasks``.
        used: What is used, in the unit of the counter.
        soft: The limit that is enforced; ``None`` is unlimited.
        hard: How far the process itself may raise it; ``None`` is unlimited, or there is no
            such thing.
        where: Where it is set: ``process``, ``user``, ``group`` or ``machine``.
        path: The file that holds it, where there is one.
    """

    name: str
    counter: str
    used: int | None
    soft: int | None
    hard: int | None
    where: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessCgroup:
    """The control group of the process.

    Attributes:
        path: Its directory.
        version: 1 or 2.
        current_bytes: ``memory.current``.
        high_bytes: ``memory.high``, above which its processes are slowed down.
        max_bytes: ``memory.max``, at which the OOM killer is called; the lowest of all above it.
        reclaimable_bytes: File cache in it that the kernel can drop.
        events: ``memory.events``: how often each limit was met.
        pressure_some_percent: Share of the last 10 s in which a process of the group waited for
            memory.
        pressure_full_percent: Share of the last 10 s in which all of them did.
        pids: Processes and threads in it.
        pids_max: ``pids.max``.
        pids_path: The directory of the group that this limit is of.
    """

    path: str
    version: int
    current_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    reclaimable_bytes: int | None = None
    events: Mapping[str, int] | None = None
    pressure_some_percent: float | None = None
    pressure_full_percent: float | None = None
    pids: int | None = None
    pids_max: int | None = None
    pids_path: str | None = None

    @property
    def without_cache_bytes(self) -> int | None:
        """What is charged beside the cache that the kernel drops at a limit."""
        if self.current_bytes is None:
            return None
        return max(self.current_bytes - (self.reclaimable_bytes or 0), 0)


@dataclass(frozen=True, slots=True)
class ReservedRange:
    """Neighbouring mappings that belong together: one reserved range with committed parts.

    Attributes:
        base: Its first address.
        capacity_bytes: Its length from the first address to the last; exact where no mapping like it is next
            to it, as the kernel joins neighbours.
        committed_bytes: Readable or writable parts.
        resident_bytes: The part that is in RAM; ``None`` where it was not read.
        huge_bytes: The resident part that is in transparent huge pages.
        swapped_bytes: Swapped out.
        pieces: Memory areas that it consists of.
        granule_bytes: The largest unit that all its committed parts are multiples of.
        granule_exact: Whether commits that were watched show that unit; otherwise the true granule
            is a divisor of it.
        permissions: The permissions of its committed parts, such as ``rw-p``, or ``mixed``.
        kind: ``anonymous``, ``heap``, ``stack``, ``file``, ``shared``, ``device``, ``hugetlb`` or
            ``kernel``.
        name: What the kernel calls it: a path, ``[anon:NAME]``, or nothing.
        owner: Who reserves memory in this way, where the pattern is certain.
        node_bytes: Resident bytes on each NUMA node, where there are several.
    """

    base: int
    capacity_bytes: int
    committed_bytes: int
    resident_bytes: int | None
    huge_bytes: int | None
    swapped_bytes: int | None
    pieces: int
    granule_bytes: int | None
    granule_exact: bool
    permissions: str
    kind: str
    name: str
    owner: str | None = None
    node_bytes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ProcessDevice:
    """What is used of one GPU.

    Attributes:
        device: Its number.
        name: The driver's name of it.
        total_bytes: Its memory.
        free_bytes: What is free of it.
        own_bytes: What this process (and its children, where they are counted) holds.
        others: The other processes on it.
    """

    device: int
    name: str
    total_bytes: int | None
    free_bytes: int | None
    own_bytes: int | None
    others: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessFinding:
    """Something that stops the process, will stop it, or slows it down.

    Attributes:
        name: A short stable name, such as ``area-limit``.
        rating: How much it matters.
        values: The numbers and names that the report puts into its sentence.
    """

    name: str
    rating: FindingRating
    values: Mapping[str, int | float | str | None]


@dataclass(frozen=True, slots=True)
class Trend:
    """How fast a counter grew while it was watched.

    Attributes:
        counter: A field of :class:`Sample`.
        per_second: Theil-Sen slope.
        low: Lower end of its 99 % interval.
        high: Upper end.
        samples: How many samples it rests on.
        grows: Whether growth is significant and large enough to matter.
        limit: The name of the limit that stops it first.
        full_in_s: Seconds until that limit is met at this rate.
        growth: What the slope makes of the whole watch, in the unit of the counter.
        growth_most: What the upper end of the interval makes of it.
        growth_least: Less than this over the watch is not called growth.
    """

    counter: str
    per_second: float
    low: float
    high: float
    samples: int
    grows: bool
    limit: str | None = None
    full_in_s: float | None = None
    growth: float = 0.0
    growth_most: float = 0.0
    growth_least: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A descendant of the inspected process."""

    pid: int
    name: str
    resident_bytes: int | None
    swapped_bytes: int | None
    threads: int | None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """What could not be read, and why.

    Attributes:
        what: The part that is not available, such as ``reservations``.
        reason: A short stable name: ``permission``, ``platform``, ``kernel``, ``namespace``, ``not
            listed`` (NVML answers, and lists none of the processes).
        detail: The call that was refused, or the package that is missing.
    """

    what: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class InspectResult:
    """One look at a process, or a watch over it.

    Attributes:
        ending: How it ended.
        wall_ns: The time from the first sample to the last.
        interval_ns: Time between samples; ``None`` for one look.
        samples: The counters over time, thinned evenly where there were very many; none where the
            process ended before the first.
        samples_taken: How many samples were taken in all.
        areas_read_ns: What the last reading of the list of areas took.
        areas_age_ns: How old that reading is.
        limits: Every limit of the process that is known.
        huge_possible_bytes: What transparent huge pages could back of what is resident; ``None``
            where that was not read.
        reservations: The largest ones, largest first.
        reservations_total: How many there are in all.
        trends: Since the last of *programs* was started.
        programs: What the process ran while it was watched.
        conditions: When and where that was.
    """

    process: ProcessIdentity
    ending: WatchEnding
    wall_ns: int
    interval_ns: int | None
    samples: tuple[Sample, ...]
    samples_taken: int
    areas_read_ns: int | None
    areas_age_ns: int | None
    limits: tuple[LimitUse, ...]
    group: ProcessCgroup | None
    oom_score: int | None
    reservations: tuple[ReservedRange, ...]
    reservations_total: int
    devices: tuple[ProcessDevice, ...]
    children: tuple[ChildProcess, ...]
    findings: tuple[ProcessFinding, ...]
    trends: tuple[Trend, ...]
    checks: tuple[Check, ...]
    unavailable: tuple[Unavailable, ...]
    machine: MachineFacts | None = None
    huge_possible_bytes: int | None = None
    programs: tuple[ProgramStart, ...] = ()
    conditions: RunConditions | None = None

    @property
    def last(self) -> Sample:
        """The latest sample, without a figure where there is none."""
        return self.samples[-1] if self.samples else Sample(0)
