"""One look at a process, or a watch over it until it ends or the user stops."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.inspect.areas import ProcessGoneError
from vmtool.inspect.devices import read_devices
from vmtool.inspect.findings import find
from vmtool.inspect.processes import describe_children
from vmtool.inspect.reservations import (
    group_areas,
    merge_alike,
    possible_huge_bytes,
    watched_granules,
    with_watched,
)
from vmtool.inspect.trends import evaluate, trends
from vmtool.results.inspect import InspectResult, WatchEnding
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.inspect.areas import Detail, MemoryArea
    from vmtool.inspect.processes import ProcessView
    from vmtool.inspect.trends import CounterCondition
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.inspect import CgroupUse, LimitUse, ProcessIdentity, Sample

#: The list of areas is read at most every so many times what reading it took, so that watching
#: costs less than 1 % of a processor also at the limit of areas.
_AREAS_EVERY: Final = 200
#: For a program that has just started, and for so long only.
_FRESH_EVERY: Final = 20
_AREAS_LEAST_NS: Final = 10**9
#: With more areas than this, what is resident is read as one sum only: ``smaps`` of 60,000 areas
#: takes half a second, during which the process can map nothing.
MOST_WITH_RESIDENCY: Final = 20_000
#: More samples than this are thinned evenly: hours of watching stay in bounded memory.
_MOST_SAMPLES: Final = 4000
_POLL_NS: Final = 50 * 10**6


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


class Watch:
    """The samples of one process and what was read of it last.

    Attributes:
        identity: Which process it is, once it was read.
        latest: The newest sample.
        limits: Of the process, as they were read last.
        taken: How many samples were taken.
    """

    def __init__(self, target: ProcessView, options: InspectOptions) -> None:
        self._target = target
        self._options = options
        self._began = time.monotonic_ns()
        self._samples: list[Sample] = []
        self._stride = 1
        self.taken = 0
        self.latest: Sample | None = None
        self._full: Detail | None = None
        self._areas: Detail | None = None
        self._count: int | None = None
        self._areas_due = 0
        self._full_due = 0
        self._seen: dict[int, list[int]] = {}
        self._group: CgroupUse | None = None
        self.identity: ProcessIdentity | None = None
        self._children: tuple[int, ...] = ()
        self._oom_score: int | None = None
        self._program: str | None = None
        self._state = ""
        self._disabled = False
        self._stack: int | None = None
        self.limits: tuple[LimitUse, ...] = ()
        self._huge: int | None = None

    def sample(self) -> Sample:
        """Take one sample.

        Raises:
            ProcessGoneError: If the process has ended or runs another program.
        """
        now = time.monotonic_ns()
        if self.identity is None:
            self.identity = self._target.identity()
            self._program = self._target.program()
            self._stack = self._target.stack_bytes()
        counters = self._target.counters(now - self._began)
        self._read_seldom(now, counters)
        counters = replace(counters, areas=self._count, huge_bytes=self._huge)
        if self._group is not None:
            group = self._group = self._target.refreshed(self._group)
            counters = replace(
                counters,
                group_bytes=group.current_bytes,
                group_used_bytes=group.without_cache_bytes,
            )
        self._keep(counters)
        return counters

    def replaced(self) -> bool:
        """Return whether the process runs another program than at the first sample."""
        return self._program is not None and self._target.program() not in {None, self._program}

    def _read_seldom(self, now: int, counters: Sample) -> None:
        if now >= self._full_due:
            self._read_detail(counters)
            wait, every = self._options.detail_interval_ns, _AREAS_EVERY
            if self._options.fresh and now - self._began < wait:
                wait, every = max(now - self._began, _AREAS_LEAST_NS), _FRESH_EVERY
            ended = time.monotonic_ns()
            self._full_due = ended + max(wait, (ended - now) * every)
        elif now >= self._areas_due:
            if self._areas is not None and len(self._areas.areas) > MOST_WITH_RESIDENCY:
                self._count = self._target.count_areas()
                self._areas_due = _due(now)
            else:
                self._note_areas(self._target.areas(), now)

    def _read_detail(self, counters: Sample) -> None:
        target = self._target
        self._group = target.group()
        self._note_areas(target.areas(), time.monotonic_ns())
        self._huge = target.huge_bytes()
        if self._areas is not None and len(self._areas.areas) <= MOST_WITH_RESIDENCY:
            detail = target.areas_with_residency(nodes=self._options.nodes)
            if detail is not None and detail.complete:
                self._full = detail
        self._state = target.state()
        self._disabled = target.huge_disabled()
        self._oom_score = target.oom_score()
        if self._options.children:
            self._children = target.children()
        self.limits = target.limits(counters, self._group, self._areas)

    def _note_areas(self, detail: Detail | None, began: int) -> None:
        if detail is None:
            return
        if self._areas is not None:
            watched_granules(self._areas.areas, detail.areas, self._seen)
        self._areas = detail
        self._count = len(detail.areas)
        self._areas_due = _due(began)

    def _keep(self, counters: Sample) -> None:
        self.latest = counters
        if self.taken % self._stride == 0:
            self._samples.append(counters)
            if len(self._samples) > _MOST_SAMPLES:
                del self._samples[1::2]
                self._stride *= 2
        self.taken += 1

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
        if self.latest is None or self.identity is None:
            raise ProcessGoneError
        samples = list(self._samples)
        if samples[-1] is not self.latest:
            samples.append(self.latest)
        detail = self._areas
        limits = tuple(
            replace(limit, used=used)
            if (
                (used := getattr(self.latest, limit.counter, None)) is not None
                and limit.where in {"process", "group"}
            )
            or limit.counter == "areas"
            else limit
            for limit in self.limits
        )
        areas: Sequence[MemoryArea] = () if detail is None else self._merged_areas(detail)
        devices, absent = read_devices((self.identity.pid, *self._children))
        nodes = None if self._full is None else self._full.nodes
        reservations = group_areas(areas, stack_bytes=self._stack, nodes=nodes)
        found_trends = trends(samples, limits)
        now = time.monotonic_ns()
        return InspectResult(
            process=replace(self.identity, exit_code=exit_code),
            ending=ending,
            wall_ns=self.latest.at_ns - samples[0].at_ns,
            interval_ns=self._options.interval_ns if self._options.watch else None,
            samples=tuple(samples),
            samples_taken=self.taken,
            areas_read_ns=None if detail is None else detail.took_ns,
            areas_age_ns=None if detail is None else now - detail.at_ns,
            limits=limits,
            group=self._group,
            oom_score=self._oom_score,
            reservations=merge_alike(with_watched(reservations, self._seen), self._options.top),
            reservations_total=len(reservations),
            devices=devices,
            children=describe_children(self._children),
            findings=find(
                self.latest,
                limits,
                self._group,
                machine,
                areas=self._full.areas if self._full is not None else None,
                huge_disabled=self._disabled,
                state=self._state,
                process=self.identity,
            ),
            trends=found_trends,
            checks=tuple(evaluate(c, samples) for c in self._options.conditions),
            unavailable=(
                *self._target.unavailable.values(),
                *(() if absent is None else (absent,)),
            ),
            machine=machine,
            huge_possible_bytes=None
            if self._full is None
            else possible_huge_bytes(self._full.areas, machine.huge_pages.pmd_bytes or 2 * MIB)[0],
        )

    def _merged_areas(self, detail: Detail) -> Sequence[MemoryArea]:
        """Return the newest areas, with the residency that was read last where they are the same."""
        if self._full is None:
            return detail.areas
        known = {(a.start, a.end, a.permissions): a for a in self._full.areas}
        return [known.get((a.start, a.end, a.permissions), a) for a in detail.areas]


def _due(began: int) -> int:
    """Return when to read the areas again, after a reading that began at *began*."""
    now = time.monotonic_ns()
    return now + max((now - began) * _AREAS_EVERY, _AREAS_LEAST_NS)


def look(target: ProcessView, options: InspectOptions, machine: MachineFacts) -> InspectResult:
    """Return one look at *target*.

    Raises:
        ProcessGoneError: If it ended before anything was read.
    """
    watch = Watch(target, options)
    watch.sample()
    return watch.result(WatchEnding.COMPLETE, machine)


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
            if watched.replaced():
                ending = WatchEnding.PROCESS_REPLACED
                break
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
