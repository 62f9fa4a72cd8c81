"""How two runs differ in their machines and settings; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from vmtool.results.compare import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.machine.run_conditions import RunConditions
    from vmtool.results.stress import StressSettings

#: What must be alike for two runs to be comparable, by its path in the machine facts. What changes
#: from minute to minute (free memory, mappings in use) is not among it.
MACHINE_FACTS: Final = {
    "system.os": "operating system",
    "system.kernel": "kernel",
    "system.arch": "architecture",
    "system.cpu_model": "CPU",
    "system.cpus": "CPUs",
    "system.cpus_usable": "usable CPUs",
    "system.python": "Python",
    "page_bytes": "page size in bytes",
    "memory.total_bytes": "RAM in bytes",
    "memory.swap_total_bytes": "swap in bytes",
    "huge_pages.thp_mode": "THP mode",
    "huge_pages.thp_defrag": "THP defrag",
    "huge_pages.pmd_bytes": "huge page size in bytes",
    "commit.mode": "vm.overcommit_memory",
    "commit.ratio_percent": "vm.overcommit_ratio",
    "process.max_mappings": "vm.max_map_count",
    "process.address_space_limit_bytes": "RLIMIT_AS in bytes",
    "process.data_limit_bytes": "RLIMIT_DATA in bytes",
    "environment.container": "container",
    "environment.hypervisor": "hypervisor",
    "environment.wsl": "WSL version",
    "environment.gvisor": "gVisor",
    "device.name": "GPU",
    "device.total_bytes": "GPU memory in bytes",
    "device.compute_capability": "compute capability",
    "device.driver_version": "CUDA version of the driver",
    "device.driver_model": "driver model",
}
#: Likewise of the conditions, beside the kernel's settings and what it does about vulnerabilities.
_CONDITIONS: Final = {
    "CPU governor": "cpu_governor",
    "microcode": "microcode",
    "NVIDIA kernel module": "nvidia_driver",
    "distribution": "distribution",
}
#: The seed is left out: another order of the same work is still the same work.
_SETTINGS_IGNORED: Final = frozenset({"seed", "cycles", "duration_ns", "methods", "runs", "label"})


def machine_differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the facts in which two machines differ and that matter for comparing runs."""
    pairs = [
        (label, _lookup(before, path), _lookup(after, path))
        for path, label in MACHINE_FACTS.items()
    ]
    pairs.append(("cgroup limit in bytes", _cgroup_limit(before), _cgroup_limit(after)))
    for name, was, now in pairs:
        if was != now:
            yield Difference(name, was, now)


def _lookup(facts: Any, path: str) -> str | int | float | bool | None:
    for key in path.split("."):
        facts = facts.get(key) if isinstance(facts, Mapping) else None
    return facts if isinstance(facts, (str, int, float, bool)) else None


def _cgroup_limit(facts: Mapping[str, Any]) -> int | None:
    """Return the lowest limit of any control group above the process, as that one binds."""
    group = facts.get("cgroup")
    levels = group.get("levels") if isinstance(group, Mapping) else None
    limits = [
        level[key]
        for level in (levels if isinstance(levels, (list, tuple)) else ())
        if isinstance(level, Mapping)
        for key in ("limit_bytes", "high_bytes")
        if isinstance(level.get(key), int)
    ]
    return min(limits, default=None)


def condition_differences(
    before: RunConditions | None, after: RunConditions | None
) -> Iterator[Difference]:
    """Yield the conditions in which two runs differ, without those that come and go."""
    if before is None or after is None:
        return
    for name, field in _CONDITIONS.items():
        was, now = getattr(before, field), getattr(after, field)
        if was != now:
            yield Difference(name, was, now)
    for kind, was, now in (
        ("mitigation of", before.mitigations, after.mitigations),
        ("", before.sysctls, after.sysctls),
    ):
        for key in dict.fromkeys((*was, *now)):
            if was.get(key) != now.get(key):
                yield Difference(f"{kind} {key}".strip(), was.get(key), now.get(key))


def settings_differences(before: StressSettings, after: StressSettings) -> Iterator[Difference]:
    """Yield the settings that made two runs do different work."""
    for item in fields(before):
        if item.name in _SETTINGS_IGNORED:
            continue
        was, now = getattr(before, item.name), getattr(after, item.name)
        if was != now:
            yield Difference(item.name, _scalar(was), _scalar(now))


def _scalar(value: Any) -> str | int | float | bool | None:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value
