"""When and where something was measured, how busy the machine was, and the peak memory use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.machine.kernel_files import KernelFiles

if TYPE_CHECKING:
    from vmtool.machine.kernel_files import Files

_CPU: Final = "/sys/devices/system/cpu"
#: Settings of the kernel that change what committing and releasing cost.
_SYSCTLS: Final = (
    *("vm.swappiness", "vm.min_free_kbytes", "vm.watermark_scale_factor", "vm.zone_reclaim_mode"),
    *("vm.compaction_proactiveness", "kernel.numa_balancing"),
)


@dataclass(frozen=True, slots=True)
class RunConditions:
    """When and where a result was measured.

    Attributes:
        started: UTC, such as ``2026-11-30T22:30:00Z``.
        host: The machine's name; ``None`` with ``--no-host``.
        uptime_s: Since the machine was started.
        load_average: Over 1, 5 and 15 minutes, before the run.
        idle_share: The part of all processors' time that was idle during the run, from 0 to 1;
            ``None`` where that time is below a second in all.
        cpu_governor: The governor of the first processor, such as ``performance``.
        mitigations: What the kernel does about each vulnerability that this processor has.
        microcode: The revision of the processor's microcode.
        nvidia_driver: The version of NVIDIA's kernel module, where it is loaded.
        distribution: The distribution of this container or machine, such as ``Debian GNU/Linux 13 (trixie)``.
        sysctls: Settings of the kernel that change what committing and releasing cost.
    """

    started: str
    host: str | None = None
    uptime_s: int | None = None
    load_average: tuple[float, float, float] | None = None
    idle_share: float | None = None
    cpu_governor: str | None = None
    mitigations: Mapping[str, str] = field(default_factory=dict)
    microcode: str | None = None
    nvidia_driver: str | None = None
    distribution: str | None = None
    sysctls: Mapping[str, str] = field(default_factory=dict)


class _Times(NamedTuple):
    idle: float
    total: float


class RunConditionsWatch:
    """Notes the start of a measurement, and at its end what the processors did meanwhile.

    Args:
        name_host: Whether the machine's name goes into the result.
        files: Where the kernel's files are read.
    """

    def __init__(self, *, name_host: bool = True, files: Files | None = None) -> None:
        self._files = files or KernelFiles()
        now = datetime.now(UTC)
        self._started = now.isoformat(timespec="seconds").replace("+00:00", "Z")
        self._host = _host() if name_host else None
        self._uptime_s = _uptime_s(now)
        self._load = _load_average()
        self._before = _cpu_times()

    def finish(self) -> RunConditions:
        """Return the conditions of the time since this was made."""
        before, after = self._before, _cpu_times()
        idle = total = 0.0
        if before is not None and after is not None:
            idle, total = after.idle - before.idle, after.total - before.total
        return RunConditions(
            started=self._started,
            host=self._host,
            uptime_s=self._uptime_s,
            load_average=self._load,
            # The kernel counts in ticks of 10 ms: a share of fewer than 100 says little.
            idle_share=round(idle / total, 3) if total >= 1 else None,
            cpu_governor=self._line(f"{_CPU}/cpu0/cpufreq/scaling_governor"),
            mitigations=self._mitigations(),
            microcode=self._entry("/proc/cpuinfo", "microcode", ":"),
            nvidia_driver=self._line("/sys/module/nvidia/version"),
            distribution=self._entry("/etc/os-release", "PRETTY_NAME", "="),
            sysctls={
                name: value
                for name in _SYSCTLS
                if (value := self._line(f"/proc/sys/{name.replace('.', '/')}")) is not None
            },
        )

    def _line(self, path: str) -> str | None:
        return (self._files.read(path) or "").strip() or None

    def _entry(self, path: str, name: str, separator: str) -> str | None:
        """Return the first value of *name* in a file of lines, without quotes."""
        for line in (self._files.read(path) or "").splitlines():
            key, found, value = line.partition(separator)
            if found and key.strip() == name:
                return value.strip().strip('"') or None
        return None

    def _mitigations(self) -> dict[str, str]:
        folder = f"{_CPU}/vulnerabilities"
        found = {
            name: (self._files.read(f"{folder}/{name}") or "").strip()
            for name in self._files.names(folder)
        }
        return {name: text for name, text in found.items() if text not in {"", "Not affected"}}


def peak_resident_bytes(files: Files | None = None) -> int | None:
    """Return the most that this process ever had resident; ``None`` where that is not available."""
    if sys.platform == "linux":
        # getrusage() would include what the parent had before exec; VmHWM is of this program alone.
        status = (files or KernelFiles()).read("/proc/self/status") or ""
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
        return None if line is None else int(line.split()[1]) * 1024
    elif sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _host() -> str | None:
    import socket

    try:
        return socket.gethostname() or None
    except OSError:
        return None


def _load_average() -> tuple[float, float, float] | None:
    if sys.platform == "win32":
        return None  # psutil simulates it there, beginning at 0 with each process
    try:
        one, five, fifteen = os.getloadavg()
    except OSError:
        return None
    return round(one, 2), round(five, 2), round(fifteen, 2)


#: What psutil raises where /proc is missing or hidden.
_UNREADABLE: Final = (ImportError, OSError, RuntimeError, ValueError, KeyError)


def _uptime_s(now: datetime) -> int | None:
    try:
        import psutil

        return max(round(now.timestamp() - psutil.boot_time()), 0)
    except _UNREADABLE:
        return None


def _cpu_times() -> _Times | None:
    try:
        import psutil

        times = psutil.cpu_times()
    except _UNREADABLE:
        return None
    idle = times.idle + getattr(times, "iowait", 0.0)
    # guest time is counted in user time as well.
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return _Times(idle, sum(times) - guest)
