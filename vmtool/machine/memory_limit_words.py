"""The limits of memory in words: what each of them leaves, and what frees RAM."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from vmtool.units import format_size

if TYPE_CHECKING:
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


def _limit(name: str, limit: int | None, used: int | None) -> str:
    return f"{name} is {format_size(limit or 0)} and {format_size(used or 0)} is in use"
