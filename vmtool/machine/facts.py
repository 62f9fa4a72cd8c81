"""The facts of a machine that every result records, and what is safe to commit; no sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from vmtool.machine.cgroups import CgroupFacts
from vmtool.machine.device_facts import DeviceFacts  # noqa: TC001 - decoding reads the types
from vmtool.machine.kernel_files import MemoryPressure  # noqa: TC001
from vmtool.memory.counters import ProcessLimits
from vmtool.memory.rlimits_and_privileges import ResourceLimit  # noqa: TC001
from vmtool.units import GIB, MIB

#: Kept in reserve for everything else on the machine, but no more than two fifths of what there is.
_KEEP_BYTES: Final = 256 * MIB
#: Kept in reserve for the interpreter and its libraries, but no more than half of what a limit of
#: the process leaves.
_SPARE_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """The software and the processor.

    Attributes:
        os: ``Linux``, ``Darwin``, ``Windows``, or ``Wine``, which is not Windows.
        kernel: The kernel's release, or Wine's.
        arch: The processor architecture, such as ``x86_64``.
        cpu_model: The processor's own name.
        cpus: Logical processors of the machine.
        cpus_usable: Those this process may run on.
        python: The Python version.
        vmtool: The version of vmtool.
    """

    os: str
    kernel: str
    arch: str
    cpu_model: str | None
    cpus: int | None
    cpus_usable: int | None
    python: str
    vmtool: str


@dataclass(frozen=True, slots=True)
class NumaNode:
    """The memory of one NUMA node."""

    number: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """RAM and swap, in bytes.

    Attributes:
        total_bytes: RAM.
        available_bytes: RAM that can be had without swapping.
        swap_total_bytes: Swap space.
        swap_free_bytes: Swap space that is not used.
        oom_kills: Processes that the OOM killer has ended since the machine started.
        arc_bytes: What ZFS' cache (ARC) can give up: available too, and counted as used by Linux.
        pressure: How long tasks waited for memory; ``None`` where the kernel does not count it.
        nodes: NUMA nodes with memory; empty where the kernel has none.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    oom_kills: int | None = None
    arc_bytes: int = 0
    pressure: MemoryPressure | None = None
    nodes: tuple[NumaNode, ...] = ()

    @property
    def reclaimable_available_bytes(self) -> int | None:
        """RAM that can be had without swapping, ZFS' cache included."""
        return None if self.available_bytes is None else self.available_bytes + self.arc_bytes


@dataclass(frozen=True, slots=True)
class HugeSize:
    """One size of multi-size transparent huge pages, with its own mode."""

    page_bytes: int
    mode: str


@dataclass(frozen=True, slots=True)
class HugePool:
    """One pool of reserved huge pages (hugetlb), counted in pages.

    Attributes:
        page_bytes: The size of its pages.
        total: All its pages.
        free: Those that no process uses; others may have reserved them all the same.
        works: Whether one could be mapped (``MAP_HUGETLB``); ``None`` if it was not tried.
        available: Those that a new mapping can have: free and not reserved by another, and what the
            kernel may add (``nr_overcommit_hugepages``).
    """

    page_bytes: int
    total: int
    free: int
    works: bool | None = None
    available: int | None = None


