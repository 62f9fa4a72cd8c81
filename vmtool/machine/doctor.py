"""What on this machine would stop or slow such memory: one list of rules over its facts."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.machine.facts import FREE_RAM
from vmtool.memory.posix.diagnosis import lift_address_space_limit
from vmtool.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.machine.devices import DeviceMemory
    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.cuda.devices import DeviceInfo


class Rating(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found.

    Attributes:
        kind: A short stable name; the same as that of the diagnosis when it makes a call fail.
        rating: How much it matters.
        message: What was found, with the numbers.
        remedy: The command or step that changes it; ``None`` where nothing needs to change.
    """

    kind: str
    rating: Rating
    message: str
    remedy: str | None = None


def _ok(kind: str, message: str) -> Finding:
    return Finding(kind, Rating.OK, message)


def _note(kind: str, message: str, remedy: str) -> Finding:
    return Finding(kind, Rating.NOTE, message, remedy)


def _problem(kind: str, message: str, remedy: str) -> Finding:
    return Finding(kind, Rating.PROBLEM, message, remedy)


def examine(facts: MachineFacts) -> tuple[Finding, ...]:
    """Return a rating of everything that *facts* say; what is unknown is not rated."""
    return tuple(finding for rule in _RULES if (finding := rule(facts)) is not None)


# Memory that the whole machine, or a control group, can give
#: With less available than this, ordinary use fails.
_MIN_AVAILABLE: Final = 512 * MIB


