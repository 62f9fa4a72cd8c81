"""Every limit that virtual memory can meet on this machine: one list of rules over its facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor_findings import Finding
from vmtool.machine.facts import FREE_RAM, safe_part
from vmtool.machine.preflight import (
    WORKER_BYTES,
    descriptors_left,
    group_limit_file,
    safe_mappings,
    tasks_left,
)
from vmtool.memory.rlimits import how_to_raise, lift_address_space_limit
from vmtool.units import GIB, KIB, MIB, count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.machine.cgroup_facts import CgroupLevel, GroupLimit, MemoryPressure
    from vmtool.machine.facts import MachineFacts


#: What `stress` and `kv-replay` have loaded when they plan, beside what doctor has (5 to 6 MiB).
_LOADED_LATER: Final = 6 * MIB


def examine(facts: MachineFacts, *, loaded_later_bytes: int = _LOADED_LATER) -> tuple[Finding, ...]:
    """Return a rating of everything that *facts* say; what is unknown is not rated.

    Args:
        facts: The machine.
        loaded_later_bytes: What a process that makes a plan has loaded beside this one.
    """
    ratings = (
        _cgroup(facts, loaded_later_bytes) if rule is _cgroup else rule(facts) for rule in _RULES
    )
    return tuple(finding for finding in ratings if finding is not None)


# Memory that the whole machine, or a control group, can give
#: With less available than this, ordinary use fails.
_MIN_AVAILABLE: Final = 512 * MIB
#: With less than this safe to commit `stress` is refused: a worker, and half of the rest, its
#: budget, is not one granule of 2 MiB.
_MIN_SAFE: Final = WORKER_BYTES + 4 * MIB
#: A share of time, in percent, from which on waiting for memory is worth saying.
_WAITING: Final = 1.0


def _pressure(pressure: MemoryPressure) -> str:
    return f"; tasks waited for memory {pressure.some_percent:.0f} % of the last 10 s"


def _available(facts: MachineFacts) -> Finding | None:
    total, available = facts.memory.total_bytes, facts.memory.available_bytes
    if total is None or available is None:
        if facts.system.os != "Linux":
            return None
        return Finding.note(
            "unknown-memory",
            "RAM and the limits of this process are unknown: /proc is missing or hidden",
            "mount -t proc proc /proc; until then vmtool treats 1 GiB as safe",
        )
    words = f"{format_size(available)} of {format_size(total)} RAM available"
    if facts.memory.arc_bytes:
        words += f", and {format_size(facts.memory.arc_bytes)} of ZFS' cache"
        available += facts.memory.arc_bytes
    if facts.memory.pressure is not None and facts.memory.pressure.some_percent >= _WAITING:
        words += _pressure(facts.memory.pressure)
    if available < min(_MIN_AVAILABLE, total // 10):
        return Finding.problem("available-memory", words, FREE_RAM)
    return Finding.ok("available-memory", words)


def _swap(facts: MachineFacts) -> Finding | None:
    total = facts.memory.swap_total_bytes
    if total is not None and facts.system.os == "Darwin":
        return Finding.ok("swap", f"{format_size(total)} of swap; macOS makes more as it needs it")
    if total is None or facts.system.os != "Linux":
        return None  # Windows' page files are in its commit limit
    if total == 0:
        return Finding.note(
            "no-swap",
            "no swap: when RAM runs out, a process is killed at once",
            "keep the budget below what is available; vmtool does so by default",
        )
    free = facts.memory.swap_free_bytes or 0
    words = f"{format_size(total - free)} of {format_size(total)} swap in use"
    if free < total // 10:
        return Finding.note(
            "swap-full", words, "measured latencies will include swapping; free some RAM"
        )
    return Finding.ok("swap", words)


def _overcommit(facts: MachineFacts) -> Finding | None:
    commit = facts.commit
    if commit.mode is None:
        return None
    if commit.mode == 1:
        return Finding.note(
            "always-overcommit",
            "vm.overcommit_memory is 1: no commit is refused, and the OOM killer ends a process when "
            "RAM runs out",
            "sysctl -w vm.overcommit_memory=0",
        )
    if not commit.is_enforced or commit.headroom_bytes is None:
        most = facts.most_at_once_bytes
        words = "vm.overcommit_memory is 0: only a commit larger than all RAM and swap is refused"
        if most is not None:
            words += f", {format_size(most)}"
        return Finding.ok("overcommit", words)
    limit, headroom = commit.limit_bytes or 0, commit.headroom_bytes
    words = (
        f"vm.overcommit_memory is 2 and {format_size(max(headroom, 0))} of the commit limit of "
        f"{format_size(limit)} is left"
    )
    remedy = "sysctl -w vm.overcommit_ratio=95, add swap, or sysctl -w vm.overcommit_memory=0"
    if headroom < max(GIB, limit // 20):
        return Finding.problem("commit-limit", words, remedy)
    return Finding.note("commit-limit", words + "; writable reservations count as well", remedy)


def _commit_limit_of_windows(facts: MachineFacts) -> Finding | None:
    limit, headroom = facts.commit.limit_bytes, facts.commit.headroom_bytes
    if not facts.commit.enforced or limit is None or headroom is None:
        return None
    words = (
        f"{format_size(max(headroom, 0))} of the commit limit of {format_size(limit)} is left; "
        "committed memory counts, touched or not; at the limit a commit fails with error 1455"
    )
    if headroom < max(GIB, limit // 20):
        remedy = "enlarge the page file (System Properties, Advanced, Performance), or commit less"
        return Finding.problem("commit-limit", words, remedy)
    return Finding.ok("commit-limit", words)


def _cgroup(facts: MachineFacts, loaded_later_bytes: int = _LOADED_LATER) -> Finding | None:
    if not facts.cgroup.levels:
        return None
    level = facts.cgroup.tightest
    total = facts.memory.total_bytes
    if level is None or level.bound_bytes is None or level.available_bytes is None:
        return Finding.ok("cgroup-limit", "no control group above this process limits memory")
    if total is not None and level.bound_bytes >= total:
        return Finding.ok(
            "cgroup-limit", f"the control group {level.path} allows more memory than there is RAM"
        )
    words = (
        f"{format_size(level.available_bytes)} left of the {format_size(level.bound_bytes)} of "
        f"control group {level.path} (v{level.version}){_used(level)}"
    )
    if level.throttles:
        words += "; above memory.high its tasks are slowed down, not killed"
    else:
        words += "; at the limit a process is killed"
    if level.pressure is not None and level.pressure.some_percent >= _WAITING:
        words += _pressure(level.pressure)
    where = "MemoryMax= of the unit, docker run --memory=..., resources.limits.memory of the pod"
    if level.throttles:
        where = (
            "MemoryHigh= of the unit; Docker has no option for it, and MemoryQoS sets it in a pod"
        )
    remedy = f"raise {group_limit_file(level)}: {where}"
    safe = safe_part(max(level.available_bytes - loaded_later_bytes, 0))
    least = min(_MIN_AVAILABLE, level.bound_bytes // 10)
    if level.available_bytes < least or safe < _MIN_SAFE:
        return Finding.problem("cgroup-limit", words, remedy)
    return Finding.note("cgroup-limit", words, remedy)


def _used(level: CgroupLevel) -> str:
    if not level.used_bytes:
        return ""
    cache = ""
    if level.reclaimable_bytes:
        cache = f", of which {format_size(level.reclaimable_bytes)} is cache that is dropped first"
    return f"; {format_size(level.used_bytes)} used{cache}"


def _oom_kills(facts: MachineFacts) -> Finding | None:
    here = sum(level.oom_kills or 0 for level in facts.cgroup.levels[:1])
    machine = facts.memory.oom_kills
    if here:
        return Finding.note(
            "oom-kills",
            f"{count_of(here, 'kill')} for lack of memory in this control group so far",
            "raise the limit of the group, or commit less",
        )
    if machine is None:
        return None
    if machine:
        return Finding.note(
            "oom-kills",
            f"{count_of(machine, 'kill')} for lack of memory since the machine started",
            "`dmesg | grep -i 'killed process'` names the processes",
        )
    return Finding.ok("oom-kills", "no process was killed for lack of memory")


# Limits of this process
#: What engines with many small mappings recommend; the kernel's default is 65,530.
_MANY_MAPPINGS: Final = 262_144
#: What a small run with the default options needs.
_MIN_MAPPINGS: Final = 1024


def _mappings(facts: MachineFacts) -> Finding | None:
    limit, used = facts.process.max_mappings, facts.process.mappings or 0
    if limit is None:
        return None
    words = f"{used:,} of {limit:,} memory areas (vm.max_map_count) in use"
    remedy = f"sysctl -w vm.max_map_count={max(4 * limit, _MANY_MAPPINGS)}"
    safe = safe_mappings(facts) or 0
    if limit - used < limit // 10 or safe < _MIN_MAPPINGS:
        return Finding.problem("mapping-limit", words, remedy)
    if limit < _MANY_MAPPINGS:
        return Finding.note(
            "mapping-limit",
            f"{words}: room for about {safe // 2:,} scattered granules; growth at the tail takes "
            "one area",
            remedy,
        )
    return Finding.ok("mapping-limit", words)


def _address_space(facts: MachineFacts) -> Finding | None:
    if (
        facts.process.address_space_bytes is None
        and facts.process.address_space_limit_bytes is None
    ):
        return None
    limit = facts.process.address_space_limit_bytes
    if limit is None:
        return Finding.ok("address-space-limit", "RLIMIT_AS is unlimited")
    total = facts.memory.total_bytes
    words = f"RLIMIT_AS is {format_size(limit)}: reservations count although they hold no memory"
    remedy = lift_address_space_limit(facts.limits.address_space, linux=facts.system.os == "Linux")
    if total is None or limit < 2 * total:
        return Finding.problem("address-space-limit", words, remedy)
    return Finding.note("address-space-limit", words, remedy)


def _data(facts: MachineFacts) -> Finding | None:
    limit, used = facts.process.data_limit_bytes, facts.process.data_bytes
    if limit is None:
        return None if used is None else Finding.ok("data-limit", "RLIMIT_DATA is unlimited")
    words = (
        f"RLIMIT_DATA is {format_size(limit)}, {format_size(used or 0)} in use: committed memory "
        "counts; on Linux an mmap over a reservation (--method fixed) can exceed it, and then every "
        "other call that needs memory fails"
    )
    remedy = how_to_raise("RLIMIT_DATA", limit=facts.limits.data)
    available = facts.machine_available_bytes
    if available is None or limit < available:
        return Finding.problem("data-limit", words, remedy)
    return Finding.note("data-limit", words, remedy)


#: A worker of ``vmtool stress`` is a process with a few threads and three pipes.
_FEW_TASKS: Final = 16
_FEW_DESCRIPTORS: Final = 32
#: Serving engines lock their staging buffers; less than this is a default, and no decision.
_LITTLE_LOCKED: Final = 64 * MIB


def _task_limit(facts: MachineFacts) -> Finding | None:
    found = tasks_left(facts)
    if facts.limits.threads_refused and (found is None or found[0]):
        return Finding.problem(
            "task-limit",
            "no thread can be started, though no limit of tasks is reached: the seccomp filter of "
            "this process refuses clone3 or clone",
            "look at the seccomp profile of the container, or update its runtime (clone3)",
        )
    if found is None:
        return _no_task_limit(facts)
    left, words, remedy = found
    words = f"{left:,} more processes and threads can be started: {words}"
    if left < _FEW_TASKS:
        return Finding.problem("task-limit", words, remedy)
    return Finding.ok("task-limit", words)


def _no_task_limit(facts: MachineFacts) -> Finding | None:
    limit = facts.limits.tasks
    if limit is None:
        return None
    if limit.soft is not None and not facts.limits.tasks_exempt:
        return Finding.note(
            "task-limit",
            f"RLIMIT_NPROC is {limit.soft:,}; how many processes and threads this user has is unknown",
            how_to_raise("RLIMIT_NPROC", limit=limit),
        )
    if facts.system.os == "Linux" and facts.memory.total_bytes is None:
        return Finding.note(
            "task-limit",
            "whether processes and threads are limited is unknown: /proc is missing or hidden",
            "mount -t proc proc /proc",
        )
    return Finding.ok("task-limit", "processes and threads are not limited")


def _descriptors(facts: MachineFacts) -> Finding | None:
    left, limit = descriptors_left(facts), facts.limits.descriptors
    if left is None or limit is None:
        return None
    words = f"RLIMIT_NOFILE is {limit.soft:,} and {facts.limits.descriptors_used:,} files are open"
    if left < _FEW_DESCRIPTORS:
        return Finding.problem(
            "descriptor-limit", words, how_to_raise("RLIMIT_NOFILE", limit=limit)
        )
    return Finding.ok("descriptor-limit", words)


def _locked_memory(facts: MachineFacts) -> Finding | None:
    limit = facts.limits.locked_memory
    if limit is None:
        return None
    if limit.soft is None:
        return Finding.ok("locked-limit", "RLIMIT_MEMLOCK is unlimited")
    if facts.limits.locked_exempt:
        return Finding.ok(
            "locked-limit",
            f"RLIMIT_MEMLOCK is {format_size(limit.soft)}; CAP_IPC_LOCK exempts this process from it",
        )
    words = (
        f"RLIMIT_MEMLOCK is {format_size(limit.soft)}: this process can lock no more than that in "
        "RAM (mlock)"
    )
    if limit.soft < _LITTLE_LOCKED:
        return Finding.note("locked-limit", words, how_to_raise("RLIMIT_MEMLOCK", limit=limit))
    return Finding.ok("locked-limit", words)


def _processor_time(facts: MachineFacts) -> Finding | None:
    limit = facts.limits.cpu_s
    if limit is None or limit.soft is None:
        return None
    return Finding.note(
        "cpu-limit",
        f"RLIMIT_CPU is {limit.soft:,} s: a process that used so much processor time is killed",
        how_to_raise("RLIMIT_CPU", limit=limit),
    )


def _fork(facts: MachineFacts) -> Finding | None:
    """In mode 2 a fork is charged all private writable memory of the process once more."""
    used, headroom = facts.process.data_bytes, facts.commit.headroom_bytes
    if facts.commit.mode != 2 or used is None or headroom is None or headroom <= 0:
        return None  # at the limit nothing is left for anything: commit-limit says so
    words = (
        f"a fork of this process is charged another {format_size(used)}, and "
        f"{format_size(max(headroom, 0))} of the commit limit is left"
    )
    if used > headroom:
        return Finding.problem("fork-headroom", words, "start processes before memory is committed")
    return Finding.ok("fork-headroom", words)


# Huge pages
_ENABLED: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


def _transparent_huge_pages(facts: MachineFacts) -> Finding | None:
    huge = facts.huge_pages
    if facts.system.os != "Linux":
        return None
    if huge.hidden:
        works = {
            True: "--huge works",
            False: "--huge is refused",
            None: "unknown whether --huge works",
        }
        return Finding.note(
            "huge-pages-unknown",
            f"/sys is missing or hidden, and with it how huge pages are set; {works[huge.advice_works]}",
            "mount -t sysfs sysfs /sys",
        )
    if huge.thp_mode is None:
        return Finding.note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if huge.thp_disabled_here:
        return Finding.note(
            "huge-pages-disabled",
            "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)",
            "start it from a parent that does not set PR_SET_THP_DISABLE",
        )
    size = "" if huge.pmd_bytes is None else f" of {format_size(huge.pmd_bytes)}"
    if huge.thp_mode == "always":
        filled = huge.collapse_empty_pages
        how = "" if filled is None else f" (max_ptes_none is {filled})"
        return Finding.note(
            "huge-pages-always",
            f"transparent huge pages{size} are always on: khugepaged may fill released "
            f"pages inside one{how}, and resident memory grows back",
            f"echo madvise > {_ENABLED}",
        )
    if huge.thp_mode == "never":
        return Finding.note(
            "huge-pages-never",
            f"transparent huge pages{size} are off: --huge changes nothing, and touching 2 MiB "
            "takes 512 page faults",
            f"echo madvise > {_ENABLED}",
        )
    return Finding.ok(
        "huge-pages", f"transparent huge pages{size} on request (madvise); --huge requests them"
    )


def _reserved_huge_pages(facts: MachineFacts) -> Finding | None:
    total = facts.memory.total_bytes
    pools = facts.huge_pages.pools
    reserved = sum(pool.page_bytes * pool.total for pool in pools)
    if not reserved or total is None:
        return None
    free = sum(pool.page_bytes * pool.free for pool in pools)
    words = (
        f"{format_size(reserved)} of RAM is reserved as huge pages, {format_size(free)} of it free"
    )
    refused = [pool for pool in pools if pool.free and pool.works is False]
    if refused:
        size = format_size(refused[0].page_bytes)
        return Finding.note(
            "reserved-huge-pages",
            f"{words}; mapping one of {size} (MAP_HUGETLB) is still refused",
            "raise nr_hugepages: free pages may be reserved by another program already",
        )
    for group in facts.cgroup.huge_pages:
        if any(pool.page_bytes == group.page_bytes for pool in pools):
            return _huge_page_group(words, group)
    if free > total // 10:
        return Finding.note(
            "reserved-huge-pages",
            f"{words}: ordinary commits cannot use it",
            "sysctl -w vm.nr_hugepages=0, if no program uses them",
        )
    return Finding.ok("reserved-huge-pages", words)


def _huge_page_group(words: str, group: GroupLimit) -> Finding:
    """Return the limit of a group: what exceeds it maps, and is SIGBUS at the first touch."""
    size = format_size(group.page_bytes or 0)
    return Finding.note(
        "huge-page-group",
        f"{words}; control group {group.path} may use {format_size(group.limit)} of those of {size} "
        f"({format_size(group.used)} used): touching more raises SIGBUS and returns no error",
        "raise its hugetlb limit: resources.limits.hugepages-SIZE of the pod",
    )


def _nodes(facts: MachineFacts) -> Finding | None:
    nodes = facts.memory.nodes
    if not nodes:
        return None
    if len(nodes) == 1:
        return Finding.ok("numa", "one NUMA node")
    free = ", ".join(f"node {node.number} {format_size(node.free_bytes)}" for node in nodes)
    return Finding.ok("numa", f"{len(nodes)} NUMA nodes, free: {free}")


# The platform
#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def _page(facts: MachineFacts) -> Finding:
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == 4 * KIB:
        return Finding.ok("page-size", words)
    return Finding.note(
        "page-size",
        f"{words}: offsets made for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def _allocation(facts: MachineFacts) -> Finding | None:
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return Finding.note(
        "allocation-granularity",
        f"addresses are reserved in units of {format_size(facts.allocation_bytes)}, although pages "
        f"are {format_size(facts.page_bytes)}: a view at another offset fails with error 1132",
        "use the commit granularity that `vmtool granularity` shows",
    )


def _kernel(facts: MachineFacts) -> Finding | None:
    match = _VERSION.match(facts.system.kernel)
    if facts.system.os != "Linux" or match is None or facts.environment.gvisor:
        return None
    if (int(match[1]), int(match[2])) < _POPULATE_KERNEL:
        return Finding.note(
            "old-kernel",
            f"Linux {facts.system.kernel} has no MADV_POPULATE_WRITE: --method advise is refused",
            "Linux 5.14 or later; the other methods work",
        )
    return Finding.ok("kernel", f"Linux {facts.system.kernel}")


def _container(facts: MachineFacts) -> Finding | None:
    name = facts.environment.container
    if name is None:
        return None
    return Finding.note(
        "container",
        f"in a container ({name}): limits are set outside it, and sysctls are those of the host",
        "change limits where the container is started, sysctls on the host",
    )


def _wsl(facts: MachineFacts) -> Finding | None:
    version = facts.environment.wsl
    if version is None:
        return None
    if version == 1:
        return Finding.note(
            "wsl",
            "WSL 1: Windows emulates the Linux calls; times are not those of Linux",
            "wsl --set-version DISTRIBUTION 2",
        )
    return Finding.note(
        "wsl",
        "WSL 2: a virtual machine with half of the RAM by default",
        "set memory= in %UserProfile%\\.wslconfig, then wsl --shutdown",
    )


def _gvisor(facts: MachineFacts) -> Finding | None:
    if not facts.environment.gvisor:
        return None
    return Finding.note(
        "gvisor",
        "gVisor refuses no commit; the sandbox is killed when memory runs out",
        "stay below the sandbox's memory limit with --budget",
    )


def _macos(facts: MachineFacts) -> Finding | None:
    if facts.system.os != "Darwin":
        return None
    return Finding.note(
        "not-available",
        "macOS has no commit limit, no control groups, no transparent huge pages and no limit of "
        "memory areas",
        "watch `memory_pressure` and `vm_stat`: no commit is refused when RAM is short",
    )


def _wine(facts: MachineFacts) -> Finding | None:
    if facts.system.os != "Wine":
        return None
    return Finding.note(
        "wine",
        f"Wine {facts.system.kernel}, not Windows: it enforces no commit limit, and its times "
        "say nothing about Windows",
        "measure on Windows",
    )


_PAGE_FILE = "System Properties > Advanced > Performance > Advanced > Virtual memory"


def _page_file(facts: MachineFacts) -> Finding | None:
    total = facts.memory.swap_total_bytes
    if total is None or facts.system.os != "Windows":
        return None
    if total == 0:
        return Finding.note(
            "no-page-file",
            "no page file: the commit limit is RAM alone, and commits fail with error 1455 while RAM is free",
            f"let Windows manage one: {_PAGE_FILE}",
        )
    return Finding.ok("page-file", f"page files of {format_size(total)}, part of the commit limit")


def _large_pages(facts: MachineFacts) -> Finding | None:
    size, allowed = facts.huge_pages.large_bytes, facts.huge_pages.large_privilege
    if size is None or allowed is None:
        return None
    words = f"large pages of {format_size(size)}"
    if allowed:
        return Finding.ok(
            "large-pages", f"{words} are allowed for this user; vmtool does not use them"
        )
    return Finding.note(
        "large-page-privilege",
        f"{words} need the right to lock pages (SeLockMemoryPrivilege), which this user lacks; "
        "vmtool does not use them, engines may",
        "secpol.msc > Local Policies > User Rights Assignment > Lock pages in memory, then log on "
        "again",
    )


#: In the order of the report.
_RULES: Final[tuple[Callable[[MachineFacts], Finding | None], ...]] = (
    _available,
    _swap,
    _overcommit,
    _commit_limit_of_windows,
    _cgroup,
    _oom_kills,
    _nodes,
    _mappings,
    _address_space,
    _data,
    _task_limit,
    _descriptors,
    _locked_memory,
    _processor_time,
    _fork,
    _transparent_huge_pages,
    _reserved_huge_pages,
    _page,
    _allocation,
    _kernel,
    _container,
    _wsl,
    _gvisor,
    _wine,
    _macos,
    _page_file,
    _large_pages,
)