@dataclass(frozen=True, slots=True)
class HugePageFacts:
    """Transparent and reserved huge pages of Linux, large pages of Windows.

    Attributes:
        thp_mode: ``always``, ``madvise`` or ``never``.
        thp_defrag: How hard a fault works for a huge page.
        pmd_bytes: The size of a transparent huge page.
        thp_disabled_here: Whether this process is excluded (``PR_SET_THP_DISABLE``).
        collapse_empty_pages: ``khugepaged/max_ptes_none``: how many untouched pages a huge page
            may have that khugepaged makes.
        sizes: Multi-size huge pages (mTHP), ascending.
        pools: Reserved pools, ascending.
        hidden: Whether the kernel's files about huge pages are missing, as without ``/sys``.
        advice_works: Whether ``MADV_HUGEPAGE`` is accepted; ``None`` if it was not tried.
        large_bytes: The size of a large page of Windows.
        large_privilege: Whether this process may use those.
    """

    thp_mode: str | None = None
    thp_defrag: str | None = None
    pmd_bytes: int | None = None
    thp_disabled_here: bool = False
    collapse_empty_pages: int | None = None
    sizes: tuple[HugeSize, ...] = ()
    pools: tuple[HugePool, ...] = ()
    hidden: bool = False
    advice_works: bool | None = None
    large_bytes: int | None = None
    large_privilege: bool | None = None


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """Commit accounting.

    Attributes:
        mode: ``vm.overcommit_memory``: 0 heuristic, 1 always, 2 never.
        ratio_percent: ``vm.overcommit_ratio``.
        limit_bytes: ``CommitLimit``; enforced only in mode 2. On Windows RAM and page files.
        charge_bytes: ``Committed_AS``: the charge of the whole machine.
        enforced: Whether the limit is enforced whatever the mode (Windows).
    """

    mode: int | None = None
    ratio_percent: int | None = None
    limit_bytes: int | None = None
    charge_bytes: int | None = None
    enforced: bool = False

    @property
    def headroom_bytes(self) -> int | None:
        """What the limit leaves, negative when it is exceeded already."""
        if self.limit_bytes is None or self.charge_bytes is None:
            return None
        return self.limit_bytes - self.charge_bytes

    @property
    def is_enforced(self) -> bool:
        """Whether the kernel enforces the limit: Linux in mode 2, and Windows."""
        return self.mode == 2 or self.enforced


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """What is between this process and the hardware, as far as that is visible.

    Attributes:
        container: The kind of container, such as ``docker``, ``kubernetes`` or ``podman``.
        hypervisor: The name of the hypervisor, such as ``KVM``; ``unknown`` when only the processor says that there is one.
        wsl: 1 or 2 under the Windows Subsystem for Linux.
        gvisor: Whether the kernel is gVisor's.
    """

    container: str | None = None
    hypervisor: str | None = None
    wsl: int | None = None
    gvisor: bool = False


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """Resource limits of this process; ``None`` is unknown.

    Attributes:
        address_space: ``RLIMIT_AS``.
        data: ``RLIMIT_DATA``.
        locked_memory: ``RLIMIT_MEMLOCK``.
        locked_exempt: Whether that does not hold for this process (CAP_IPC_LOCK).
        descriptors: ``RLIMIT_NOFILE``.
        descriptors_used: Open files of this process.
        tasks: ``RLIMIT_NPROC``; it does not hold for root, or with CAP_SYS_ADMIN or
            CAP_SYS_RESOURCE.
        tasks_used: Processes and threads of this user.
        tasks_exempt: Whether ``RLIMIT_NPROC`` does not hold for this process.
        threads_refused: Whether a seccomp filter, where there is one, lets no thread be started.
        cpu_s: ``RLIMIT_CPU``.
    """

    address_space: ResourceLimit | None = None
    data: ResourceLimit | None = None
    locked_memory: ResourceLimit | None = None
    locked_exempt: bool = False
    descriptors: ResourceLimit | None = None
    descriptors_used: int | None = None
    tasks: ResourceLimit | None = None
    tasks_used: int | None = None
    tasks_exempt: bool = False
    threads_refused: bool = False
    cpu_s: ResourceLimit | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts of one machine at one moment.

    Attributes:
        page_bytes: The unit of protection and residency.
        allocation_bytes: What the base of a reservation is a multiple of.
        device: The device in use; ``None`` for the host.
    """

    system: SystemFacts
    page_bytes: int
    allocation_bytes: int | None = None
    memory: MemoryFacts = field(default_factory=MemoryFacts)
    huge_pages: HugePageFacts = field(default_factory=HugePageFacts)
    commit: CommitFacts = field(default_factory=CommitFacts)
    cgroup: CgroupFacts = field(default_factory=CgroupFacts)
    process: ProcessLimits = field(default_factory=ProcessLimits)
    environment: EnvironmentFacts = field(default_factory=EnvironmentFacts)
    limits: LimitFacts = field(default_factory=LimitFacts)
    device: DeviceFacts | None = None

    @property
    def machine_bounds(self) -> dict[str, int]:
        """What each limit leaves all processes to commit and touch, by the name of its check."""
        return _known(
            {
                "cgroup-limit": self.cgroup.available_bytes,
                "commit-limit": self.commit.headroom_bytes if self.commit.is_enforced else None,
                "available-memory": self.memory.reclaimable_available_bytes,
            }
        )

    @property
    def process_bounds(self) -> dict[str, int]:
        """What each limit of this process alone leaves it, by the name of its check."""
        process = self.process
        return _known(
            {
                "address-space-limit": _left(
                    process.address_space_limit_bytes, process.address_space_bytes
                ),
                "data-limit": _left(process.data_limit_bytes, process.data_bytes),
            }
        )

    @property
    def safe_bounds(self) -> dict[str, int]:
        """What each limit lets this process commit safely, by the name of its check.

        Whole MiB; the key is ``unknown`` where the platform does not say what is available.
        """
        machine = {name: safe_part(left) for name, left in self.machine_bounds.items()}
        process = {
            name: (left - min(_SPARE_BYTES, left // 2)) // MIB * MIB
            for name, left in self.process_bounds.items()
        }
        return (machine or {"unknown": safe_part(None)}) | process

    def huge_page_bounds(self, page_bytes: int) -> dict[str, int]:
        """What the pool of reserved huge pages of a size, and its control group, leave.

        They are apart from all other memory: what is available to the one is not to the other.
        """
        bounds = {}
        for pool in self.huge_pages.pools:
            if pool.page_bytes == page_bytes:
                left = pool.free if pool.available is None else pool.available
                bounds["huge-page-pool"] = left * page_bytes
        for group in self.cgroup.huge_pages:
            if group.page_bytes == page_bytes:
                bounds["huge-page-group"] = max(group.limit - group.used, 0)
        return bounds

    @property
    def most_at_once_bytes(self) -> int | None:
        """The largest commit of Linux's heuristic mode; ``None`` in other modes."""
        total = self.memory.total_bytes
        if self.commit.mode != 0 or total is None:
            return None
        return total + (self.memory.swap_total_bytes or 0)

    @property
    def machine_available_bytes(self) -> int | None:
        """What all processes together can still commit: the least of RAM, control groups and charge."""
        return min(self.machine_bounds.values(), default=None)

    @property
    def available_bytes(self) -> int | None:
        """What this process can still commit: the same, and what its own limits leave."""
        return min((self.machine_bounds | self.process_bounds).values(), default=None)

    @property
    def safe_bytes(self) -> int:
        """What this process can commit without endangering the machine, in whole MiB."""
        return min(self.safe_bounds.values())

    @property
    def limiting_bound(self) -> str:
        """The name of the limit that :attr:`safe_bytes` comes from."""
        bounds = self.safe_bounds
        return min(bounds, key=bounds.__getitem__)


def _left(limit: int | None, used: int | None) -> int | None:
    return None if limit is None else limit - (used or 0)


def _known(bounds: dict[str, int | None]) -> dict[str, int]:
    return {name: max(left, 0) for name, left in bounds.items() if left is not None}


def safe_part(available: int | None) -> int:
    """Return the part of *available* that a benchmark may commit, in whole MiB.

    At least a fifth is kept in reserve, and 256 MiB, or two fifths where that is less; 1 GiB is safe
    where what is available is not known.
    """
    if available is None:
        return GIB
    kept = max(available // 5, min(_KEEP_BYTES, available * 2 // 5))
    return (available - kept) // MIB * MIB
