"""What one check says."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.machine.facts import FREE_RAM
from vmtool.memory.diagnosis import lift_address_space_limit
from vmtool.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import HugePageFacts, MachineFacts
    from vmtool.memory.cuda.devices import DeviceInfo


class Rating(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        kind: A short stable name; the same as that of the diagnosis when it makes a call fail.
        rating: How much it matters.
        finding: What was found, with the numbers.
        remedy: The command or step that changes it; ``None`` when all is well.
    """

    kind: str
    rating: Rating
    finding: str
    remedy: str | None = None


def ok(kind: str, finding: str) -> Check:
    """Return a check that found nothing to change."""
    return Check(kind, Rating.OK, finding)


def note(kind: str, finding: str, remedy: str) -> Check:
    """Return a check whose finding is worth knowing."""
    return Check(kind, Rating.NOTE, finding, remedy)


def problem(kind: str, finding: str, remedy: str) -> Check:
    """Return a check whose finding makes ordinary use fail."""
    return Check(kind, Rating.PROBLEM, finding, remedy)


_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"


def check_huge_pages(facts: MachineFacts) -> list[Check]:
    """Return what huge pages do to commits and releases here; nothing where there are none."""
    huge = facts.huge_pages
    found = [_transparent(huge, facts), *_pools(huge, facts)]
    return [check for check in found if check is not None]


def _transparent(huge: HugePageFacts, facts: MachineFacts) -> Check | None:
    if facts.system.os != "Linux":
        return None
    if huge.thp_mode is None:
        return note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if huge.thp_disabled_here:
        return note(
            "huge-pages-disabled",
            "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)",
            "start it from a parent that does not set PR_SET_THP_DISABLE",
        )
    size = "" if huge.pmd_bytes is None else f" of {format_size(huge.pmd_bytes)}"
    if huge.thp_mode == "always":
        filled = huge.collapse_empty_pages
        how = "" if filled is None else f" (max_ptes_none is {filled})"
        return note(
            "huge-pages-always",
            f"transparent huge pages{size} are always on: khugepaged may fill what was released "
            f"inside one{how}, and resident memory climbs back",
            f"echo madvise > {_ENABLED}",
        )
    if huge.thp_mode == "never":
        return note(
            "huge-pages-never",
            f"transparent huge pages{size} are off: --huge changes nothing, and touching 2 MiB "
            "takes 512 faults",
            f"echo madvise > {_ENABLED}",
        )
    return ok("huge-pages", f"transparent huge pages{size} on request (madvise): --huge asks")


def _pools(huge: HugePageFacts, facts: MachineFacts) -> list[Check]:
    total = facts.memory.total_bytes
    idle = sum(pool.page_bytes * pool.free for pool in huge.pools)
    held = sum(pool.page_bytes * pool.total for pool in huge.pools)
    if not held or total is None:
        return []
    words = f"{format_size(held)} of RAM is reserved as huge pages, {format_size(idle)} of it idle"
    if idle > total // 10:
        return [
            note(
                "reserved-huge-pages",
                f"{words}: ordinary commits cannot have it",
                "sysctl -w vm.nr_hugepages=0, if no program uses them",
            )
        ]
    return [ok("reserved-huge-pages", words)]


#: What engines with many small mappings ask for; the kernel's default is 65,530.
_MANY_MAPPINGS: Final = 262_144


def check_limits(facts: MachineFacts) -> list[Check]:
    """Return what this process may have of each limited thing."""
    found = [_mappings(facts), _address_space(facts), _data(facts)]
    return [check for check in found if check is not None]


def _mappings(facts: MachineFacts) -> Check | None:
    limit, used = facts.process.max_mappings, facts.process.mappings or 0
    if limit is None:
        return None
    words = f"{used:,} of {limit:,} memory areas (vm.max_map_count) in use"
    remedy = f"sysctl -w vm.max_map_count={max(4 * limit, _MANY_MAPPINGS)}"
    if limit - used < limit // 10:
        return problem("mapping-limit", words, remedy)
    if limit < _MANY_MAPPINGS:
        scattered = max(limit - used, 0) // 2
        return note(
            "mapping-limit",
            f"{words}: room for about {scattered:,} scattered granules; growth at the tail takes one",
            remedy,
        )
    return ok("mapping-limit", words)