def _available(facts: MachineFacts) -> Finding | None:
    total, available = facts.memory.total_bytes, facts.memory.available_bytes
    if total is None or available is None:
        if facts.system.os != "Linux":
            return None
        return _note(
            "unknown-memory",
            "RAM and the limits of this process are unknown: /proc is missing or hidden",
            "mount -t proc proc /proc; until then vmtool takes 1 GiB as safe",
        )
    words = f"{format_size(available)} of {format_size(total)} RAM available"
    if available < min(_MIN_AVAILABLE, total // 10):
        return _problem("available-memory", words, FREE_RAM)
    return _ok("available-memory", words)


def _swap(facts: MachineFacts) -> Finding | None:
    total = facts.memory.swap_total_bytes
    if total is not None and facts.system.os == "Darwin":
        return _ok("swap", f"{format_size(total)} of swap; macOS makes more as it needs it")
    if total is None or facts.system.os != "Linux":
        return None  # Windows' page files are in its commit limit
    if total == 0:
        return _note(
            "no-swap",
            "no swap: when RAM runs out, a process is killed at once",
            "keep the budget below what is available; vmtool does so by default",
        )
    free = facts.memory.swap_free_bytes or 0
    words = f"{format_size(total - free)} of {format_size(total)} swap in use"
    if free < total // 10:
        return _note("swap-full", words, "measured latencies will include swapping; free some RAM")
    return _ok("swap", words)


def _overcommit(facts: MachineFacts) -> Finding | None:
    commit = facts.commit
    if commit.mode is None:
        return None
    if commit.mode == 1:
        return _note(
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
        return _ok("overcommit", words)
    limit, headroom = commit.limit_bytes or 0, commit.headroom_bytes
    words = (
        f"vm.overcommit_memory is 2 and {format_size(max(headroom, 0))} of the commit limit of "
        f"{format_size(limit)} is left"
    )
    remedy = "sysctl -w vm.overcommit_ratio=95, add swap, or sysctl -w vm.overcommit_memory=0"
    if headroom < max(GIB, limit // 20):
        return _problem("commit-limit", words, remedy)
    return _note("commit-limit", words + "; writable reservations count as well", remedy)


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
        return _problem("commit-limit", words, remedy)
    return _ok("commit-limit", words)


def _cgroup(facts: MachineFacts) -> Finding | None:
    if not facts.cgroup.levels:
        return None
    level = facts.cgroup.tightest
    total = facts.memory.total_bytes
    if level is None or level.bound_bytes is None or level.available_bytes is None:
        return _ok("cgroup-limit", "no control group above this process limits memory")
    if total is not None and level.bound_bytes >= total:
        return _ok(
            "cgroup-limit", f"the control group {level.path} allows more memory than there is RAM"
        )
    ram = "" if total is None else f", although there is {format_size(total)} of RAM"
    words = (
        f"{format_size(level.available_bytes)} left of the {format_size(level.bound_bytes)} of "
        f"control group {level.path} (v{level.version}){ram}; beyond it a process is killed"
    )
    name = "memory.max" if level.version == 2 else "memory.limit_in_bytes"
    if level.high_bytes is not None and level.bound_bytes == level.high_bytes:
        name = "memory.high"
    remedy = f"raise {level.path}/{name}, or the memory limit of the container or unit"
    if level.available_bytes < min(_MIN_AVAILABLE, level.bound_bytes // 10):
        return _problem("cgroup-limit", words, remedy)
    return _note("cgroup-limit", words, remedy)


def _oom_kills(facts: MachineFacts) -> Finding | None:
    here = sum(level.oom_kills or 0 for level in facts.cgroup.levels[:1])
    machine = facts.memory.oom_kills
    if here:
        return _note(
            "oom-kills",
            f"{here:,} processes of this control group were killed for lack of memory",
            "raise the limit of the group, or use a smaller --budget",
        )
    if machine is None:
        return None
    if machine:
        return _note(
            "oom-kills",
            f"{machine:,} processes were killed for lack of memory since the machine started",
            "`dmesg | grep -i 'killed process'` names them",
        )
    return _ok("oom-kills", "no process was killed for lack of memory")


# Limits of this process
#: What engines with many small mappings recommend; the kernel's default is 65,530.
_MANY_MAPPINGS: Final = 262_144


def _mappings(facts: MachineFacts) -> Finding | None:
    limit, used = facts.process.max_mappings, facts.process.mappings or 0
    if limit is None:
        return None
    words = f"{used:,} of {limit:,} memory areas (vm.max_map_count) in use"
    remedy = f"sysctl -w vm.max_map_count={max(4 * limit, _MANY_MAPPINGS)}"
    if limit - used < limit // 10:
        return _problem("mapping-limit", words, remedy)
    if limit < _MANY_MAPPINGS:
        scattered = max(limit - used, 0) // 2
        return _note(
            "mapping-limit",
            f"{words}: room for about {scattered:,} scattered granules; growth at the tail takes one",
            remedy,
        )
    return _ok("mapping-limit", words)


def _address_space(facts: MachineFacts) -> Finding | None:
    if (
        facts.process.address_space_bytes is None
        and facts.process.address_space_limit_bytes is None
    ):
        return None
    limit = facts.process.address_space_limit_bytes
    if limit is None:
        return _ok("address-space-limit", "RLIMIT_AS is unlimited")
    total = facts.memory.total_bytes
    words = f"RLIMIT_AS is {format_size(limit)}: reservations count although they hold no memory"
    remedy = lift_address_space_limit(linux=facts.system.os == "Linux")
    if total is None or limit < 2 * total:
        return _problem("address-space-limit", words, remedy)
    return _note("address-space-limit", words, remedy)


def _data(facts: MachineFacts) -> Finding | None:
    limit, used = facts.process.data_limit_bytes, facts.process.data_bytes
    if limit is None:
        return None if used is None else _ok("data-limit", "RLIMIT_DATA is unlimited")
    words = (
        f"RLIMIT_DATA is {format_size(limit)}, {format_size(used or 0)} in use: committed memory "
        "counts; on Linux an mmap over a reservation (--method fixed) can exceed it, and then every "
        "other call that needs memory fails"
    )
    available = facts.machine_available_bytes
    if available is None or limit < available:
        return _problem("data-limit", words, "ulimit -d unlimited")
    return _note("data-limit", words, "ulimit -d unlimited")


# Huge pages
_ENABLED: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


def _transparent_huge_pages(facts: MachineFacts) -> Finding | None:
    huge = facts.huge_pages
    if facts.system.os != "Linux":
        return None
    if huge.thp_mode is None:
        return _note(
            "no-huge-pages",
            "this kernel has no transparent huge pages, so --huge is refused",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if huge.thp_disabled_here:
        return _note(
            "huge-pages-disabled",
            "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)",
            "start it from a parent that does not set PR_SET_THP_DISABLE",
        )
    size = "" if huge.pmd_bytes is None else f" of {format_size(huge.pmd_bytes)}"
    if huge.thp_mode == "always":
        filled = huge.collapse_empty_pages
        how = "" if filled is None else f" (max_ptes_none is {filled})"
        return _note(
            "huge-pages-always",
            f"transparent huge pages{size} are always on: khugepaged may fill released "
            f"pages inside one{how}, and resident memory grows back",
            f"echo madvise > {_ENABLED}",
        )
    if huge.thp_mode == "never":
        return _note(
            "huge-pages-never",
            f"transparent huge pages{size} are off: --huge changes nothing, and touching 2 MiB "
            "takes 512 page faults",
            f"echo madvise > {_ENABLED}",
        )
    return _ok(
        "huge-pages", f"transparent huge pages{size} on request (madvise), which --huge makes"
    )


def _reserved_huge_pages(facts: MachineFacts) -> Finding | None:
    total = facts.memory.total_bytes
    pools = facts.huge_pages.pools
    idle = sum(pool.page_bytes * pool.free for pool in pools)
    held = sum(pool.page_bytes * pool.total for pool in pools)
    if not held or total is None:
        return None
    words = f"{format_size(held)} of RAM is reserved as huge pages, {format_size(idle)} of it idle"
    if idle > total // 10:
        return _note(
            "reserved-huge-pages",
            f"{words}: ordinary commits cannot use it",
            "sysctl -w vm.nr_hugepages=0, if no program uses them",
        )
    return _ok("reserved-huge-pages", words)


# The platform
#: MADV_POPULATE_WRITE, by which --method advise commits.
_POPULATE_KERNEL: Final = (5, 14)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")


def _page(facts: MachineFacts) -> Finding:
    words = f"pages of {format_size(facts.page_bytes)}"
    if facts.page_bytes == 4 * KIB:
        return _ok("page-size", words)
    return _note(
        "page-size",
        f"{words}: offsets made for 4 KiB are refused here",
        "query the granularity (vmtool does) and never hard-code it",
    )


def _allocation(facts: MachineFacts) -> Finding | None:
    if facts.allocation_bytes is None or facts.allocation_bytes == facts.page_bytes:
        return None
    return _note(
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
        return _note(
            "old-kernel",
            f"Linux {facts.system.kernel} has no MADV_POPULATE_WRITE: --method advise is refused",
            "Linux 5.14 or later; the other methods work",
        )
    return _ok("kernel", f"Linux {facts.system.kernel}")


def _container(facts: MachineFacts) -> Finding | None:
    name = facts.environment.container
    if name is None:
        return None
    return _note(
        "container",
        f"in a container ({name}): limits are set outside it, and sysctls are those of the host",
        "change limits where the container is started, sysctls on the host",
    )


def _wsl(facts: MachineFacts) -> Finding | None:
    version = facts.environment.wsl
    if version is None:
        return None
    if version == 1:
        return _note(
            "wsl",
            "WSL 1: Windows emulates the Linux calls; times are not those of Linux",
            "wsl --set-version DISTRIBUTION 2",
        )
    return _note(
        "wsl",
        "WSL 2: a virtual machine with half of the RAM by default",
        "set memory= in %UserProfile%\\.wslconfig, then wsl --shutdown",
    )


def _gvisor(facts: MachineFacts) -> Finding | None:
    if not facts.environment.gvisor:
        return None
    return _note(
        "gvisor",
        "gVisor refuses no commit; the sandbox is killed when memory runs out",
        "stay below the sandbox's memory limit with --budget",
    )


def _macos(facts: MachineFacts) -> Finding | None:
    if facts.system.os != "Darwin":
        return None
    return _note(
        "not-available",
        "macOS has no commit limit, no control groups, no transparent huge pages and no limit of "
        "memory areas",
        "watch `memory_pressure` and `vm_stat`: no commit is refused when RAM is short",
    )


def _wine(facts: MachineFacts) -> Finding | None:
    if facts.system.os != "Wine":
        return None
    return _note(
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
        return _note(
            "no-page-file",
            "no page file: the commit limit is RAM alone, and commits fail with error 1455 while RAM is free",
            f"let Windows manage one: {_PAGE_FILE}",
        )
    return _ok("page-file", f"page files of {format_size(total)}, part of the commit limit")


def _large_pages(facts: MachineFacts) -> Finding | None:
    size, allowed = facts.huge_pages.large_bytes, facts.huge_pages.large_privilege
    if size is None or allowed is None:
        return None
    words = f"large pages of {format_size(size)}"
    if allowed:
        return _ok("large-pages", f"{words} are allowed for this user; vmtool does not use them")
    return _note(
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
    _mappings,
    _address_space,
    _data,
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


# CUDA devices


def examine_devices() -> tuple[Finding, ...]:
    """Return a rating of each device, or why there is none."""
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import devices
    from vmtool.memory.cuda.diagnosis import BrokenDriverError

    try:
        found = devices()
    except BrokenDriverError as error:
        words = f"{error}{(error.cause and ': ' + error.cause) or ''}"
        return (_problem("cuda", words, error.hint or "nvidia-smi"),)
    except UnavailableError as error:
        return (_note("no-cuda", error.cause or str(error), error.hint or "use --backing host"),)
    except VmtoolError as error:
        return (_problem("cuda", str(error), error.hint or "nvidia-smi"),)
    rated: list[Finding] = []
    for info in found:
        try:
            rated += _rate(info, read_device_memory(info))
        except VmtoolError as error:  # such as no room for a context: the others are still rated
            words = f"cuda:{info.ordinal}, {info.name}: {error}"
            rated.append(_problem("cuda", words, error.hint or "nvidia-smi"))
    return tuple(rated)


def examine_device(ordinal: int) -> tuple[Finding, ...]:
    """Return a rating of one device.

    Raises:
        UnavailableError: If there is no such device.
        CudaError: If a call of the driver fails.
    """
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import device

    info = device(ordinal)
    return _rate(info, read_device_memory(info))


def _rate(info: DeviceInfo, memory: DeviceMemory) -> tuple[Finding, ...]:
    found = check_device(info, memory.free_bytes)
    if not memory.others:
        return found
    names = ", ".join(
        f"{each.name or 'a process'} ({each.pid})"
        + (f" with {format_size(each.used_bytes)}" if each.used_bytes is not None else "")
        for each in memory.others
    )
    return (
        *found,
        _note(
            "device-shared",
            f"cuda:{info.ordinal} is in use by {names}",
            "end it before measuring: what it allocates meanwhile changes the results",
        ),
    )


def check_device(info: DeviceInfo, free: int) -> tuple[Finding, ...]:
    """Return what *info* and the *free* bytes say about one device."""
    name = f"cuda:{info.ordinal}"
    words = f"{name}, {info.name}, {format_size(free)} of {format_size(info.total_bytes)} free"
    if not info.attributes.get("vmm"):
        return (
            _problem(
                "no-vmm",
                f"{words}: no virtual memory management, so nothing can be committed on it",
                "use another device; under WDDM or a vGPU the driver may withhold it",
            ),
        )
    if free < info.total_bytes // 20:
        checks = [_problem("device-memory", words, "nvidia-smi shows the processes that use it")]
    else:
        checks = [_ok("device", f"{words}; it has virtual memory management")]
    if info.driver_model == "wddm":
        checks.append(
            _note(
                "wddm",
                f"{name} runs under WDDM: commits may be paged to host memory, and unmapping takes "
                "milliseconds",
                "nvidia-smi -dm TCC (where the card has it), or keep below the free memory",
            )
        )
    elif info.driver_model == "tcc":
        checks.append(_ok("tcc", f"{name} runs under TCC: Windows does not page its memory"))
    elif info.driver_model == "wsl":
        checks.append(
            _note(
                "wsl-device",
                f"{name} is used through the driver of Windows: sharing memory by file descriptor "
                "does not work",
                "use the device from Linux itself, where that is needed",
            )
        )
    if info.integrated:
        checks.append(
            _note(
                "integrated",
                f"{name} shares the RAM of the host: what it commits is taken from there",
                "keep both budgets together below the RAM",
            )
        )
    return tuple(checks)
