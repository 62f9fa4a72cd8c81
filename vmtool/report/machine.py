"""A machine, its devices, the conditions of a run and the names of settings, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import printable
from vmtool.machine.memory_limit_sentences import BOUND_WORDS
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from vmtool.machine.device_facts import DeviceFacts
    from vmtool.machine.facts import HugePageFacts, MachineFacts
    from vmtool.machine.kernel_files import MemoryPressure
    from vmtool.machine.nvml import DeviceProcess
    from vmtool.machine.run_conditions import RunConditions


_SWITCHES: Final = {"ecc": "ECC", "mig": "MIG", "mps": "MPS", "persistence": "persistence"}
_MODES: Final = {0: "heuristic", 1: "always", 2: "never"}
#: Rows of other systems that macOS does not have.
_NOT_ON_MACOS: Final = ("control group", "transparent huge pages", "commit charge", "memory areas")
#: Settings whose names say too little to somebody who does not know the options.
_SETTINGS: Final = {
    "capacity_bytes": "reserved for each buffer",
    "huge": "huge pages",
    "threads": "threads in each worker",
    "inject": "injected faults",
    "retain_bytes": "most unmapped memory of a pool",
    "hold": "whole budget held once",
    "huge_page_bytes": "reserved huge pages",
    "node": "NUMA node",
    "clear": "pool memory cleared when mapped",
}
_UNITS: Final = (" in bytes", "_bytes", "_ns")
_CUDA_VERSION: Final = "CUDA version of the driver"


def device_words(device: DeviceFacts | Mapping[str, Any]) -> str:
    """Return what is known of a device beside its name, and how far its figures are the driver's.

    Args:
        device: Its facts, or those of a stored result.
    """

    def get(name: str) -> Any:
        return device.get(name) if isinstance(device, Mapping) else getattr(device, name)

    version = get("driver_version")
    parts = []
    if version is not None:
        from vmtool.memory.cuda.errors_and_diagnosis import dotted  # noqa: PLC0415 - most have no device

        parts.append(f"CUDA {dotted(version)}")
    labels = {"driver_model": "", "module_version": "module ", "pci": "PCI "}
    parts += [f"{label}{get(name)}" for name, label in labels.items() if get(name)]
    for name, label in _SWITCHES.items():
        value = get(name)
        parts.append(f"{label} {'unknown' if value is None else 'on' if value else 'off'}")
    parts.append(f"compute mode {get('compute_mode') or 'unknown'}")
    if get("integrated"):
        parts.append("integrated: it shares the host's memory")
    elif get("coherent"):
        parts.append("coherent: its memory is a NUMA node of the host")
    fresh, cost = get("fresh_zero"), get("binding_ns")
    if fresh is not None:
        parts.append(f"new memory was {'zero' if fresh else 'not zero'}")
    if cost is not None:
        parts.append(f"Python and the binding add about {format_duration(cost)} to each call")
    if users := get("used_by"):
        parts.append(f"in use by {', '.join(map(_user, users))}")
    return ", ".join(parts)


def _user(process: DeviceProcess | Mapping[str, Any]) -> str:
    from vmtool.json_documents import plain  # noqa: PLC0415 - doctor starts without msgspec

    each = process if isinstance(process, Mapping) else plain(process)
    who = f"{printable(each.get('name') or 'a process')} ({each.get('pid')})"
    used = each.get("used_bytes")
    return who if used is None else f"{who} with {format_size(used)}"


def running_on(facts: MachineFacts) -> str:
    """Return the mark of figures that were measured under Wine, and not on Windows."""
    return f", {system_name(facts)}" if facts.system.os == "Wine" else ""


def system_name(facts: MachineFacts) -> str:
    """Return the system and its version; figures of Wine are not figures of Windows."""
    words = f"{facts.system.os} {facts.system.kernel}"
    return f"{words}, not Windows" if facts.system.os == "Wine" else words


def conditions_line(conditions: RunConditions, label: str | None, machine: Any) -> str:
    """Return when and where a result was measured, and what else went on, in one line."""
    system = machine.get("system", {})
    parts = [moment(conditions.started)]
    if conditions.host:
        parts.append(conditions.host)
    if system:
        parts.append(f"{system.get('os')} {system.get('kernel')}")
    if conditions.load_average is not None:
        parts.append(f"load {conditions.load_average[0]:.1f}")
    if conditions.idle_share is not None:
        parts.append(f"{100 * conditions.idle_share:.0f} % idle")
    if conditions.cpu_governor is not None:
        parts.append(f"governor {conditions.cpu_governor}")
    text = ", ".join(parts)
    return printable(f"{label}: {text}" if label else text)


def machine_words(machine: Mapping[str, Any]) -> str:
    """Return what a machine is in a few words, from the facts in a document."""
    # A file may hold facts of any shape.
    found = (machine.get(key) for key in ("system", "memory", "device"))
    system, memory, device = (part if isinstance(part, dict) else {} for part in found)
    parts = []
    if system.get("cpu_model"):
        parts.append(str(system["cpu_model"]))
    if system.get("cpus"):
        parts.append(f"{system['cpus']} processor{'' if system['cpus'] == 1 else 's'}")
    if isinstance(memory.get("total_bytes"), int):
        parts.append(f"{format_size(memory['total_bytes'])} of RAM")
    if device.get("name"):
        parts.append(str(device["name"]))
    if system.get("os"):
        parts.append(f"{system['os']} {system.get('kernel') or ''}".strip())
    return ", ".join(parts)


def moment(started: str) -> str:
    """Return a time of a document as people write it."""
    return started.replace("T", " ").replace("Z", " UTC")


def page_place(conditions: RunConditions | None, machine: Mapping[str, Any]) -> list[str]:
    """Return when and where a result was measured, for the head of its page."""
    words = machine_words(machine)
    if conditions is None:
        return [words] if words else []
    parts = [moment(conditions.started), conditions.host, words]
    if conditions.load_average is not None:
        parts.append(f"load {conditions.load_average[0]:.1f}")
    if conditions.idle_share is not None:
        parts.append(f"{100 * conditions.idle_share:.0f} % idle")
    if conditions.cpu_governor is not None:
        parts.append(f"governor {conditions.cpu_governor}")
    return [part for part in parts if part]


def machine_rows(facts: MachineFacts) -> list[tuple[str, str]]:
    """Return the facts of the machine by name; what is unknown is left out.

    What macOS alone does not have is "not available".
    """
    system = facts.system
    missing = _NOT_ON_MACOS if system.os == "Darwin" else ()
    return [
        ("system", f"{system_name(facts)}, {system.arch}{_inside(facts)}"),
        ("processor", f"{system.cpu_model or 'unknown'}, {system.cpus} logical"),
        *_memory(facts),
        *_huge_pages(facts.huge_pages),
        *_commit(facts),
        *_limits(facts),
        *((label, "not available") for label in missing),
        (
            "safe to commit",
            f"{format_size(facts.safe_bytes)} (limited by {BOUND_WORDS[facts.limiting_bound]})",
        ),
    ]


def page_machine_rows(machine: MachineFacts | Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a page about the machine and its device.

    Args:
        machine: Its facts, or those of a result: nothing is shown of facts that have no such shape.
    """
    from vmtool.json_documents import DocumentError, decode  # noqa: PLC0415 - not for text reports
    from vmtool.machine.facts import MachineFacts  # noqa: PLC0415 - likewise

    try:
        facts = decode(MachineFacts, machine) if isinstance(machine, Mapping) else machine
    except DocumentError:
        return []
    rows = [(name.strip(), value) for name, value in machine_rows(facts)]
    device = facts.device
    return rows if device is None else [*rows, ("device", f"{device.name}, {device_words(device)}")]


