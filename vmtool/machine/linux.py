"""The facts of a Linux machine, and the container, virtual machine or WSL that it runs in."""

from __future__ import annotations

import mmap
import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vmtool.machine.cgroups import read_cgroups
from vmtool.machine.facts import (
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    HugeSize,
    MachineFacts,
    MemoryFacts,
    NumaNode,
)
from vmtool.machine.facts_on_every_system import read_limits, read_memory, read_system
from vmtool.machine.kernel_files import (
    KernelFiles,
    parse_choice,
    parse_int,
    parse_pairs,
    parse_pressure,
)
from vmtool.memory.counter_types import parse_kib
from vmtool.memory.counters import read_process_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vmtool.machine.kernel_files import Files


#: The size of a reserved huge page is in the flags of mmap (include/uapi/asm-generic/hugetlb_encode.h).
_MAP_HUGETLB: Final = 0x40000
_MAP_HUGE_SHIFT: Final = 26
_PATH_HINTS: Final = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)
_PRODUCT_HINTS: Final = (
    ("kvm", "KVM"),
    ("qemu", "QEMU"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("virtual machine", "Hyper-V"),
    ("amazon ec2", "Amazon EC2"),
    ("google compute engine", "Google Compute Engine"),
    ("openstack", "OpenStack"),
)
# gVisor reports a fixed build date; newer versions also put their name into the release.
_GVISOR_HINTS: Final = ("gvisor", "Sun Jan 10 15:06:54 PST 2016")
_MM = "/sys/kernel/mm"
_THP = f"{_MM}/transparent_hugepage"
_POOLS = "/sys/kernel/mm/hugepages"
_NODES = "/sys/devices/system/node"
_SIZED = re.compile(r"hugepages-([0-9]+)kB")


def read_linux_facts(files: Files | None = None) -> MachineFacts:
    """Return the facts of this machine.

    Args:
        files: Where to read them; the kernel's own files by default.
    """
    source = KernelFiles() if files is None else files
    meminfo = parse_kib(source.read("/proc/meminfo"))
    return MachineFacts(
        system=read_system(parse_cpu_model(source.read("/proc/cpuinfo"))),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=replace(
            _parse_memory(meminfo, parse_pairs(source.read("/proc/vmstat")).get("oom_kill"))
            or (read_memory() if files is None else MemoryFacts()),
            arc_bytes=_parse_arc(source.read("/proc/spl/kstat/zfs/arcstats")),
            pressure=parse_pressure(source.read("/proc/pressure/memory")),
            nodes=read_nodes(source),
        ),
        huge_pages=read_huge_pages(
            source, try_huge_mapping if files is None else lambda _size: None
        ),
        commit=CommitFacts(
            mode=parse_int(source.read("/proc/sys/vm/overcommit_memory")),
            ratio_percent=parse_int(source.read("/proc/sys/vm/overcommit_ratio")),
            limit_bytes=meminfo.get("CommitLimit"),
            charge_bytes=meminfo.get("Committed_AS"),
        ),
        cgroup=read_cgroups(source),
        process=read_process_limits(),
        environment=read_environment(source),
        limits=read_limits(),
    )


def _parse_memory(meminfo: Mapping[str, int], oom_kills: int | None) -> MemoryFacts | None:
    """Return RAM and swap, or ``None`` for a kernel before 3.14, where psutil estimates them.

    psutil reads the same file, but loading it takes longer than all else that is read here.
    """
    total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
    if total is None or available is None:
        return None
    return MemoryFacts(
        total,
        min(available, total),  # what lxcfs shows may be of the host
        meminfo.get("SwapTotal"),
        meminfo.get("SwapFree"),
        oom_kills,
    )


def _parse_arc(arcstats: str | None) -> int:
    """Return what ZFS' cache can give up: its size above its minimum (OpenZFS, ``arcstats``)."""
    rows = (line.split() for line in (arcstats or "").splitlines())
    values = {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[2].isdecimal()}
    return max(values.get("size", 0) - values.get("c_min", 0), 0)


def read_nodes(files: Files) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have memory."""
    found = []
    for name in files.names(_NODES):
        number = name.removeprefix("node")
        if not name.startswith("node") or not number.isdecimal():
            continue
        text = files.read(f"{_NODES}/{name}/meminfo") or ""
        # Lines begin with the name of the node.
        values = parse_kib(
            "\n".join(line.partition(f"Node {number}")[2] for line in text.splitlines())
        )
        if values.get("MemTotal"):
            total, free = values["MemTotal"], values.get("MemFree", 0)
            found.append(NumaNode(int(number), total, free))
    return tuple(sorted(found, key=lambda node: node.number))


def read_huge_pages(files: Files, try_map: Callable[[int], bool | None]) -> HugePageFacts:
    """Return the modes and pools of huge pages; empty where the kernel has none.

    Args:
        files: Where to read.
        try_map: Maps one reserved page of a size, or with 0 advises a small mapping to be huge, and
            returns whether the kernel accepts that.
    """
    sizes = [
        HugeSize(page_bytes, mode)
        for page_bytes, path in _sized(files, _THP)
        if (mode := parse_choice(files.read(f"{path}/enabled"))) is not None
    ]
    pools = [
        HugePool(
            page_bytes,
            total,
            free,
            try_map(page_bytes) if free else None,
            _available_pages(files, path, free),
        )
        for page_bytes, path in _sized(files, _POOLS)
        if (total := parse_int(files.read(f"{path}/nr_hugepages"))) is not None
        and (free := parse_int(files.read(f"{path}/free_hugepages")) or 0) is not None
    ]
    hidden = not files.exists(_MM)
    return HugePageFacts(
        thp_mode=parse_choice(files.read(f"{_THP}/enabled")),
        thp_defrag=parse_choice(files.read(f"{_THP}/defrag")),
        pmd_bytes=parse_int(files.read(f"{_THP}/hpage_pmd_size")),
        thp_disabled_here="THP_enabled:\t0" in (files.read("/proc/self/status") or ""),
        collapse_empty_pages=parse_int(files.read(f"{_THP}/khugepaged/max_ptes_none")),
        sizes=tuple(sizes),
        pools=tuple(pools),
        hidden=hidden,
        advice_works=try_map(0) if hidden else None,
    )


def _available_pages(files: Files, path: str, free: int) -> int:
    """Return what a new mapping can have (Documentation/admin-guide/mm/hugetlbpage.rst)."""
    reserved, more, surplus = (
        parse_int(files.read(f"{path}/{name}_hugepages")) or 0
        for name in ("resv", "nr_overcommit", "surplus")
    )
    return max(free - reserved, 0) + max(more - surplus, 0)


def try_huge_mapping(page_bytes: int) -> bool | None:
    """Map one reserved huge page, untouched, or advise a mapping to be huge; say if that works.

    Args:
        page_bytes: The size of the page; 0 to try ``MADV_HUGEPAGE``.
    """
    if sys.platform != "linux":
        return None
    else:  # mypy needs both branches spelled out
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if page_bytes:
            flags |= _MAP_HUGETLB | (page_bytes.bit_length() - 1) << _MAP_HUGE_SHIFT
            flags -= (flags >> 31) << 32  # Python takes a signed C int
        try:
            with mmap.mmap(-1, page_bytes or mmap.PAGESIZE, flags=flags) as area:
                if not page_bytes:
                    area.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, MemoryError):
            return False
        return True


def parse_cpu_model(cpuinfo: str | None) -> str | None:
    """Return the processor's name from ``/proc/cpuinfo``; many arm64 kernels give none."""
    for line in (cpuinfo or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "cpu model", "cpu"} and value.strip():
            return value.strip()
    return None


def _sized(files: Files, directory: str) -> list[tuple[int, str]]:
    """Return the sizes and directories of ``hugepages-64kB`` and its like, ascending."""
    matches = (_SIZED.fullmatch(name) for name in files.names(directory))
    return sorted((int(m[1]) << 10, f"{directory}/{m[0]}") for m in matches if m is not None)


def read_environment(files: Files, variables: Mapping[str, str] = os.environ) -> EnvironmentFacts:
    """Return the container, virtual machine, WSL or sandbox around this process, each by a hint."""
    version = files.read("/proc/version") or ""
    return EnvironmentFacts(
        container=_container(files, variables),
        hypervisor=_hypervisor(files),
        wsl=parse_wsl(version),
        gvisor=any(hint in version for hint in _GVISOR_HINTS),
    )


def parse_wsl(version: str) -> int | None:
    """Return 1 or 2 for a kernel of the Windows Subsystem for Linux, from ``/proc/version``."""
    if "microsoft" not in version.lower():
        return None
    return 2 if "WSL2" in version or "microsoft-standard" in version else 1


def _container(files: Files, variables: Mapping[str, str]) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "kubernetes"
    if files.exists("/.dockerenv"):
        return "docker"
    if files.exists("/run/.containerenv"):
        return "podman"
    groups = files.read("/proc/self/cgroup") or ""
    for hint, name in _PATH_HINTS:
        if f"/{hint}" in groups:
            return name
    return variables.get("container") or None  # systemd's convention


def _hypervisor(files: Files) -> str | None:
    product = " ".join(
        files.read(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")
    ).lower()
    for hint, name in _PRODUCT_HINTS:
        if hint in product:
            return name
    kind = (files.read("/sys/hypervisor/type") or "").strip()
    if kind:
        return kind.capitalize()
    cpu = files.read("/proc/cpuinfo") or ""
    flags = next((line for line in cpu.splitlines() if line.startswith("flags")), "")
    return "unknown" if "hypervisor" in flags.split() else None
