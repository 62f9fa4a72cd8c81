"""The facts of a Linux machine: what psutil reads, and the kernel's own files for the rest."""

from __future__ import annotations

import mmap
import os
import re
from typing import TYPE_CHECKING, Final

from vmtool.machine.cgroup import read_cgroups
from vmtool.machine.facts import (
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    HugeSize,
    MachineFacts,
    MemoryFacts,
    read_memory,
    read_system,
)
from vmtool.machine.files import (
    KernelFiles,
    parse_choice,
    parse_int,
    parse_pairs,
)
from vmtool.memory.counters import read_process_limits
from vmtool.memory.process import parse_kib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.machine.files import Files

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


_THP = "/sys/kernel/mm/transparent_hugepage"
_POOLS = "/sys/kernel/mm/hugepages"
_SIZED = re.compile(r"hugepages-([0-9]+)kB")


def read_linux_facts(files: Files | None = None, memory: MemoryFacts | None = None) -> MachineFacts:
    """Return the facts of this machine.

    Args:
        files: Where to read them; the kernel's own files by default.
        memory: RAM and swap; what psutil reads by default.
    """
    source = KernelFiles() if files is None else files
    meminfo = parse_kib(source.read("/proc/meminfo"))
    return MachineFacts(
        system=read_system(parse_cpu_model(source.read("/proc/cpuinfo"))),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=memory or read_memory(parse_pairs(source.read("/proc/vmstat")).get("oom_kill")),
        huge_pages=read_huge_pages(source),
        commit=CommitFacts(
            mode=parse_int(source.read("/proc/sys/vm/overcommit_memory")),
            ratio_percent=parse_int(source.read("/proc/sys/vm/overcommit_ratio")),
            limit_bytes=meminfo.get("CommitLimit"),
            charge_bytes=meminfo.get("Committed_AS"),
        ),
        cgroup=read_cgroups(source),
        process=read_process_limits(),
        environment=read_environment(source),
    )


def read_huge_pages(files: Files) -> HugePageFacts:
    """Return the modes and pools of huge pages; empty where the kernel has none."""
    sizes = [
        HugeSize(page_bytes, mode)
        for page_bytes, path in _sized(files, _THP)
        if (mode := parse_choice(files.read(f"{path}/enabled"))) is not None
    ]
    pools = [
        HugePool(page_bytes, total, parse_int(files.read(f"{path}/free_hugepages")) or 0)
        for page_bytes, path in _sized(files, _POOLS)
        if (total := parse_int(files.read(f"{path}/nr_hugepages"))) is not None
    ]
    return HugePageFacts(
        thp_mode=parse_choice(files.read(f"{_THP}/enabled")),
        thp_defrag=parse_choice(files.read(f"{_THP}/defrag")),
        pmd_bytes=parse_int(files.read(f"{_THP}/hpage_pmd_size")),
        thp_disabled_here="THP_enabled:\t0" in (files.read("/proc/self/status") or ""),
        collapse_empty_pages=parse_int(files.read(f"{_THP}/khugepaged/max_ptes_none")),
        sizes=tuple(sizes),
        pools=tuple(pools),
    )


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
