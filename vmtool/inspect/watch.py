"""One look at a process, or a watch over it until it ends or the user stops watching."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from vmtool.inspect.areas_and_reservations import (
    ProcessGoneError,
    group_areas,
    merge_alike,
    possible_huge_bytes,
    watched_granules,
    with_watched,
)
from vmtool.inspect.findings import find
from vmtool.inspect.processes import describe_children, read_devices
from vmtool.inspect.trends_and_conditions import evaluate, trends
from vmtool.results.inspect import InspectResult, ProgramStart, WatchEnding
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.inspect.areas_and_reservations import Detail, MemoryArea
    from vmtool.inspect.processes import ProcessView
    from vmtool.inspect.trends_and_conditions import CounterCondition
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.inspect import (
        ChildProcess,
        LimitUse,
        ProcessCgroup,
        ProcessIdentity,
        Sample,
    )

#: The list of areas is read again only after this many times the time that reading it took, so that
#: watching costs less than 1 % of a processor even at the limit of areas.
_AREAS_EVERY: Final = 200
#: For a program that has just started, and for so long only.
_FRESH_EVERY: Final = 20
_AREAS_LEAST_NS: Final = 10**9
#: Limits and what all processes use of them are read at each sample, unless that takes long, as
#: it does where the tasks of a user must be counted among thousands of processes.
_LIMITS_EVERY: Final = 400
#: A sample is taken again when the process started another program meanwhile.
_TRIES: Final = 3
#: With more areas than this, what is resident is read as one sum only: ``smaps`` of 60,000 areas
#: takes half a second, during which the process can map nothing.
MOST_WITH_RESIDENCY: Final = 20_000
#: More samples than this are thinned evenly: hours of watching stay in bounded memory.
_MOST_SAMPLES: Final = 4000
_POLL_NS: Final = 50 * 10**6
#: The exit codes that SIGKILL allows: 128 and its number, or one that only its parent knows.
_AFTER_SIGKILL: Final = {None, 137}


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """How to look.

    Attributes:
        watch: Sample until the process ends, the user stops or *duration_ns* is over.
        interval_ns: From one sample to the next.
        duration_ns: How long to watch at most; ``None`` is without limit.
        detail_interval_ns: From one reading of ``smaps`` to the next, which holds the process's
            memory map.
        fresh: Whether the process was just started: it changes most at first, so that ``smaps`` is
            read again after a second, then after twice as long, up to *detail_interval_ns*.
        top: How many reservations to keep.
        nodes: Whether to read where pages are, by NUMA node.
        children: Whether to list descendants.
        conditions: What has to hold.
    """

    watch: bool = False
    interval_ns: int = 10**9
    duration_ns: int | None = None
    detail_interval_ns: int = 60 * 10**9
    fresh: bool = False
    top: int = 12
    nodes: bool = False
    children: bool = False
    conditions: tuple[CounterCondition, ...] = ()


@dataclass(slots=True)
class _Program:
    """What was read of a process since it started the program that it runs.

    Attributes:
        mark: What another exec would change.
        identity: The process with the name and the command line of the program.
        stack_bytes: The size of a thread's stack.
        began: When it was first seen (monotonic).
    """

    mark: tuple[object, ...] | None
    identity: ProcessIdentity
    stack_bytes: int | None
    began: int
    full: Detail | None = None
    areas: Detail | None = None
    count: int | None = None
    huge: int | None = None
    areas_due: int = 0
    full_due: int = 0
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)


class Watch:
    """The samples of one process and what was read of it last.

    Args:
        target: The process.
        options: How to look.
        clock: Returns nanoseconds that only grow.

    Attributes:
        latest: The newest sample.
        limits: Of the process, as they were read last.
        taken: How many samples were taken.
        programs: Each that it ran, with the moment of its first sample.
    """

    def __init__(
        self,
        target: ProcessView,
        options: InspectOptions,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._target = target
        self._options = options
        self._clock = clock
        self._began = clock()
        self._samples: list[Sample] = []
        self._fresh: set[str] = set()  # the counters that were read since the last sample kept
        self._read_at: dict[str, set[int]] = {"areas": set(), "huge_bytes": set()}
        self._stride = 1
        self.taken = 0
        self.latest: Sample | None = None
        self.programs: list[ProgramStart] = []
        self._program: _Program | None = None
        self._group: ProcessCgroup | None = None
        self._group_before: ProcessCgroup | None = None
        self._children: tuple[ChildProcess, ...] = ()
        self._oom_score: int | None = None
        self._state = ""
        self._disabled = False
        self.limits: tuple[LimitUse, ...] = ()
        self._limits_due = 0

    @property
    def identity(self) -> ProcessIdentity | None:
        """Which process it is, with the program that it runs, once it was read."""
        return None if self._program is None else self._program.identity

    def sample(self) -> Sample:
        """Take one sample.

        Raises:
            ProcessGoneError: If the process has ended.
        """
        tries = 0
        while True:
            now = self._clock()
            program = self._running(now)
            counters = self._target.counters(now - self._began)
            tries += 1
            try:
                counters = self._with_rest(counters, program, now)
                if tries < _TRIES and program.mark != self._target.program():
                    continue
            except ProcessGoneError:
                self._keep(program, counters)  # they were read before it ended
                raise
            self._keep(program, counters)
            return counters

    def _running(self, now: int) -> _Program:
        """Return the program that the process runs now, a new one after an exec."""
        target, program = self._target, self._program
        # A program that may not be read (setuid) is another one than one that could be.
        mark = target.program()
        if program is not None and program.mark == mark:
            return program
        return _Program(mark, target.identity(), target.stack_bytes(), now)

    def _with_rest(self, counters: Sample, program: _Program, now: int) -> Sample:
        """Return *counters* with what is read more seldom: areas, huge pages, group and limits."""
        self._read_seldom(program, now)
        counters = replace(counters, areas=program.count, huge_bytes=program.huge)
        if self._group is not None:
            group = self._group = self._target.refreshed(self._group)
            counters = replace(
                counters,
                group_bytes=group.current_bytes,
                group_used_bytes=group.without_cache_bytes,
            )
        self._read_limits(counters)
        return counters

    def _read_seldom(self, program: _Program, now: int) -> None:
        if now >= program.full_due:
            self._read_detail(program)
            wait, every = self._options.detail_interval_ns, _AREAS_EVERY
            if self._options.fresh and now - program.began < wait:
                wait, every = max(now - program.began, _AREAS_LEAST_NS), _FRESH_EVERY
            ended = self._clock()
            program.full_due = ended + max(wait, (ended - now) * every)
        elif now >= program.areas_due:
            if program.areas is not None and len(program.areas.areas) > MOST_WITH_RESIDENCY:
                program.count = self._target.count_areas()
                self._fresh.add("areas")
                program.areas_due = self._due(now)
            else:
                self._note_areas(program, self._target.areas(), now)

    def _read_detail(self, program: _Program) -> None:
        target = self._target
        self._group = target.group()
        # It may be put into another group, whose earlier kills are none of this watch.
        if self._group_before is None or (
            self._group is not None and self._group.path != self._group_before.path
        ):
            self._group_before = self._group
        self._note_areas(program, target.areas(), self._clock())
        program.huge = target.huge_bytes()
        self._fresh.add("huge_bytes")
        if program.areas is not None and len(program.areas.areas) <= MOST_WITH_RESIDENCY:
            detail = target.areas_with_residency(nodes=self._options.nodes)
            if detail is not None and detail.complete:
                program.full = detail
        self._children = describe_children(target.children())

    def _note_areas(self, program: _Program, detail: Detail | None, began: int) -> None:
        if detail is None:
            return
        if program.areas is not None:
            watched_granules(program.areas.areas, detail.areas, program.seen)
        program.areas = detail
        program.count = len(detail.areas)
        self._fresh.add("areas")
        program.areas_due = self._due(began)

    def _due(self, began: int) -> int:
        """Return when to read the areas again, after a reading that began at *began*."""
        now = self._clock()
        return now + max((now - began) * _AREAS_EVERY, _AREAS_LEAST_NS)

    def _read_limits(self, counters: Sample) -> None:
        now = self._clock()
        if now < self._limits_due:
            return
        target = self._target
        self.limits = target.limits(counters, self._group)
        self._state = target.state()
        self._disabled = target.huge_disabled()
        self._oom_score = target.oom_score()
        ended = self._clock()
        self._limits_due = ended + (ended - now) * _LIMITS_EVERY

    def _keep(self, program: _Program, counters: Sample) -> None:
        if program is not self._program:
            self._program = program
            name, command = program.identity.name, program.identity.command
            self.programs.append(ProgramStart(counters.at_ns, name, command))
        self.latest = counters
        if self.taken % self._stride == 0:
            self._samples.append(counters)
            for counter in self._fresh:
                self._read_at[counter].add(counters.at_ns)
            self._fresh.clear()
            if len(self._samples) > _MOST_SAMPLES:
                self._thin_out()
        self.taken += 1

    def _thin_out(self) -> None:
        """Drop every other sample; what one had read for the first time, the next has as well."""
        for dropped, kept in zip(self._samples[1::2], self._samples[2::2], strict=False):
            for moments in self._read_at.values():
                if dropped.at_ns in moments:
                    moments.remove(dropped.at_ns)
                    moments.add(kept.at_ns)
        del self._samples[1::2]
        self._stride *= 2

    def result(
        self,
        ending: WatchEnding,
        machine: MachineFacts,
        *,
        exit_code: int | None = None,
    ) -> InspectResult:
        """Return everything that was found.

        Raises:
            ProcessGoneError: If the process ended before the first sample.
        """
        program = self._program
        if self.latest is None or program is None:
            raise ProcessGoneError
        kills = 0
        # A kill for lack of memory is counted after the last sample; the sizes are those of it.
        if ending is WatchEnding.PROCESS_ENDED:
            if self._group is not None:
                events = self._target.refreshed(self._group).events
                self._group = replace(self._group, events=events)
            if exit_code in _AFTER_SIGKILL:
                before = machine.memory.oom_kills
                kills = (self._target.machine_kills() or 0) - (before or 0)
        samples = list(self._samples)
        if samples[-1] is not self.latest:
            samples.append(self.latest)
        # An exec replaces the memory: no slope goes across it.
        since = [sample for sample in samples if sample.at_ns >= self.programs[-1].at_ns]
        detail, full = program.areas, program.full
        limits = tuple(_with_latest_use(limit, self.latest) for limit in self.limits)
        areas = () if detail is None else _merged_areas(program, detail)
        listed = self._children if self._options.children else ()
        devices, absent = read_devices((program.identity.pid, *(child.pid for child in listed)))
        reservations = group_areas(
            areas,
            stack_bytes=program.stack_bytes,
            nodes=None if full is None else full.nodes,
        )
        found_trends = trends(since, limits, self._read_at)
        return InspectResult(
            process=replace(program.identity, exit_code=exit_code),
            ending=ending,
            wall_ns=self.latest.at_ns - samples[0].at_ns,
            interval_ns=self._options.interval_ns if self._options.watch else None,
            samples=tuple(samples),
            samples_taken=self.taken,
            areas_read_ns=None if detail is None else detail.took_ns,
            areas_age_ns=None if detail is None else self._clock() - detail.at_ns,
            limits=limits,
            group=self._group,
            oom_score=self._oom_score,
            reservations=merge_alike(with_watched(reservations, program.seen), self._options.top),
            reservations_total=len(reservations),
            devices=devices,
            children=listed,
            findings=find(
                self.latest,
                limits,
                self._group,
                machine,
                areas=None if full is None else full.areas,
                huge_disabled=self._disabled,
                state=self._state,
                process=program.identity,
                trends=found_trends,
                children=self._children,
                group_before=self._group_before,
                machine_kills=kills,
            ),
            trends=found_trends,
            checks=tuple(
                evaluate(condition, samples, since, self._read_at)
                for condition in self._options.conditions
            ),
            unavailable=(
                *self._target.unavailable.values(),
                *(() if absent is None else (absent,)),
            ),
            machine=machine,
            huge_possible_bytes=None
            if full is None
            else possible_huge_bytes(full.areas, machine.huge_pages.pmd_bytes or 2 * MIB)[0],
            programs=tuple(self.programs),
        )


def _with_latest_use(limit: LimitUse, latest: Sample) -> LimitUse:
    """Return *limit* with what the process itself used of it at the *latest* sample."""
    used = getattr(latest, limit.counter, None)
    of_process = limit.where in {"process", "group"} or limit.counter == "areas"
    if limit.name == "RLIMIT_DATA":  # its use is no counter of its own
        return limit
    return replace(limit, used=used) if of_process and used is not None else limit


def _merged_areas(program: _Program, detail: Detail) -> Sequence[MemoryArea]:
    """Return the newest areas, with the residency that was read last where they are the same."""
    if program.full is None:
        return detail.areas
    known = {(a.start, a.end, a.permissions): a for a in program.full.areas}
    return [known.get((a.start, a.end, a.permissions), a) for a in detail.areas]


def nothing_read(
    process: ProcessIdentity, options: InspectOptions, machine: MachineFacts
) -> InspectResult:
    """Return the result for a *process* that ended before its first sample."""
    return InspectResult(
        process=process,
        ending=WatchEnding.PROCESS_ENDED,
        wall_ns=0,
        interval_ns=options.interval_ns,
        samples=(),
        samples_taken=0,
        areas_read_ns=None,
        areas_age_ns=None,
        limits=(),
        group=None,
        oom_score=None,
        reservations=(),
        reservations_total=0,
        devices=(),
        children=(),
        findings=(),
        trends=(),
        checks=tuple(evaluate(condition, ()) for condition in options.conditions),
        unavailable=(),
        machine=machine,
    )


def look(target: ProcessView, options: InspectOptions, machine: MachineFacts) -> InspectResult:
    """Return one look at *target*.

    Raises:
        ProcessGoneError: If it ended before anything was read.
    """
    watch = Watch(target, options)
    ending = WatchEnding.COMPLETE
    try:
        watch.sample()
    except ProcessGoneError:
        ending = WatchEnding.PROCESS_ENDED
    return watch.result(ending, machine)


def watch(
    target: ProcessView,
    options: InspectOptions,
    machine: MachineFacts,
    *,
    stopping: Callable[[], bool],
    progress: Callable[[Watch], None] = lambda _watched: None,
    ended: Callable[[], int | None] = lambda: None,
) -> InspectResult:
    """Sample *target* until it ends, *stopping* says so, or the time is over.

    Args:
        target: The process.
        options: How to look.
        machine: The machine that it runs on.
        stopping: Returns whether the user requested a stop.
        progress: Called after each sample.
        ended: The exit code of a command that was started here, once it has ended.

    Raises:
        ProcessGoneError: If the process ended before the first sample.
    """
    watched = Watch(target, options)
    began = due = time.monotonic_ns()
    ending = WatchEnding.COMPLETE
    while True:
        try:
            watched.sample()
            progress(watched)
        except ProcessGoneError:
            ending = WatchEnding.PROCESS_ENDED
            break
        due += options.interval_ns
        if not _wait(due, began, options.duration_ns, stopping, ended):
            if stopping():
                ending = WatchEnding.INTERRUPTED
            elif ended() is not None:
                ending = WatchEnding.PROCESS_ENDED
            break
        due = max(due, time.monotonic_ns() - options.interval_ns)
    return watched.result(ending, machine, exit_code=ended())


def _wait(
    due: int,
    began: int,
    duration_ns: int | None,
    stopping: Callable[[], bool],
    ended: Callable[[], int | None],
) -> bool:
    """Wait until *due*; return whether to take another sample."""
    last = None if duration_ns is None else began + duration_ns
    while (now := time.monotonic_ns()) < due:
        if stopping() or ended() is not None or (last is not None and now >= last):
            return False
        time.sleep(min(due - now, _POLL_NS) / 1e9)
    return not (stopping() or ended() is not None or (last is not None and due > last))
