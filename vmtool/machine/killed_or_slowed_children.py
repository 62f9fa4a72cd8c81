"""Why a child was killed or makes no progress: limits, counters, its state, and memory.high."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import FileIO
from typing import TYPE_CHECKING, Final

from vmtool.machine.cgroups import read_level
from vmtool.machine.kernel_files import KernelFiles, parse_pairs
from vmtool.memory.cgroup_paths_and_hugetlb import parse_limit
from vmtool.memory.errors import Diagnosis
from vmtool.memory.rlimits_and_privileges import how_to_raise, soft_limit
from vmtool.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.machine.cgroups import CgroupLevel
    from vmtool.machine.facts import MachineFacts
    from vmtool.machine.kernel_files import Files


#: Linux counts ticks for the limit, so that a child may die a little before its exact time.
_TICKS_S: Final = 0.3
#: A group that reached its limit so often since a child started did nothing but reclaim
#: (docs/platform-facts.md#linux-cgroup-high).
_THRASHING: Final = 100
#: All tasks waiting for memory for at least this percentage of the last 10 s is a cause.
_STALLED: Final = 20.0
#: The kernel delays a task by 2 s at most (``MEMCG_MAX_HIGH_DELAY_JIFFIES`` in mm/memcontrol.c), so
#: that a group which counted nothing for so long delays none.
_QUIET_NS: Final = 5 * 10**9
_READ: Final = 512
#: A child that vmtool itself killed, as after a second Ctrl-C.
KILLED_BY_VMTOOL: Final = Diagnosis(
    "interrupted",
    "vmtool ended it after a second signal",
    "send one signal, and wait for the partial result",
)


def ended_children_s() -> float:
    """Return the CPU time of all children that have been waited for (0 on Windows)."""
    times = os.times()
    return times.children_user + times.children_system


def diagnose_kill(before: MachineFacts, after: MachineFacts, cpu_s: float = 0.0) -> Diagnosis:
    """Return the likeliest reason why a child of this process got SIGKILL or SIGXCPU.

    Args:
        before: The facts before the child was started.
        after: The facts after it died.
        cpu_s: The CPU time that it had.
    """
    limit = soft_limit("RLIMIT_CPU")  # of this process and each child of it
    # First, as it is the child's own, while the counters are of all processes.
    if limit is not None and limit - cpu_s <= max(limit * 0.1, _TICKS_S):
        return _cpu_limit(limit, cpu_s)
    if _oom_killer_ran(before, after):
        level = _full_level(before, after)
        return _no_memory_left(after) if level is None else _cgroup_limit(level)
    # On a busy machine the ticks run far ahead of the time that a child is said to have had.
    if limit is not None and cpu_s > limit / 2:
        return _cpu_limit(limit, cpu_s)
    return Diagnosis(
        "killed",
        "another process sent SIGKILL: the kernel counted no OOM kill",
        "look for a supervisor, a time limit or kill -9",
    )


def diagnose_hang(before: MachineFacts, after: MachineFacts, state: str | None) -> Diagnosis:
    """Return the likeliest reason why a child makes no progress, while it still exists.

    Args:
        before: The facts before the child was started.
        after: The facts now.
        state: Its state, as :func:`read_state` returns it.
    """
    if state in {"T", "t"}:
        return Diagnosis(
            "stopped",
            "the process is stopped (state T), by SIGSTOP or a debugger",
            "kill -CONT continues a stopped process; find out what stops it",
        )
    waiting = _waiting_level(before, after)
    if waiting is not None:
        return Diagnosis(
            "cgroup-oom-disabled",
            f"control group {waiting.path} has no memory left{_limit_of(waiting)}, and its OOM "
            "killer is off (oom_kill_disable): anything that needs memory there waits",
            "raise that limit, use a smaller --budget, or "
            f"echo 0 > {waiting.path}/memory.oom_control",
        )
    for level, later in _pairs(before, after):
        hits = _growth(level.limit_hits, later.limit_hits)
        if hits >= _THRASHING and later.limit_bytes is not None:
            return Diagnosis(
                "cgroup-reclaim",
                f"control group {later.path} reached its limit of {format_size(later.limit_bytes)} "
                f"{count_of(hits, 'time')} and keeps reclaiming memory{_waited(later)}",
                "raise that limit, or use a smaller --budget",
            )
        throttled = _growth(level.high_hits, later.high_hits) >= _THRASHING
        if throttled and later.high_bytes is not None:
            return _diagnose_throttling(level, later)
    pressure = after.memory.pressure
    if pressure is not None and pressure.full_percent >= _STALLED:
        return Diagnosis(
            "memory-pressure",
            "the machine is short of memory: all tasks waited for it "
            f"for {pressure.full_percent:.0f} % of the last 10 s",
            "use a smaller --budget, or free RAM",
        )
    if state == "D":
        return Diagnosis(
            "uninterruptible",
            "the process waits in the kernel (state D): for a disk, a device or its driver",
            "look at `dmesg` for hung tasks; raise --hang-timeout if the operation is large",
        )
    return Diagnosis(
        "hang",
        "the operation did not end: a lock, reclaim, or a device that does not answer",
        "look at `dmesg` for hung tasks; raise --hang-timeout if the operation is large",
    )


def _diagnose_throttling(before: CgroupLevel, after: CgroupLevel) -> Diagnosis:
    """Return that a group is above its memory.high.

    Args:
        before: The group before the child was started.
        after: The same now.
    """
    used = "" if after.used_bytes is None else f" with {format_size(after.used_bytes)} in use"
    times = count_of(_growth(before.high_hits, after.high_hits), "time")
    return Diagnosis(
        "cgroup-throttled",
        f"control group {after.path} is above memory.high, {format_size(after.high_bytes or 0)},"
        f"{used}: the kernel slowed its tasks down {times}{_waited(after)}",
        "raise memory.high, or use a smaller --budget",
    )


def read_state(pid: int, files: Files) -> str | None:
    """Return the state of a process as one letter (``man 5 proc_pid_stat``), or ``None``."""
    text = files.read(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The name in parentheses may itself hold parentheses and blanks.
    return text.rpartition(")")[2].split()[:1][0] if ")" in text else None


class HighWatch:
    """Follows the groups that have a memory.high, without allocating memory.

    Above it the kernel slows down whoever takes memory there, for up to 2 s a time: this process too,
    and it drops the code of all of them first (docs/platform-facts.md#linux-cgroup-high). So the files
    are opened before, and the code of this process is locked.

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
        return _diagnose_throttling(group.level, later)

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


def _waiting_level(before: MachineFacts, after: MachineFacts) -> CgroupLevel | None:
    """Return the group in which tasks wait for memory, as its OOM killer is off.

    This process may be in it as well, and opening a file then fails for lack of memory, so that
    nothing can be read any more (docs/platform-facts.md#linux-cgroup-oom).
    """
    now = {level.path: level for level in after.cgroup.levels}
    for level in reversed(before.cgroup.levels):  # a group marks all groups below it as well
        later = now.get(level.path)
        waits = later is None or later.used_bytes is None or later.under_oom
        if level.oom_killer_off and level.limit_bytes is not None and waits:
            return level
    return None


def _limit_of(level: CgroupLevel) -> str:
    return "" if level.limit_bytes is None else f" of {format_size(level.limit_bytes)}"


def _waited(level: CgroupLevel) -> str:
    if level.pressure is None or level.pressure.some_percent < 1:
        return ""
    return f"; its tasks waited {level.pressure.some_percent:.0f} % of the last 10 s"


def _cpu_limit(limit: int, cpu_s: float) -> Diagnosis:
    return Diagnosis(
        "cpu-limit",
        f"RLIMIT_CPU is {limit} s, and it had used {cpu_s:.2f} s of processor time",
        f"{how_to_raise('RLIMIT_CPU')}, or make the run shorter",
    )


def _pairs(before: MachineFacts, after: MachineFacts) -> list[tuple[CgroupLevel, CgroupLevel]]:
    """Return the groups before and after, from the process's own up to the root."""
    earlier = {level.path: level for level in before.cgroup.levels}
    return [(earlier[level.path], level) for level in after.cgroup.levels if level.path in earlier]


def _oom_killer_ran(before: MachineFacts, after: MachineFacts) -> bool:
    """Return whether the OOM killer ended a process meanwhile, whatever made it.

    Where its counter grew says nothing about why: in version 1 it is only the victim's own group,
    in version 2 every group above it, also when the machine itself ran out of memory
    (docs/platform-facts.md#linux-cgroup-oom).
    """
    return _growth(before.memory.oom_kills, after.memory.oom_kills) > 0 or any(
        _growth(level.oom_kills, later.oom_kills) for level, later in _pairs(before, after)
    )


def _full_level(before: MachineFacts, after: MachineFacts) -> CgroupLevel | None:
    """Return the group that was at its limit meanwhile, the tightest first.

    Before Linux 5.2, version 2 counts what happens below a group too, where limits are tighter if
    they are met.
    """
    grown = [
        later
        for level, later in _pairs(before, after)
        if later.limit_bytes is not None and _growth(level.limit_hits, later.limit_hits)
    ]
    return min(grown, key=lambda level: level.limit_bytes or 0, default=None)


def _cgroup_limit(level: CgroupLevel) -> Diagnosis:
    return Diagnosis(
        "cgroup-limit",
        f"the OOM killer ended it at the limit of {format_size(level.limit_bytes or 0)} of control "
        f"group {level.path}",
        "raise that limit, or use a smaller --budget",
    )


def _no_memory_left(after: MachineFacts) -> Diagnosis:
    available, total = after.memory.available_bytes, after.memory.total_bytes
    left = "" if available is None else f" ({format_size(available)} available afterwards)"
    # A container does not see the groups above its own, such as a pod's.
    hidden = available is not None and total is not None and available > total // 2
    where = "the machine, or a control group that is not visible here," if hidden else "the machine"
    return Diagnosis(
        "oom-kill",
        f"the OOM killer ended a process because {where} had no memory left{left}",
        "use a smaller --budget; `dmesg | grep -i 'killed process'` names the victim",
    )


def _growth(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(after - before, 0)
