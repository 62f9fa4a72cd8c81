"""Rules about memory: RAM, swap, commit limits, control groups, huge pages, page sizes, NUMA nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor.findings import Finding
from vmtool.machine.facts import safe_part
from vmtool.machine.memory_limit_sentences import FREE_RAM, group_limit_file
from vmtool.machine.preflight import WORKER_BYTES
from vmtool.units import GIB, KIB, MIB, count_of, format_size

if TYPE_CHECKING:
    from vmtool.machine.cgroups import CgroupLevel, GroupLimit
    from vmtool.machine.facts import MachineFacts
    from vmtool.machine.kernel_files import MemoryPressure


#: What `stress` and `kv-replay` have loaded when they plan, beside what doctor has (5 to 6 MiB).
LOADED_LATER_BYTES: Final = 6 * MIB
#: With less available than this, ordinary use fails.
_MIN_AVAILABLE: Final = 512 * MIB
#: With less than this safe to commit `stress` is refused: a worker, and half of the rest, its
#: budget, is not one granule of 2 MiB.
_MIN_SAFE: Final = WORKER_BYTES + 4 * MIB
#: The least share of time, in percent, at which waiting for memory is worth a note.
_WAITING: Final = 1.0
_PAGE_FILE = "System Properties > Advanced > Performance > Advanced > Virtual memory"
_ENABLED: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


def available_memory(facts: MachineFacts) -> Finding | None:
    """Rate the memory that is available now."""
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


def swap(facts: MachineFacts) -> Finding | None:
    """Rate the swap that a shortage would use."""
    total = facts.memory.swap_total_bytes
    if total is not None and facts.system.os == "Darwin":
        return Finding.ok("swap", f"{format_size(total)} of swap; macOS adds more as needed")
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


def overcommit(facts: MachineFacts) -> Finding | None:
    """Rate the mode of the kernel's commit accounting, and what it leaves."""
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
        size = "" if most is None else f" ({format_size(most)})"
        words = f"only a commit larger than all RAM and swap{size} is refused"
        return Finding.ok("overcommit", f"vm.overcommit_memory is 0: {words}")
    limit, headroom = commit.limit_bytes or 0, commit.headroom_bytes
    words = (
        f"vm.overcommit_memory is 2 and {format_size(max(headroom, 0))} of the commit limit of "
        f"{format_size(limit)} is left"
    )
    remedy = "sysctl -w vm.overcommit_ratio=95, add swap, or sysctl -w vm.overcommit_memory=0"
    if headroom < max(GIB, limit // 20):
        return Finding.problem("commit-limit", words, remedy)
    return Finding.note("commit-limit", words + "; writable reservations count as well", remedy)


def commit_limit_of_windows(facts: MachineFacts) -> Finding | None:
    """Rate what is left of Windows' commit limit."""
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


def page_file(facts: MachineFacts) -> Finding | None:
    """Rate the page file of Windows."""
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


def _pressure(pressure: MemoryPressure) -> str:
    return f"; tasks waited for memory {pressure.some_percent:.0f} % of the last 10 s"


def control_group(
    facts: MachineFacts, loaded_later_bytes: int = LOADED_LATER_BYTES
) -> Finding | None:
    """Rate the tightest memory limit of the control groups; *loaded_later_bytes* as in ``examine``."""
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


def oom_kills(facts: MachineFacts) -> Finding | None:
    """Rate the kills of the OOM killer since the machine started."""
    here = sum(level.oom_kills or 0 for level in facts.cgroup.levels[:1])
    machine = facts.memory.oom_kills
    if here:
        return Finding.note(
            "oom-kills",
            f"{count_of(here, 'OOM kill')} in this control group so far",
            "raise the limit of the group, or commit less",
        )
    if machine is None:
        return None
    if machine:
        return Finding.note(
            "oom-kills",
            f"{count_of(machine, 'OOM kill')} since the machine started",
            "`dmesg | grep -i 'killed process'` names the processes",
        )
    return Finding.ok("oom-kills", "the OOM killer has ended no process")


def transparent_huge_pages(facts: MachineFacts) -> Finding | None:
    """Rate when the kernel uses transparent huge pages."""
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
            (
                "/sys is missing or hidden, so the settings of huge pages are unknown; "
                f"{works[huge.advice_works]}"
            ),
            "mount -t sysfs sysfs /sys",
        )
    if huge.thp_mode is None:
        return Finding.note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
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
        "huge-pages",
        f"transparent huge pages{size} are given on request (madvise); --huge requests them",
    )


def reserved_huge_pages(facts: MachineFacts) -> Finding | None:
    """Rate the pools of reserved huge pages."""
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


def numa_nodes(facts: MachineFacts) -> Finding | None:
    """Rate the NUMA nodes."""
    nodes = facts.memory.nodes
    if not nodes:
        return None
    if len(nodes) == 1:
        return Finding.ok("numa", "one NUMA node")
    free = ", ".join(f"node {node.number} {format_size(node.free_bytes)}" for node in nodes)
    return Finding.ok("numa", f"{len(nodes)} NUMA nodes, free: {free}")


def page_size(facts: MachineFacts) -> Finding:
    """Rate the size of a page."""
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == 4 * KIB:
        return Finding.ok("page-size", words)
    return Finding.note(
        "page-size",
        f"{words}: offsets made for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def allocation_granularity(facts: MachineFacts) -> Finding | None:
    """Rate what the base of a reservation is a multiple of."""
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return Finding.note(
        "allocation-granularity",
        f"addresses are reserved in units of {format_size(facts.allocation_bytes)}, although pages "
        f"are {format_size(facts.page_bytes)}: a view at another offset fails with error 1132",
        "use the commit granularity that `vmtool granularity` shows",
    )


def large_pages(facts: MachineFacts) -> Finding | None:
    """Rate whether this user may lock large pages on Windows."""
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
