"""What the machine runs in: a container, a virtual machine, WSL or gVisor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from vmtool.machine.facts import EnvironmentFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.machine.kernel_files import Files


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
