"""The control groups above a process: where they are, and their limits on reserved huge pages.

``machine`` reads all other limits of theirs; these are also the cause of a failed call. Facts:
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/hugetlb.rst of Linux.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

# Version 1 writes "unlimited" as the largest page count in bytes, which depends on the page size.
_UNLIMITED: Final = 1 << 62
# In mountinfo a space, tab, newline or backslash of a path is an octal escape.
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}
#: Files of the controller of reserved huge pages, by version: limit and use.
_HUGETLB: Final = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}
_HUGETLB_FILE: Final = re.compile(r"hugetlb\.([0-9]+)([KMG])B\.(?:max|limit_in_bytes)")
_UNITS: Final = {"K": 10, "M": 20, "G": 30}


class GroupFiles(Protocol):
    """Reads files; one that is missing or forbidden is ``None`` or empty, never an error."""

    def read(self, path: str) -> str | None:
        """Return the text of *path*, or ``None`` if it can't be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in the directory *path*, none if it can't be listed."""


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


def group_directories(
    files: GroupFiles, controller: str, process: str = "self"
) -> list[tuple[int, str]]:
    """Return version and directory of every group above a process that has *controller*."""
    paths = parse_membership(files.read(f"/proc/{process}/cgroup"), controller)
    mounts = parse_mounts(files.read("/proc/self/mountinfo"), controller)
    return [
        (mount.version, directory)
        for mount in mounts
        if mount.version in paths
        for directory in ancestry(mount, paths[mount.version])
    ]


def huge_page_groups(
    files: GroupFiles, process: str = "self"
) -> Iterator[tuple[int, str, int, int]]:
    """Yield page size, directory, limit and use of each group that limits reserved huge pages."""
    for version, directory in group_directories(files, "hugetlb", process):
        limit_name, used_name = _HUGETLB[version]
        for name in files.names(directory):
            match = _HUGETLB_FILE.fullmatch(name)
            if match is None:
                continue
            stem = f"{directory}/{name.removesuffix(limit_name)}"
            limit = parse_limit(files.read(f"{stem}{limit_name}"))
            if limit is not None:
                used = _parse_int(files.read(f"{stem}{used_name}")) or 0
                yield int(match[1]) << _UNITS[match[2]], directory, limit, used


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


def parse_limit(text: str | None) -> int | None:
    """Return a limit in bytes; ``max``, version 1's huge number and nonsense are ``None``."""
    value = _parse_int(text)  # "max" is no number
    return None if value is None or value >= _UNLIMITED or value < 0 else value


def _parse_int(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