def _address_space(facts: MachineFacts) -> Check | None:
    if (
        facts.process.address_space_bytes is None
        and facts.process.address_space_limit_bytes is None
    ):
        return None
    limit = facts.process.address_space_limit_bytes
    if limit is None:
        return ok("address-space-limit", "RLIMIT_AS is unlimited")
    total = facts.memory.total_bytes
    words = f"RLIMIT_AS is {format_size(limit)}: reservations count although they hold no memory"
    remedy = lift_address_space_limit(linux=facts.system.os == "Linux")
    if total is None or limit < 2 * total:
        return problem("address-space-limit", words, remedy)
    return note("address-space-limit", words, remedy)


def _data(facts: MachineFacts) -> Check | None:
    limit, used = facts.process.data_limit_bytes, facts.process.data_bytes
    if limit is None:
        return None if used is None else ok("data-limit", "RLIMIT_DATA is unlimited")
    words = (
        f"RLIMIT_DATA is {format_size(limit)}, {format_size(used or 0)} in use: what is committed "
        "counts; on Linux one mmap over a reservation (--method fixed) may go past it, and then no "
        "call gets any more memory"
    )
    available = facts.machine_available_bytes
    if available is None or limit < available:
        return problem("data-limit", words, "ulimit -d unlimited")
    return note("data-limit", words, "ulimit -d unlimited")


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


_USUAL_PAGE: Final = 4 * KIB
#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def check_platform(facts: MachineFacts) -> list[Check]:
    """Return what this system does unlike others."""
    found = [
        _page(facts),
        _allocation(facts),
        _kernel(facts),
        _container(facts),
        _wsl(facts),
        _gvisor(facts),
        _wine(facts),
        _macos(facts),
    ]
    return [check for check in found if check is not None]


