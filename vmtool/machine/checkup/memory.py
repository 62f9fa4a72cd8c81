"""RAM, swap, commit accounting and control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.bounds import FREE_RAM
from vmtool.machine.checkup.check import Check, note, ok, problem
from vmtool.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts

#: Less than this is not worth starting with.
_LITTLE: Final = 512 * MIB


def check_memory(facts: MachineFacts) -> list[Check]:
    """Return what bounds committed memory on the whole machine."""
    found = [_available(facts), _swap(facts), _overcommit(facts), _cgroup(facts), _kills(facts)]
    return [check for check in found if check is not None]


def _available(facts: MachineFacts) -> Check | None:
    total, available = facts.memory.total_bytes, facts.memory.available_bytes
    if total is None or available is None:
        if facts.system.os != "Linux":
            return None
        return note(
            "not-told",
            "what RAM there is and what limits this process is not told: /proc is missing or hidden",
            "mount -t proc proc /proc; until then vmtool takes 1 GiB for safe",
        )
    words = f"{format_size(available)} of {format_size(total)} RAM available"
    if available < min(_LITTLE, total // 10):
        return problem("available-memory", words, FREE_RAM)
    return ok("available-memory", words)


def _swap(facts: MachineFacts) -> Check | None:
    total = facts.memory.swap_total_bytes
    if total is not None and facts.system.os == "Darwin":
        return ok("swap", f"{format_size(total)} of swap; macOS makes more as it needs it")
    if total is None or facts.system.os != "Linux":
        return None  # Windows' page files are in its commit limit
    if total == 0:
        return note(
            "no-swap",
            "no swap: when RAM runs out a process is killed at once",
            "keep the budget below what is available; vmtool does so by default",
        )
    free = facts.memory.swap_free_bytes or 0
    words = f"{format_size(total - free)} of {format_size(total)} swap in use"
    if free < total // 10:
        return note("swap-full", words, "measured latencies will include swapping; free some RAM")
    return ok("swap", words)


def _overcommit(facts: MachineFacts) -> Check | None:
    commit = facts.commit
    if commit.enforced:
        return _commit_limit_of_windows(facts)
    if commit.mode is None:
        return None
    if commit.mode == 1:
        return note(
            "always-overcommit",
            "vm.overcommit_memory is 1: no commit is ever refused, and the OOM killer comes later",
            "sysctl -w vm.overcommit_memory=0",
        )
    if not commit.binds or commit.headroom_bytes is None:
        most = facts.most_at_once_bytes
        words = "vm.overcommit_memory is 0: only more than all RAM and swap at once is refused"
        if most is not None:
            words += f", {format_size(most)}"
        return ok("overcommit", words)
    limit, headroom = commit.limit_bytes or 0, commit.headroom_bytes
    words = (
        f"vm.overcommit_memory is 2 and {format_size(max(headroom, 0))} of the commit limit of "
        f"{format_size(limit)} is left"
    )
    remedy = "sysctl -w vm.overcommit_ratio=95, add swap, or sysctl -w vm.overcommit_memory=0"
    if headroom < max(GIB, limit // 20):
        return problem("commit-limit", words, remedy)
    return note("commit-limit", words + "; writable reservations count as well", remedy)


def _commit_limit_of_windows(facts: MachineFacts) -> Check | None:
    limit, headroom = facts.commit.limit_bytes, facts.commit.headroom_bytes
    if limit is None or headroom is None:
        return None
    words = (
        f"{format_size(max(headroom, 0))} of the commit limit of {format_size(limit)} is left; "
        "what is committed counts, touched or not, and error 1455 comes when it is reached"
    )
    if headroom < max(GIB, limit // 20):
        remedy = "enlarge the page file (System Properties, Advanced, Performance), or commit less"
        return problem("commit-limit", words, remedy)
    return ok("commit-limit", words)


def _cgroup(facts: MachineFacts) -> Check | None:
    if not facts.cgroup.levels:
        return None
    level = facts.cgroup.tightest
    total = facts.memory.total_bytes
    if level is None or level.bound_bytes is None or level.available_bytes is None:
        return ok("cgroup-limit", "no control group above this process limits memory")
    if total is not None and level.bound_bytes >= total:
        return ok("cgroup-limit", f"the control group {level.path} allows more than there is RAM")
    ram = "" if total is None else f", although there is {format_size(total)} of RAM"
    words = (
        f"{format_size(level.available_bytes)} left of the {format_size(level.bound_bytes)} of "
        f"control group {level.path} (v{level.version}){ram}; beyond it a process is killed"
    )
    name = "memory.max" if level.version == 2 else "memory.limit_in_bytes"
    if level.high_bytes is not None and level.bound_bytes == level.high_bytes:
        name = "memory.high"
    remedy = f"raise {level.path}/{name}, or the memory limit of the container or unit"
    if level.available_bytes < min(_LITTLE, level.bound_bytes // 10):
        return problem("cgroup-limit", words, remedy)
    return note("cgroup-limit", words, remedy)


def _kills(facts: MachineFacts) -> Check | None:
    here = sum(level.oom_kills or 0 for level in facts.cgroup.levels[:1])
    machine = facts.memory.oom_kills
    if here:
        return note(
            "oom-kills",
            f"{here:,} processes of this control group were killed for lack of memory",
            "raise the limit of the group, or use a smaller --budget",
        )
    if machine is None:
        return None
    if machine:
        return note(
            "oom-kills",
            f"{machine:,} processes were killed for lack of memory since the machine started",
            "`dmesg | grep -i 'killed process'` names them",
        )
    return ok("oom-kills", "no process was killed for lack of memory")
