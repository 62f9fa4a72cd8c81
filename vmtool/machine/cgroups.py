"""The control groups above this process: limits, use and pressure, in version 1, 2 or both.

Containers set their limit anywhere on the way to the root, so the group that the process is in is
not enough. Facts: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmtool.machine.kernel_files import MemoryPressure, parse_int, parse_pairs, parse_pressure
from vmtool.memory.cgroup_paths_and_hugetlb import group_directories, huge_page_groups, parse_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.machine.kernel_files import Files


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """One control group on the way from this process to the root.

    Attributes:
        path: Its directory.
        version: 1 or 2.
        limit_bytes: ``memory.max`` (v1: ``memory.limit_in_bytes``); ``None`` is unlimited.
        high_bytes: ``memory.high``, above which v2 throttles; ``None`` is unlimited.
        used_bytes: Memory charged to it and to the groups below it.
        cache_bytes: File cache in that, without shared memory and tmpfs.
        reclaimable_bytes: The part of the cache that the kernel drops first: neither dirty, nor
            being written back, nor mapped, nor locked.
        oom_kills: Processes in it (version 2: or below it) that the OOM killer ended, for whatever
            limit; which one it was shows in *limit_hits*.
        oom_killer_off: Whether tasks in it wait at the limit, and are not killed (version 1).
        under_oom: Whether they wait now, at this group's limit or at that of one above it.
        limit_hits: How often it was at the limit, and had to reclaim (``max`` of
            ``memory.events.local``; without that file, also for groups below it).
        high_hits: How often it was above high, and was throttled (``high`` there).
        pressure: How long its tasks waited for memory; ``None`` where the kernel does not count it.
    """

    path: str
    version: int
    limit_bytes: int | None = None
    high_bytes: int | None = None
    used_bytes: int | None = None
    reclaimable_bytes: int = 0
    oom_kills: int | None = None
    cache_bytes: int | None = None
    limit_hits: int | None = None
    high_hits: int | None = None
    pressure: MemoryPressure | None = None
    oom_killer_off: bool = False
    under_oom: bool = False

    @property
    def throttles(self) -> bool:
        """Whether the bound is high, above which tasks are slowed down and never killed."""
        return (
            self.high_bytes is not None and self.bound_bytes == self.high_bytes != self.limit_bytes
        )

    @property
    def bound_bytes(self) -> int | None:
        """The lower of limit and high; ``None`` is unlimited."""
        bounds = [b for b in (self.limit_bytes, self.high_bytes) if b is not None]
        return min(bounds, default=None)

    @property
    def available_bytes(self) -> int | None:
        """What can still be charged before the bound; ``None`` is unlimited."""
        if self.bound_bytes is None:
            return None
        hard = max((self.used_bytes or 0) - self.reclaimable_bytes, 0)
        return max(self.bound_bytes - hard, 0)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The tightest limit of one thing in the control groups that this process is in.

    Attributes:
        path: The directory of the group.
        limit: The limit: of tasks, or in bytes.
        used: What is used of it.
        page_bytes: For reserved huge pages, their size.
    """

    path: str
    limit: int
    used: int
    page_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """The limits of every control group that this process is in.

    Attributes:
        levels: Memory, from the process's own group up to the root; both versions on hybrid systems.
        tasks: Processes and threads (``pids.max``); ``None`` is unlimited.
        huge_pages: Reserved huge pages (``hugetlb``), by size; a page above it is SIGBUS.
    """

    levels: tuple[CgroupLevel, ...] = ()
    tasks: GroupLimit | None = None
    huge_pages: tuple[GroupLimit, ...] = ()

    @property
    def tightest(self) -> CgroupLevel | None:
        """The level that leaves least, or ``None`` if no level is limited."""
        limited = [level for level in self.levels if level.available_bytes is not None]
        return min(limited, key=lambda level: level.available_bytes or 0, default=None)

    @property
    def available_bytes(self) -> int | None:
        """What the tightest level leaves; ``None`` is unlimited."""
        return None if self.tightest is None else self.tightest.available_bytes