def _page(facts: MachineFacts) -> Check:
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == _USUAL_PAGE:
        return ok("page-size", words)
    return note(
        "page-size",
        f"{words}: offsets built for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def _allocation(facts: MachineFacts) -> Check | None:
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return note(
        "allocation-granularity",
        f"addresses are granted in units of {format_size(facts.allocation_bytes)}, although pages "
        f"are {format_size(facts.page_bytes)}: other offsets of a view give error 1132",
        "use the commit granularity that `vmtool granularity` shows",
    )


def _kernel(facts: MachineFacts) -> Check | None:
    match = _VERSION.match(facts.system.kernel)
    if facts.system.os != "Linux" or match is None or facts.environment.gvisor:
        return None
    if (int(match[1]), int(match[2])) < _POPULATE_KERNEL:
        return note(
            "old-kernel",
            f"Linux {facts.system.kernel} has no MADV_POPULATE_WRITE: --method advise is refused",
            "Linux 5.14 or later; the other methods work",
        )
    return ok("kernel", f"Linux {facts.system.kernel}")


def _container(facts: MachineFacts) -> Check | None:
    name = facts.environment.container
    if name is None:
        return None
    return note(
        "container",
        f"in a container ({name}): its limits are set outside, and sysctls are the host's",
        "change limits where the container is started, sysctls on the host",
    )


def _wsl(facts: MachineFacts) -> Check | None:
    version = facts.environment.wsl
    if version is None:
        return None
    if version == 1:
        return note(
            "wsl",
            "WSL 1: Windows emulates the Linux calls, so figures are not those of Linux",
            "wsl --set-version DISTRIBUTION 2",
        )
    return note(
        "wsl",
        "WSL 2: a virtual machine with half of the RAM by default, which grows as it is touched",
        "set memory= in %UserProfile%\\.wslconfig, then wsl --shutdown",
    )


def _gvisor(facts: MachineFacts) -> Check | None:
    if not facts.environment.gvisor:
        return None
    return note(
        "gvisor",
        "gVisor: its kernel does not refuse commits; the sandbox is killed when memory runs out",
        "stay below the sandbox's memory limit with --budget",
    )


def _macos(facts: MachineFacts) -> Check | None:
    if facts.system.os != "Darwin":
        return None
    return note(
        "not-available",
        "macOS has no commit limit, no control groups and no transparent huge pages, and neither "
        "counts nor limits memory areas: not available here",
        "watch `memory_pressure` and `vm_stat` while it runs: no commit is refused when RAM is short",
    )


def _wine(facts: MachineFacts) -> Check | None:
    if facts.system.os != "Wine":
        return None
    return note(
        "wine",
        f"Wine {facts.system.kernel}, not Windows: it has no commit limit, and its figures say "
        "nothing about Windows",
        "measure on Windows",
    )


_PAGE_FILE = "System Properties > Advanced > Performance > Advanced > Virtual memory"


def check_windows(facts: MachineFacts) -> list[Check]:
    """Return what only Windows does to such memory; nothing elsewhere."""
    found = [_page_file(facts), _large_pages(facts)]
    return [check for check in found if check is not None]


def _page_file(facts: MachineFacts) -> Check | None:
    total = facts.memory.swap_total_bytes
    if total is None or facts.system.os != "Windows":
        return None
    if total == 0:
        return note(
            "no-page-file",
            "no page file: the commit limit is RAM alone, and error 1455 comes while RAM is free",
            f"let Windows manage one: {_PAGE_FILE}",
        )
    return ok("page-file", f"page files of {format_size(total)}, part of the commit limit")


def _large_pages(facts: MachineFacts) -> Check | None:
    size, allowed = facts.huge_pages.large_bytes, facts.huge_pages.large_privilege
    if size is None or allowed is None:
        return None
    words = f"large pages of {format_size(size)}"
    if allowed:
        return ok("large-pages", f"{words} are allowed for this user; vmtool does not use them")
    return note(
        "large-page-privilege",
        f"{words} need the right to lock pages (SeLockMemoryPrivilege), which this user lacks; "
        "vmtool does not use them, engines may",
        "secpol.msc > Local Policies > User Rights Assignment > Lock pages in memory, then log on "
        "again",
    )


__all__ = ["Check", "Rating", "examine"]


def examine(facts: MachineFacts) -> tuple[Check, ...]:
    """Return a rating of everything that *facts* tell; what they do not tell is not rated."""
    return (
        *check_memory(facts),
        *check_limits(facts),
        *check_huge_pages(facts),
        *check_platform(facts),
        *check_windows(facts),
    )


def examine_devices() -> tuple[Check, ...]:
    """Return a rating of each device, or the reason why there is none."""
    from vmtool.memory.cuda.devices import devices, free_bytes

    try:
        found = devices()
    except UnavailableError as error:
        return (note("no-cuda", error.cause or str(error), error.hint or "use --backing host"),)
    except VmtoolError as error:
        return (problem("cuda", str(error), error.hint or "nvidia-smi"),)
    checks: list[Check] = []
    for info in found:
        try:
            checks += check_device(info, free_bytes(info.ordinal))
        except VmtoolError as error:  # such as no room for a context: the others are rated still
            words = f"cuda:{info.ordinal}, {info.name}: {error}"
            checks.append(problem("cuda", words, error.hint or "nvidia-smi"))
    return tuple(checks)


def examine_device(ordinal: int) -> tuple[Check, ...]:
    """Return a rating of one device.

    Raises:
        UnavailableError: If there is no such device.
        CudaError: If the driver does not answer.
    """
    from vmtool.memory.cuda.devices import device, free_bytes

    return check_device(device(ordinal), free_bytes(ordinal))


def check_device(info: DeviceInfo, free: int) -> tuple[Check, ...]:
    """Return what *info* and the *free* bytes say about one device."""
    name = f"cuda:{info.ordinal}"
    words = f"{name}, {info.name}, {format_size(free)} of {format_size(info.total_bytes)} free"
    if not info.attributes.get("vmm"):
        return (
            problem(
                "no-vmm",
                f"{words}: no virtual memory management, so nothing can be committed on it",
                "use another device; under WDDM or a vGPU the driver may withhold it",
            ),
        )
    if free < info.total_bytes // 20:
        checks = [problem("device-memory", words, "nvidia-smi shows which processes hold it")]
    else:
        checks = [ok("device", f"{words}; it has virtual memory management")]
    if info.driver_model == "wddm":
        checks.append(
            note(
                "wddm",
                f"{name} runs under WDDM: commits may be paged to host memory, and unmapping takes "
                "milliseconds",
                "nvidia-smi -dm TCC (where the card has it), or keep below the free memory",
            )
        )
    elif info.driver_model == "tcc":
        checks.append(ok("tcc", f"{name} runs under TCC: Windows does not page its memory"))
    elif info.driver_model == "wsl":
        checks.append(
            note(
                "wsl-device",
                f"{name} is used through the driver of Windows: sharing memory by file descriptor "
                "does not work",
                "use the device from Linux itself, where that is needed",
            )
        )
    if info.integrated:
        checks.append(
            note(
                "integrated",
                f"{name} shares the RAM of the host: what it commits is missing there",
                "keep both budgets together below the RAM",
            )
        )
    return tuple(checks)