def _inside(facts: MachineFacts) -> str:
    environment = facts.environment
    parts = []
    if environment.container:
        parts.append(f"container ({environment.container})")
    if environment.wsl:
        parts.append(f"WSL{environment.wsl}")
    if environment.gvisor:
        parts.append("gVisor")
    if environment.hypervisor:
        name = environment.hypervisor
        parts.append("virtual machine" + ("" if name == "unknown" else f" ({name})"))
    return ", in " + ", ".join(parts) if parts else ""


def _memory(facts: MachineFacts) -> list[tuple[str, str]]:
    memory, rows = facts.memory, []
    if memory.total_bytes is not None:
        text = format_size(memory.total_bytes)
        if memory.available_bytes is not None:
            text += f", {format_size(memory.available_bytes)} available"
        if memory.arc_bytes:
            text += f" and {format_size(memory.arc_bytes)} of ZFS' cache"
        rows.append(("RAM", text))
    if memory.swap_total_bytes is not None:
        swap = format_size(memory.swap_total_bytes) if memory.swap_total_bytes else "none"
        if facts.system.os == "Darwin":
            swap += " so far; macOS adds more as needed"
        rows.append(("swap", swap))
    if memory.nodes:
        nodes = (f"{node.number}: {format_size(node.free_bytes)} free" for node in memory.nodes)
        rows.append(("NUMA nodes", ", ".join(nodes) if len(memory.nodes) > 1 else "1"))
    for label, pressure in _pressures(facts):
        percents = f"{pressure.some_percent:g} % of the last 10 s"
        rows.append((label, f"tasks waited {percents}, all of them {pressure.full_percent:g} %"))
    level = facts.cgroup.tightest
    if level is not None:
        left = format_size(level.available_bytes or 0)
        bound = format_size(level.bound_bytes or 0)
        high = " (memory.high)" if level.throttles else ""
        where = f"v{level.version}, {level.path}"
        rows.append(("control group", f"{left} left of {bound}{high} ({where})"))
        if level.cache_bytes is not None and level.used_bytes is not None:
            used, cache = format_size(level.used_bytes), format_size(level.cache_bytes)
            drop = format_size(level.reclaimable_bytes)
            rows.append(("  used", f"{used}, {cache} of it cache ({drop} can be dropped at once)"))
    elif facts.cgroup.levels:
        count = len(facts.cgroup.levels)
        rows.append(
            ("control group", f"no limit (v{facts.cgroup.levels[0].version}, {count} levels)")
        )
    return rows


