"""The facts of a machine as rows of a table, each with its unit and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vmtool.report.table import plain_table
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import HugePageFacts, MachineFacts
    from vmtool.report.table import ReportTable

_MODES: Final = {0: "heuristic", 1: "always", 2: "never"}
#: What other systems tell and macOS does not.
_NOT_ON_MACOS: Final = ("control group", "transparent huge pages", "commit charge", "memory areas")


def machine_body(facts: MachineFacts) -> dict[str, Any]:
    """Return the facts and what follows from them, as keys of a JSON document."""
    return {
        "machine": facts,
        "available_bytes": facts.available_bytes,
        "safe_bytes": facts.safe_bytes,
        "limiting_bound": facts.limiting_bound,
    }


def machine_rows(facts: MachineFacts) -> ReportTable:
    """Return what this machine is, has and allows; what it does not tell is left out.

    What macOS alone does not tell is said to be not available.
    """
    table = plain_table("this machine", ("", "left"))
    system = facts.system
    table.add_row("system", f"{system.os} {system.kernel}, {system.arch}{_inside(facts)}")
    table.add_row("processor", f"{system.cpu_model or 'unknown'}, {system.cpus} logical")
    missing = _NOT_ON_MACOS if system.os == "Darwin" else ()
    for label, text in (
        *_memory(facts),
        *_huge_pages(facts.huge_pages),
        *_commit(facts),
        *_limits(facts),
        *((label, "not available") for label in missing),
    ):
        table.add_row(label, text)
    table.add_row(
        "safe to commit", f"{format_size(facts.safe_bytes)} (limited by {facts.limiting_bound})"
    )
    return table


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
        rows.append(("RAM", text))
    if memory.swap_total_bytes is not None:
        swap = format_size(memory.swap_total_bytes) if memory.swap_total_bytes else "none"
        if facts.system.os == "Darwin":
            swap += " so far; macOS makes more as it needs it"
        rows.append(("swap", swap))
    level = facts.cgroup.tightest
    if level is not None:
        left = format_size(level.available_bytes or 0)
        bound = format_size(level.bound_bytes or 0)
        rows.append(("control group", f"{left} left of {bound} (v{level.version}, {level.path})"))
    elif facts.cgroup.levels:
        count = len(facts.cgroup.levels)
        rows.append(("control group", f"no limit (v{facts.cgroup.levels[0].version}, {count} up)"))
    return rows


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
        rows.append(("  of several sizes", text))
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
    return rows
