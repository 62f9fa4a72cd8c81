"""What stops a process, will stop it, or slows it down: rules over its counters and limits; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.inspect.areas_and_reservations import possible_huge_bytes
from vmtool.results.inspect import FindingRating, ProcessFinding
from vmtool.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vmtool.inspect.areas_and_reservations import MemoryArea
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.inspect import (
        ChildProcess,
        LimitUse,
        ProcessCgroup,
        ProcessIdentity,
        Sample,
        Trend,
    )

_FULL: Final = 0.9
_FILLING: Final = 0.75
_HUGE_LEAST: Final = 64 * MIB
_HUGE_SHARE: Final = 0.1
_TABLES_LEAST: Final = 64 * MIB
_TABLES_SHARE: Final = 0.05
_CACHE_SHARE: Final = 0.25
_SWAPPED_SHARE: Final = 0.01
_THROTTLED_PERCENT: Final = 10.0

#: The finding for a limit that is nearly met.
_NAMES: Final = {
    "RLIMIT_AS": "address-space-limit",
    "RLIMIT_DATA": "data-limit",
    "RLIMIT_MEMLOCK": "lock-limit",
    "RLIMIT_NOFILE": "descriptor-limit",
    "RLIMIT_NPROC": "task-limit",
    "vm.max_map_count": "area-limit",
    "CommitLimit": "commit-limit",
    "system commit limit": "commit-limit",
    "ProcessMemoryLimit": "job-limit",
    "pids.max": "task-limit",
}
#: What a leak makes grow, the plainest first. Pages of files that a process reads come and go.
_LEAKS: Final = (
    "anonymous_bytes",
    "shared_bytes",
    "resident_bytes",
    "swapped_bytes",
    "charge_bytes",
    "pinned_bytes",
    "hugetlb_bytes",
    "page_table_bytes",
    "areas",
    "descriptors",
    "threads",
    "address_space_bytes",
)
_ORDER: Final = {FindingRating.PROBLEM: 0, FindingRating.WARNING: 1, FindingRating.NOTE: 2}


def find(
    counters: Sample,
    limits: Sequence[LimitUse],
    group: ProcessCgroup | None,
    machine: MachineFacts,
    *,
    areas: Sequence[MemoryArea] | None = None,
    huge_disabled: bool = False,
    state: str = "",
    process: ProcessIdentity | None = None,
    trends: Iterable[Trend] = (),
    children: Sequence[ChildProcess] = (),
    group_before: ProcessCgroup | None = None,
    machine_kills: int = 0,
) -> tuple[ProcessFinding, ...]:
    """Return what was found, the worst first.

    Args:
        counters: The latest sample.
        limits: The limits of the process.
        group: Its control group.
        machine: The machine that it runs on.
        areas: Its memory areas with their residency, where that was read.
        huge_disabled: Whether the process may have no transparent huge pages
            (``THP_enabled: 0``, ``PR_SET_THP_DISABLE``).
        state: The letter of its state, such as ``T`` for stopped.
        process: Which process it is, for what is to be typed.
        trends: How its counters changed.
        children: Its descendants, the largest first.
        group_before: Its control group when the watch began.
        machine_kills: How many processes of the machine the OOM killer ended during the watch, if
            this one ended in a way that fits.
    """
    pid = None if process is None else process.pid
    asked = process is not None and any("mlock" in word for word in process.command)
    found = [
        *_growth(trends, counters),
        *_limits(limits, pid),
        *_lock(limits, areas, pid, asked=asked or bool(counters.locked_bytes)),
        *_group(group, group_before),
        *_fork(counters, limits, machine, areas),
        *_huge_pages(machine, areas, disabled=huge_disabled),
        *_memory(counters),
        *_children(counters, children),
    ]
    if machine_kills > 0 and not any(each.values.get("new") for each in found):
        found.append(ProcessFinding("oom-kills", FindingRating.PROBLEM, {"new": machine_kills}))
    if state in {"T", "t"}:
        found.append(ProcessFinding("stopped", FindingRating.NOTE, {"state": state, "pid": pid}))
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.rating]))


def _growth(trends: Iterable[Trend], counters: Sample) -> Iterator[ProcessFinding]:
    grown = {trend.counter: trend for trend in trends if trend.grows}
    if counters.anonymous_bytes is not None:
        grown.pop("resident_bytes", None)  # known by its kinds
    trend = next((grown[counter] for counter in _LEAKS if counter in grown), None)
    if trend is not None:
        yield ProcessFinding(
            "growth",
            FindingRating.WARNING,
            {
                "counter": trend.counter,
                "per_second": trend.per_second,
                "low": trend.low,
                "high": trend.high,
                "growth": trend.growth,
                "limit": trend.limit,
                "full_in_s": trend.full_in_s,
            },
        )


def _children(counters: Sample, children: Sequence[ChildProcess]) -> Iterator[ProcessFinding]:
    """Yield that the descendants have more than the process: a launcher is not the engine."""
    resident = sum(child.resident_bytes or 0 for child in children)
    if children and resident > (counters.resident_bytes or 0):
        values: dict[str, int | float | str | None] = {
            "count": len(children),
            "resident": resident,
            "largest": children[0].pid,
            "name": children[0].name,
        }
        yield ProcessFinding("children", FindingRating.NOTE, values)


def _limits(limits: Iterable[LimitUse], pid: int | None) -> Iterator[ProcessFinding]:
    for limit in limits:
        name = _NAMES.get(limit.name)
        if name is None or limit.soft is None:
            continue
        values = _limit_values(limit, pid)
        share = None if limit.used is None or not limit.soft else limit.used / limit.soft
        if share is not None and share >= _FULL:
            yield ProcessFinding(name, FindingRating.PROBLEM, values)
        elif share is not None and share >= _FILLING:
            yield ProcessFinding(name, FindingRating.WARNING, values)
        elif limit.name in {"RLIMIT_AS", "RLIMIT_DATA"}:
            # Rarely set on purpose for such programs, and it fails while RAM is free.
            yield ProcessFinding(name, FindingRating.NOTE, values)


def _limit_values(limit: LimitUse, pid: int | None) -> dict[str, int | float | str | None]:
    return {
        "limit": limit.name,
        "used": limit.used,
        "soft": limit.soft,
        "hard": limit.hard,
        "path": limit.path,
        "pid": pid,
    }


def _lock(
    limits: Iterable[LimitUse],
    areas: Sequence[MemoryArea] | None,
    pid: int | None,
    *,
    asked: bool,
) -> Iterator[ProcessFinding]:
    """Yield that a mapped file of data, such as a model, is larger than what may be locked.

    A program that locks it goes on without the lock, so that only its command line (llama.cpp's
    ``--mlock``) and what is locked already show that it tried.
    """
    limit = next((limit for limit in limits if limit.name == "RLIMIT_MEMLOCK"), None)
    if limit is None or limit.soft is None or not areas:
        return
    if limit.used is not None and limit.used >= limit.soft * _FILLING:
        return  # the limit itself is a finding then
    programs = {area.name for area in areas if area.inode and area.permissions[2] == "x"}
    sizes: dict[str, int] = {}
    for area in areas:
        if area.inode and area.name not in programs and not area.name.startswith("/dev/"):
            sizes[area.name] = sizes.get(area.name, 0) + area.end - area.start
    name = max(sizes, key=lambda name: sizes[name], default="")
    if name and sizes[name] > limit.soft:
        rating = FindingRating.WARNING if asked else FindingRating.NOTE
        values = {**_limit_values(limit, pid), "file": name, "size": sizes[name]}
        yield ProcessFinding("lock-file", rating, values)


def _group(group: ProcessCgroup | None, before: ProcessCgroup | None) -> Iterator[ProcessFinding]:
    if group is None:
        return
    events = group.events or {}
    used, cache = group.current_bytes, group.reclaimable_bytes or 0
    base: dict[str, int | float | str | None] = {"path": group.path, "used": used}
    if kills := events.get("oom_kill"):
        # The count is since the group was made: those of long ago stop nothing now.
        known = before is not None and before.path == group.path
        new = kills - (before.events or {}).get("oom_kill", 0) if before and known else 0
        rating = FindingRating.PROBLEM if new > 0 else FindingRating.NOTE
        yield ProcessFinding("group-oom-kills", rating, {**base, "count": kills, "new": new})
    if group.max_bytes is not None and used is not None:
        values = {**base, "soft": group.max_bytes, "cache": cache, "met": events.get("max")}
        if used - cache >= group.max_bytes * _FULL:
            yield ProcessFinding("group-limit", FindingRating.PROBLEM, values)
        elif used - cache >= group.max_bytes * _FILLING:
            yield ProcessFinding("group-limit", FindingRating.WARNING, values)
    if group.high_bytes is not None and used is not None:
        values = {**base, "soft": group.high_bytes, "met": events.get("high")}
        pressure = {"pressure": group.pressure_some_percent}
        if used >= group.high_bytes * 0.99 or events.get("high"):
            slow = (group.pressure_some_percent or 0) >= _THROTTLED_PERCENT
            rating = FindingRating.PROBLEM if slow else FindingRating.WARNING
            yield ProcessFinding("group-high", rating, {**values, **pressure})
    # Without a limit the cache matters only to who takes all that is charged for memory in use.
    least = GIB if group.max_bytes is None else 1
    if used and cache >= max(used * _CACHE_SHARE, least):
        values = {**base, "cache": cache, "soft": group.max_bytes}
        yield ProcessFinding("group-cache", FindingRating.NOTE, values)


def _fork(
    counters: Sample,
    limits: Sequence[LimitUse],
    machine: MachineFacts,
    areas: Sequence[MemoryArea] | None,
) -> Iterator[ProcessFinding]:
    """Yield whether a fork would be refused: it charges each charged area once more.

    Private areas that are or were writable are charged, but not those mapped with MAP_NORESERVE in
    modes 0 and 1 (``ac`` in ``VmFlags``; kernel/fork.c, dup_mmap). In mode 2 all of them have to fit
    below the commit limit. In mode 0 each is compared with all RAM and swap (mm/util.c,
    __vm_enough_memory), so that only one area larger than that is refused; kernels before 5.3
    compared with what was free. In mode 1 nothing is refused.
    """
    commit = next((limit for limit in limits if limit.name == "CommitLimit"), None)
    if commit is not None:  # listed only while it is enforced, and read anew at each sample
        if counters.charge_bytes is None or commit.soft is None or commit.used is None:
            return
        charge, headroom = counters.charge_bytes, commit.soft - commit.used
        for area in areas or ():  # the counter is of what is writable
            charge += (area.end - area.start) * (_is_charged(area) - _is_writable(area))
        charge = max(charge, 0)
        values = {"charge": charge, "headroom": headroom, "mode": 2}
        rating = FindingRating.PROBLEM if charge > headroom else FindingRating.NOTE
        yield ProcessFinding("fork", rating, values)
        return
    mode, most = machine.commit.mode, machine.most_at_once_bytes
    largest = max((area.end - area.start for area in areas or () if _is_charged(area)), default=0)
    shared = counters.anonymous_bytes or 0  # with the child, until one of the two writes
    if mode == 0 and most is not None and largest > most:
        values = {"charge": largest, "headroom": most, "mode": mode}
        yield ProcessFinding("fork", FindingRating.PROBLEM, values)
    elif (mode == 1 or (mode == 0 and areas)) and shared >= GIB:
        yield ProcessFinding("fork", FindingRating.NOTE, {"resident": shared, "mode": mode})


def _is_writable(area: MemoryArea) -> bool:
    return area.permissions[1:4:2] == "wp"


def _is_charged(area: MemoryArea) -> bool:
    return _is_writable(area) if area.charged is None else area.charged


def _huge_pages(
    machine: MachineFacts, areas: Sequence[MemoryArea] | None, *, disabled: bool
) -> Iterator[ProcessFinding]:
    huge = machine.huge_pages
    if areas is None or huge.thp_mode is None:
        return
    could, may = possible_huge_bytes(areas, huge.pmd_bytes or 2 * MIB)
    have = sum(area.huge for area in areas)
    if could < _HUGE_LEAST or have >= could * _HUGE_SHARE:
        return
    values: dict[str, int | float | str | None] = {
        "huge": have,
        "possible": could,
        "thp_mode": huge.thp_mode,
        "asked": may,
        "disabled": int(disabled),
    }
    yield ProcessFinding("huge-pages", FindingRating.WARNING, values)


def _memory(counters: Sample) -> Iterator[ProcessFinding]:
    resident = counters.resident_bytes or 0
    swapped, tables = counters.swapped_bytes or 0, counters.page_table_bytes or 0
    if swapped >= max(resident * _SWAPPED_SHARE, MIB):
        yield ProcessFinding(
            "swapped", FindingRating.WARNING, {"swapped": swapped, "resident": resident}
        )
    if tables >= max(resident * _TABLES_SHARE, _TABLES_LEAST):
        yield ProcessFinding(
            "page-tables", FindingRating.WARNING, {"tables": tables, "resident": resident}
        )