def _pressures(facts: MachineFacts) -> list[tuple[str, MemoryPressure]]:
    """Return the pressures that are not zero."""
    level = facts.cgroup.tightest
    found = (
        ("memory pressure", facts.memory.pressure),
        ("  in the group", None if level is None else level.pressure),
    )
    return [
        (label, pressure)
        for label, pressure in found
        if pressure is not None and pressure.some_percent > 0
    ]


def _huge_pages(huge: HugePageFacts) -> list[tuple[str, str]]:
    rows = []
    if huge.thp_mode is not None:
        size = "" if huge.pmd_bytes is None else f", {format_size(huge.pmd_bytes)}"
        rows.append(("transparent huge pages", f"{huge.thp_mode}{size}, defrag {huge.thp_defrag}"))
    if huge.sizes:
        by_mode: dict[str, list[str]] = {}
        for each in huge.sizes:
            by_mode.setdefault(each.mode, []).append(format_size(each.page_bytes))
        text = "; ".join(f"{mode}: {', '.join(names)}" for mode, names in by_mode.items())
        rows.append(("  other sizes", text))
    if huge.pools:
        pools = (f"{format_size(p.page_bytes)}: {p.free:,} of {p.total:,} free" for p in huge.pools)
        rows.append(("reserved huge pages", "; ".join(pools)))
    if huge.large_bytes is not None:
        allowed = {True: "allowed", False: "not allowed", None: "unknown whether allowed"}
        size = format_size(huge.large_bytes)
        rows.append(("large pages", f"{size}, {allowed[huge.large_privilege]} for this user"))
    return rows


def _commit(facts: MachineFacts) -> list[tuple[str, str]]:
    commit, rows = facts.commit, []
    if commit.mode is not None:
        ratio = "" if commit.ratio_percent is None else f", ratio {commit.ratio_percent} %"
        rows.append(("overcommit", f"{commit.mode} ({_MODES.get(commit.mode, 'unknown')}{ratio})"))
    if commit.charge_bytes is not None and commit.limit_bytes is not None:
        enforced = "" if commit.is_enforced else "; not enforced here"
        charge, limit = format_size(commit.charge_bytes), format_size(commit.limit_bytes)
        rows.append(("commit charge", f"{charge} of {limit}{enforced}"))
        headroom = commit.limit_bytes - commit.charge_bytes
        left = f"{format_size(headroom)} left" if headroom >= 0 else "exceeded"
        rows.append(("  headroom", left))
    return rows


def _limits(facts: MachineFacts) -> list[tuple[str, str]]:
    process, rows = facts.process, []
    if process.mappings is not None:
        limit = "" if process.max_mappings is None else f" of {process.max_mappings:,}"
        rows.append(("memory areas", f"{process.mappings:,}{limit}"))
    for label, limit_bytes in (
        ("RLIMIT_AS", process.address_space_limit_bytes),
        ("RLIMIT_DATA", process.data_limit_bytes),
        ("RLIMIT_MEMLOCK", process.memlock_limit_bytes),
    ):
        if limit_bytes is not None:
            rows.append((label, format_size(limit_bytes)))
    limits, group = facts.limits, facts.cgroup.tasks
    if limits.descriptors is not None and limits.descriptors.soft is not None:
        rows.append(("RLIMIT_NOFILE", f"{limits.descriptors.soft:,}"))
    if limits.tasks is not None and limits.tasks.soft is not None and not limits.tasks_exempt:
        used = "" if limits.tasks_used is None else f", {limits.tasks_used:,} in use"
        rows.append(("RLIMIT_NPROC", f"{limits.tasks.soft:,}{used}"))
    if group is not None:
        rows.append(("pids.max", f"{group.limit:,}, {group.used:,} in use ({group.path})"))
    return rows


def fact_name(name: str) -> str:
    """Return the name of a setting or fact without its unit, as the value has one."""
    if name in _SETTINGS:
        return _SETTINGS[name]
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ") if name.islower() and "." not in name else name


def fact_text(name: str, value: str | float | None) -> str:
    """Return a setting or fact as people write it: sizes and durations with a unit."""
    if value is None or value == "":
        return "none" if value == "" else "not available"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("bytes"):
            return format_size(value)
        if name.endswith("_ns"):
            return format_duration(value)
        if name == _CUDA_VERSION:
            from vmtool.memory.cuda.errors_and_diagnosis import dotted  # noqa: PLC0415 - most have no device

            return dotted(value)
        if name != "seed":  # it is copied to a command line
            return f"{value:,}"
    return str(value)
