"""The memory limits in words: what each one leaves, and how to raise it or to free RAM."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from vmtool.memory.rlimits_and_privileges import how_to_raise, lift_address_space_limit
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.cgroups import CgroupLevel
    from vmtool.machine.facts import MachineFacts

#: What frees RAM, and what shows who has it.
FREE_RAM: Final = "stop other programs that use RAM: " + {
    "linux": "`ps aux --sort=-rss | head`",
    "darwin": "`top -o mem`",
}.get(sys.platform, "Task Manager lists them by memory")
#: The limits of memory in a few words, by the names that documents have.
BOUND_WORDS: Final = {
    "cgroup-limit": "the limit of the control group",
    "commit-limit": "the commit limit",
    "available-memory": "available RAM",
    "address-space-limit": "RLIMIT_AS",
    "data-limit": "RLIMIT_DATA",
    "unknown": "a guess, as available memory is unknown",
}
#: How to get more memory to commit, by the limit in the way.
_HOW_TO_RAISE: Final = {
    "device-memory": "free some of it first: nvidia-smi shows the processes that use it",
    "available-memory": FREE_RAM,
    "cgroup-limit": "raise the limit of that control group",
    "commit-limit": "raise the commit limit: sysctl -w vm.overcommit_ratio=95, or add swap",
    "unknown": "commit less",
}


def describe_bound(name: str, facts: MachineFacts) -> str:
    """Return what the limit called *name* leaves, with its numbers.

    Args:
        name: A key of :attr:`vmtool.machine.facts.MachineFacts.safe_bounds`.
        facts: The machine.
    """
    process = facts.process
    left = format_size((facts.machine_bounds | facts.process_bounds).get(name, 0))
    if name == "cgroup-limit" and (level := facts.cgroup.tightest) is not None:
        words = (
            f"the control group {level.path} leaves {left} of {format_size(level.bound_bytes or 0)}"
        )
        if level.throttles:
            words += " (memory.high)"
        return words
    if name == "commit-limit":
        return f"the commit limit leaves {left}"
    if name == "available-memory":
        return f"{left} of RAM is available"
    if name == "address-space-limit":
        return _limit("RLIMIT_AS", process.address_space_limit_bytes, process.address_space_bytes)
    if name == "data-limit":
        return _limit("RLIMIT_DATA", process.data_limit_bytes, process.data_bytes)
    return "available memory is unknown here, so 1 GiB is treated as safe"


def describe_safe(facts: MachineFacts, device_free: int | None = None) -> tuple[str, str]:
    """Return the limit that bounds what is safe to commit, and how to raise it.

    Args:
        facts: The machine.
        device_free: Free memory of the device, if the plan is for one.
    """
    if device_free is not None:
        return f"the device has {format_size(device_free)} free", _HOW_TO_RAISE["device-memory"]
    kind = facts.limiting_bound
    left = (facts.machine_bounds | facts.process_bounds).get(kind)
    words = describe_bound(kind, facts)
    if left is not None:
        words += f"; {format_size(left - facts.safe_bounds[kind])} of it is kept in reserve"
    return words, how_to_raise_bound(kind, facts)


def describe_huge_pages(facts: MachineFacts, page: int, wanted: int = 0) -> tuple[str, str]:
    """Return what bounds commits in reserved huge pages of a size, and how to have more of them.

    Args:
        facts: The machine.
        page: The size in bytes, of which the machine has a pool or a group a limit.
        wanted: Bytes that should fit.
    """
    bounds = facts.huge_page_bounds(page)
    kind, size = min(bounds, key=bounds.__getitem__), format_size(page)
    if kind == "huge-page-group":
        group = next(each for each in facts.cgroup.huge_pages if each.page_bytes == page)
        left = f"{format_size(bounds[kind])} of {format_size(group.limit)}"
        return (
            f"control group {group.path} leaves {left} in pages of {size}",
            "raise the hugetlb limit of that group: resources.limits.hugepages-SIZE of the pod",
        )
    pool = next(each for each in facts.huge_pages.pools if each.page_bytes == page)
    more = pool.total + max(-(-(wanted - bounds[kind]) // page), 1)
    return (
        f"the pool of huge pages of {size} has {format_size(bounds[kind])} free",
        f"echo {more} > /sys/kernel/mm/hugepages/hugepages-{page >> 10}kB/nr_hugepages",
    )


def how_to_raise_bound(kind: str, facts: MachineFacts) -> str:
    """Return how to get more memory to commit where the limit called *kind* is in the way."""
    if kind == "address-space-limit":
        return lift_address_space_limit(
            facts.limits.address_space, linux=facts.system.os == "Linux"
        )
    if kind == "data-limit":
        return how_to_raise("RLIMIT_DATA", limit=facts.limits.data)
    if kind == "cgroup-limit" and (level := facts.cgroup.tightest) is not None:
        return f"raise the limit of that control group: {group_limit_file(level)}"
    return _HOW_TO_RAISE[kind]


def group_limit_file(level: CgroupLevel) -> str:
    """Return the file of the limit that bounds *level*."""
    if level.version == 1:
        return f"{level.path}/memory.limit_in_bytes"
    return f"{level.path}/memory.{'high' if level.throttles else 'max'}"


def _limit(name: str, limit: int | None, used: int | None) -> str:
    return f"{name} is {format_size(limit or 0)} and {format_size(used or 0)} is in use"
