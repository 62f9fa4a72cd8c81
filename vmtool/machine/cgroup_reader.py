"""The limits of every control group above this process, version 1, 2 or both.

Containers set their limit anywhere on the way to the root, so the group that the process is in is
not enough. Facts: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.cgroup_facts import CgroupFacts, CgroupLevel, GroupLimit
from vmtool.machine.kernel_files import parse_int, parse_pairs, parse_pressure
from vmtool.memory.cgroup_paths import group_directories, huge_page_groups, parse_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.machine.kernel_files import Files


#: Files of the controller of tasks, by version: limit and use.
_TASKS: Final = {1: ("pids.max", "pids.current"), 2: ("pids.max", "pids.current")}


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
    for version, directory in group_directories(files, "pids", process):
        limit_name, used_name = _TASKS[version]
        limit = parse_limit(files.read(f"{directory}/{limit_name}"))
        used = parse_int(files.read(f"{directory}/{used_name}"))
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