def read_cgroups(files: Files, process: str = "self") -> CgroupFacts:
    """Return the limits of the groups of a process, its own first.

    Args:
        files: Where the kernel's files are read.
        process: Its number; ``self`` is this process.
    """
    return CgroupFacts(
        levels=tuple(
            level
            for version, directory in group_directories(files, "memory", process)
            if (level := read_level(files, version, directory)) is not None
        ),
        tasks=_read_tasks(files, process),
        huge_pages=_read_huge_pages(files, process),
    )


def _read_tasks(files: Files, process: str) -> GroupLimit | None:
    found = []
    for _version, directory in group_directories(files, "pids", process):
        limit = parse_limit(files.read(f"{directory}/pids.max"))
        used = parse_int(files.read(f"{directory}/pids.current"))
        if limit is not None and used is not None:
            found.append(GroupLimit(directory, limit, used))
    return min(found, key=_left, default=None)


def _read_huge_pages(files: Files, process: str) -> tuple[GroupLimit, ...]:
    tightest: dict[int, GroupLimit] = {}
    for page, directory, limit, used in huge_page_groups(files, process):
        found = GroupLimit(directory, limit, used, page)
        tightest[page] = min(tightest.get(page, found), found, key=_left)
    return tuple(tightest[page] for page in sorted(tightest))


def _left(limit: GroupLimit) -> int:
    return limit.limit - limit.used


def read_level(files: Files, version: int, directory: str) -> CgroupLevel | None:
    """Return one group's limits, or ``None`` where it has no memory controller."""
    if version == 2:
        limit_name, used_name, total = "memory.max", "memory.current", ""
        cache_name, shared_name, events = "file", "shmem", "memory.events"
    else:
        limit_name, used_name, total = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        cache_name, shared_name, events = "total_cache", "total_shmem", "memory.oom_control"
    limit_text = files.read(f"{directory}/{limit_name}")
    used = parse_int(files.read(f"{directory}/{used_name}"))
    if limit_text is None and used is None:
        return None
    stat = parse_pairs(files.read(f"{directory}/memory.stat"))
    counts = parse_pairs(files.read(f"{directory}/{events}"))
    # Of this group alone, without those below it (Linux 5.2).
    own = parse_pairs(files.read(f"{directory}/memory.events.local")) or counts
    # The kernel counts shared memory and tmpfs as cache, but drops none of it.
    cache = stat[cache_name] - stat.get(shared_name, 0) if cache_name in stat else None
    return CgroupLevel(
        path=directory,
        version=version,
        limit_bytes=parse_limit(limit_text),
        high_bytes=parse_limit(files.read(f"{directory}/memory.high")) if version == 2 else None,
        used_bytes=used,
        cache_bytes=cache,
        reclaimable_bytes=_reclaimable(stat, total),
        oom_kills=counts.get("oom_kill"),
        limit_hits=own.get("max")
        if version == 2
        else parse_int(files.read(f"{directory}/memory.failcnt")),
        high_hits=own.get("high"),
        pressure=parse_pressure(files.read(f"{directory}/memory.pressure")),
        oom_killer_off=bool(counts.get("oom_kill_disable")),
        under_oom=bool(counts.get("under_oom")),
    )


def _reclaimable(stat: Mapping[str, int], total: str) -> int:
    """Return the file cache that can be dropped at once.

    Pages of files are on two lists, and reading a file twice makes them active; the kernel reclaims
    from both (docs/platform-facts.md#linux-cgroup-cache). Dirty pages must be written first, and mapped ones are in use. (Locked pages are on
    a list of their own, as are those of tmpfs.)

    Args:
        stat: ``memory.stat``.
        total: What a name begins with in version 1 where it includes the groups below.
    """
    mapped, dirty = ("file_mapped", "file_dirty") if not total else ("mapped_file", "dirty")
    writeback = "file_writeback" if not total else "writeback"
    listed = sum(stat.get(f"{total}{name}", 0) for name in ("inactive_file", "active_file"))
    in_use = sum(stat.get(f"{total}{name}", 0) for name in (mapped, dirty, writeback))
    return max(listed - in_use, 0)
