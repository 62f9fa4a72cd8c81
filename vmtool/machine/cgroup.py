"""The limits of every control group above this process, version 1, 2 or both.

Containers set their limit anywhere on the way to the root, so the group that the process is in is
not enough. Facts: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Final

from vmtool.machine.facts import CgroupFacts, CgroupLevel, GroupLimit
from vmtool.machine.files import parse_int, parse_pairs, parse_pressure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.machine.files import Files

# Version 1 writes "unlimited" as the largest page count in bytes, which depends on the page size.
_UNLIMITED: Final = 1 << 62
# In mountinfo a space, tab, newline or backslash of a path is an octal escape.
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted hierarchy that has a controller.

    Attributes:
        version: 1 or 2.
        directory: Where it is mounted.
        root: The group that is shown there; not ``/`` in a container without its own namespace.
    """

    version: int
    directory: str
    root: str


#: Files of the controllers of tasks and of reserved huge pages, by version: limit and use.
_TASKS: Final = {1: ("pids.max", "pids.current"), 2: ("pids.max", "pids.current")}
_HUGETLB: Final = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}
_HUGETLB_FILE: Final = re.compile(r"hugetlb\.([0-9]+)([KMG])B\.(?:max|limit_in_bytes)")
_UNITS: Final = {"K": 10, "M": 20, "G": 30}


def read_cgroups(files: Files, process: str = "self") -> CgroupFacts:
    """Return the limits of the groups of a process, its own first.

    Args:
        files: Where the kernel's files are read.
        process: Its number; ``self`` is this process.
    """
    return CgroupFacts(
        levels=tuple(
            level
            for version, directory in _directories(files, "memory", process)
            if (level := read_level(files, version, directory)) is not None
        ),
        tasks=_read_tasks(files, process),
        huge_pages=_read_huge_pages(files, process),
    )


def _directories(files: Files, controller: str, process: str) -> list[tuple[int, str]]:
    """Return version and directory of every group above a process that has *controller*."""
    paths = parse_membership(files.read(f"/proc/{process}/cgroup"), controller)
    mounts = parse_mounts(files.read("/proc/self/mountinfo"), controller)
    return [
        (mount.version, directory)
        for mount in mounts
        if mount.version in paths
        for directory in ancestry(mount, paths[mount.version])
    ]


def _read_tasks(files: Files, process: str) -> GroupLimit | None:
    found = []
    for version, directory in _directories(files, "pids", process):
        limit_name, used_name = _TASKS[version]
        limit = parse_limit(files.read(f"{directory}/{limit_name}"))
        used = parse_int(files.read(f"{directory}/{used_name}"))
        if limit is not None and used is not None:
            found.append(GroupLimit(directory, limit, used))
    return min(found, key=_left, default=None)


def _read_huge_pages(files: Files, process: str) -> tuple[GroupLimit, ...]:
    tightest: dict[int, GroupLimit] = {}
    for version, directory in _directories(files, "hugetlb", process):
        limit_name, used_name = _HUGETLB[version]
        for name in files.names(directory):
            match = _HUGETLB_FILE.fullmatch(name)
            if match is None:
                continue
            page = int(match[1]) << _UNITS[match[2]]
            stem = f"{directory}/{name.removesuffix(limit_name)}"
            limit = parse_limit(files.read(f"{stem}{limit_name}"))
            used = parse_int(files.read(f"{stem}{used_name}")) or 0
            if limit is None:
                continue
            found = GroupLimit(directory, limit, used, page)
            tightest[page] = min(tightest.get(page, found), found, key=_left)
    return tuple(tightest[page] for page in sorted(tightest))


def _left(limit: GroupLimit) -> int:
    return limit.limit - limit.used


def parse_membership(text: str | None, controller: str = "memory") -> dict[int, str]:
    """Return the group that has *controller* per version, from ``/proc/self/cgroup``."""
    paths: dict[int, str] = {}
    for line in (text or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        if fields[0] == "0" and not fields[1]:
            paths[2] = fields[2]
        elif controller in fields[1].split(","):
            paths[1] = fields[2]
    return paths


def parse_mounts(text: str | None, controller: str = "memory") -> tuple[CgroupMount, ...]:
    """Return the hierarchies that can have *controller*, from ``/proc/self/mountinfo``."""
    mounts: dict[int, CgroupMount] = {}
    for line in (text or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        root, directory = (_unescape(field) for field in fields[3:5])
        if kind[0] == "cgroup2":
            mounts.setdefault(2, CgroupMount(2, directory, root))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            mounts.setdefault(1, CgroupMount(1, directory, root))
    return tuple(mounts.values())


def ancestry(mount: CgroupMount, path: str) -> tuple[str, ...]:
    """Return the directories from the group *path* up to what is mounted, deepest first.

    A group outside of what is mounted (``/../..``, or another subtree) is not visible; the mount's
    own directory then stands for the nearest ancestor that is.
    """
    root = mount.root.rstrip("/")
    if path.startswith("/..") or (root and path != root and not path.startswith(root + "/")):
        inside = ""
    else:
        inside = normpath(path[len(root) :]).strip("/.")
    directories = [mount.directory]
    for name in inside.split("/") if inside else []:
        directories.append(f"{directories[-1].rstrip('/')}/{name}")
    return tuple(reversed(directories))


def read_level(files: Files, version: int, directory: str) -> CgroupLevel | None:
    """Return one group's limits, or ``None`` where it has no memory controller."""
    if version == 2:
        limit_name, used_name, total = "memory.max", "memory.current", ""
        cache_name, events = "file", "memory.events"
    else:
        limit_name, used_name, total = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        cache_name, events = "total_cache", "memory.oom_control"
    limit_text = files.read(f"{directory}/{limit_name}")
    used = parse_int(files.read(f"{directory}/{used_name}"))
    if limit_text is None and used is None:
        return None
    stat = parse_pairs(files.read(f"{directory}/memory.stat"))
    counts = parse_pairs(files.read(f"{directory}/{events}"))
    return CgroupLevel(
        path=directory,
        version=version,
        limit_bytes=parse_limit(limit_text),
        high_bytes=parse_limit(files.read(f"{directory}/memory.high")) if version == 2 else None,
        used_bytes=used,
        cache_bytes=stat.get(cache_name),
        reclaimable_bytes=_reclaimable(stat, total),
        oom_kills=counts.get("oom_kill"),
        limit_hits=counts.get("max")
        if version == 2
        else parse_int(files.read(f"{directory}/memory.failcnt")),
        high_hits=counts.get("high"),
        pressure=parse_pressure(files.read(f"{directory}/memory.pressure")),
        under_oom=bool(counts.get("oom_kill_disable") and counts.get("under_oom")),
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


def parse_limit(text: str | None) -> int | None:
    """Return a limit in bytes; ``max``, version 1's huge number and nonsense are ``None``."""
    value = parse_int(text)  # "max" is no number
    return None if value is None or value >= _UNLIMITED or value < 0 else value


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
