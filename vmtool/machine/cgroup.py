"""The memory limits of every control group above this process, version 1, 2 or both.

Containers set their limit anywhere on the way to the root, so the group that the process is in is
not enough. Facts: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Final

from vmtool.machine.facts import CgroupFacts, CgroupLevel
from vmtool.machine.files import parse_int, parse_pairs

if TYPE_CHECKING:
    from vmtool.machine.files import Files

# Version 1 writes "unlimited" as the largest page count in bytes, which depends on the page size.
_UNLIMITED: Final = 1 << 62
# In mountinfo a space, tab, newline or backslash of a path is an octal escape.
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted hierarchy that accounts for memory.

    Attributes:
        version: 1 or 2.
        directory: Where it is mounted.
        root: The group that is shown there; not ``/`` in a container without its own namespace.
    """

    version: int
    directory: str
    root: str


def read_cgroups(files: Files) -> CgroupFacts:
    """Return the memory limits of this process's groups, its own first."""
    paths = parse_membership(files.read("/proc/self/cgroup"))
    levels: list[CgroupLevel] = []
    for mount in parse_mounts(files.read("/proc/self/mountinfo")):
        path = paths.get(mount.version)
        if path is not None:
            for directory in ancestry(mount, path):
                level = _read_level(files, mount.version, directory)
                if level is not None:
                    levels.append(level)
    return CgroupFacts(tuple(levels))


def parse_membership(text: str | None) -> dict[int, str]:
    """Return the group that accounts for memory per version, from ``/proc/self/cgroup``."""
    paths: dict[int, str] = {}
    for line in (text or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        if fields[0] == "0" and not fields[1]:
            paths[2] = fields[2]
        elif "memory" in fields[1].split(","):
            paths[1] = fields[2]
    return paths


def parse_mounts(text: str | None) -> tuple[CgroupMount, ...]:
    """Return the hierarchies that can limit memory, from ``/proc/self/mountinfo``."""
    mounts: dict[int, CgroupMount] = {}
    for line in (text or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        root, directory = (_unescape(field) for field in fields[3:5])
        if kind[0] == "cgroup2":
            mounts.setdefault(2, CgroupMount(2, directory, root))
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
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


def _read_level(files: Files, version: int, directory: str) -> CgroupLevel | None:
    """Return one group's limits, or ``None`` where it has no memory controller."""
    limit_name, used_name, cache_key, events = (
        ("memory.max", "memory.current", "inactive_file", "memory.events")
        if version == 2
        else (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
            "memory.oom_control",
        )
    )
    limit_text = files.read(f"{directory}/{limit_name}")
    used = parse_int(files.read(f"{directory}/{used_name}"))
    if limit_text is None and used is None:
        return None
    high = files.read(f"{directory}/memory.high") if version == 2 else None
    stat = files.read(f"{directory}/memory.stat")
    return CgroupLevel(
        path=directory,
        version=version,
        limit_bytes=parse_limit(limit_text),
        high_bytes=parse_limit(high),
        used_bytes=used,
        reclaimable_bytes=parse_pairs(stat).get(cache_key, 0),
        oom_kills=parse_pairs(files.read(f"{directory}/{events}")).get("oom_kill"),
    )


def parse_limit(text: str | None) -> int | None:
    """Return a limit in bytes; ``max``, version 1's huge number and nonsense are ``None``."""
    value = parse_int(text)  # "max" is no number
    return None if value is None or value >= _UNLIMITED or value < 0 else value


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
