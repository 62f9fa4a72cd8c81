"""Who killed a process with SIGKILL: the kernel's counters before and after tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory.diagnosis import Diagnosis
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import CgroupLevel, MachineFacts


def diagnose_kill(before: MachineFacts, after: MachineFacts) -> Diagnosis:
    """Return the likeliest reason why a child of this process got SIGKILL.

    Args:
        before: The facts before the child was started.
        after: The facts after it died.
    """
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
    return Diagnosis(
        "killed",
        "somebody sent it SIGKILL: the kernel counted no lack of memory",
        "look for a supervisor, a time limit or kill -9",
    )


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
