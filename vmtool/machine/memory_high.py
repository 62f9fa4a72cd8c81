"""Whether a control group of this process is above its memory.high, read without allocating memory.

Above it the kernel slows down whoever takes memory there, for up to 2 s a time: this process too,
and it drops the code of all of them first (docs/platform-facts.md#linux-cgroup-high). So the files
are opened before, and the code of this process is locked.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import FileIO
from typing import TYPE_CHECKING, Final

from vmtool.machine.cgroups import read_level
from vmtool.machine.kernel_files import KernelFiles, parse_pairs
from vmtool.machine.killed_children import diagnose_throttling
from vmtool.memory.cgroup_paths import parse_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.machine.cgroups import CgroupLevel
    from vmtool.memory.errors import Diagnosis

#: The kernel delays a task by 2 s at most (``MEMCG_MAX_HIGH_DELAY_JIFFIES`` in mm/memcontrol.c), so
#: that a group which counted nothing for so long delays none.
_QUIET_NS: Final = 5 * 10**9
_READ: Final = 512


class HighWatch:
    """Follows the groups that have a memory.high.

    Args:
        levels: All groups of this process, before the children start that it watches.
    """

    def __init__(self, levels: Iterable[CgroupLevel]) -> None:
        self._open = ExitStack()
        self._groups = [
            group
            for level in levels
            if level.high_bytes is not None and (group := self._follow(level)) is not None
        ]
        if sys.platform == "linux" and self._groups:
            from vmtool.memory.posix.locking import lock_code

            lock_code()

    def _follow(self, level: CgroupLevel) -> _Group | None:
        try:
            current, high, events = (
                self._open.enter_context(FileIO(f"{level.path}/memory.{name}"))
                for name in ("current", "high", "events")
            )
        except OSError:
            return None
        return _Group(level, current, high, events)

    def slowed_ns(self, now_ns: int) -> int:
        """Return for how long a group has slowed its tasks down without a break.

        Args:
            now_ns: The time, by a monotonic clock.
        """
        return max((group.slowed_ns(now_ns) for group in self._groups), default=0)

    def diagnose(self) -> Diagnosis:
        """Return what slows this process down; at least one group must do so."""
        group = min(self._groups, key=lambda group: group.since_ns or sys.maxsize)
        later = read_level(KernelFiles(), 2, group.level.path) or group.level
        # Meanwhile the children may have been ended.
        later = replace(later, used_bytes=group.used, high_bytes=group.high)
        return diagnose_throttling(group.level, later)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


@dataclass(slots=True)
class _Group:
    """One group: its facts before, its open files, and what they last said."""

    level: CgroupLevel
    current_file: FileIO
    high_file: FileIO
    events_file: FileIO
    used: int | None = None
    high: int | None = None
    hits: int | None = None
    hit_ns: int = 0
    since_ns: int | None = None

    def slowed_ns(self, now_ns: int) -> int:
        self.used = parse_limit(_read(self.current_file))
        self.high = parse_limit(_read(self.high_file))
        hits = parse_pairs(_read(self.events_file)).get("high")
        if hits != self.hits:
            self.hits, self.hit_ns = hits, now_ns
        above = self.used is not None and self.high is not None and self.used > self.high
        if not above or now_ns - self.hit_ns > _QUIET_NS:
            self.since_ns = None
            return 0
        if self.since_ns is None:
            self.since_ns = now_ns
        return now_ns - self.since_ns


def _read(file: FileIO) -> str:
    try:
        file.seek(0)
        return file.read(_READ).decode("ascii", "replace")
    except OSError:  # the group was removed
        return ""
