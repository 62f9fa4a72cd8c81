"""Who killed a process with a signal: its CPU time, and the kernel's counters before and after."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from vmtool.memory.diagnosis import Diagnosis
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import CgroupLevel, MachineFacts

#: Linux counts ticks for the limit, so that a child may die a little before its exact time.
_TICKS_S: Final = 0.3


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
    limit = _cpu_limit_s()
    # First, as it is the child's own, while the counters are of all processes.
    if limit is not None and limit - cpu_s <= max(limit * 0.1, _TICKS_S):
        return _cpu_limit(limit, cpu_s)
    level = _grown_level(before, after)
    if level is not None:
        bound = "" if level.limit_bytes is None else f" of {format_size(level.limit_bytes)}"
        return Diagnosis(
            "cgroup-limit",
            f"the OOM killer ended it at the limit{bound} of control group {level.path}",
            "raise that limit, or use a smaller --budget",
        )
    if _grew(before.memory.oom_kills, after.memory.oom_kills):
        available = after.memory.available_bytes
        left = "" if available is None else f" ({format_size(available)} available afterwards)"
        return Diagnosis(
            "oom-kill",
            f"the OOM killer ended a process because the machine had no memory left{left}",
            "use a smaller --budget; `dmesg | grep -i 'killed process'` names the victim",
        )
    # On a busy machine the ticks run far ahead of the time that a child is told to have had.
    if limit is not None and cpu_s > limit / 2:
        return _cpu_limit(limit, cpu_s)
    return Diagnosis(
        "killed",
        "somebody sent it SIGKILL: the kernel counted no lack of memory",
        "look for a supervisor, a time limit or kill -9",
    )


def _cpu_limit(limit: int, cpu_s: float) -> Diagnosis:
    return Diagnosis(
        "cpu-limit",
        f"RLIMIT_CPU is {limit} s, and it had used {cpu_s:.2f} s of processor time",
        "ulimit -t unlimited, or a shorter --duration",
    )


def _cpu_limit_s() -> int | None:
    """Return the CPU time that this process and each child of it may use, or ``None``."""
    if sys.platform == "win32":
        return None
    else:  # mypy needs both branches spelled out
        import resource  # absent on Windows

        soft = resource.getrlimit(resource.RLIMIT_CPU)[0]
        return None if soft == resource.RLIM_INFINITY else soft


def _grown_level(before: MachineFacts, after: MachineFacts) -> CgroupLevel | None:
    """Return the limited group in which a process was killed meanwhile, the tightest first."""
    counts = {level.path: level.oom_kills for level in before.cgroup.levels}
    grown = [
        level
        for level in after.cgroup.levels
        if level.limit_bytes is not None and _grew(counts.get(level.path), level.oom_kills)
    ]
    return min(grown, key=lambda level: level.limit_bytes or 0, default=None)


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before
