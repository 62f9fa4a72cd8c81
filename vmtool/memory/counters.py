"""The kernel's memory counters, for this process or for ranges of its addresses, and its limits.

The same functions on every platform; each platform's module says what is available there.
"""

from __future__ import annotations

import sys

from vmtool.memory.counter_types import Counters, MemoryLimits, ProcessLimits

if sys.platform == "win32":
    from vmtool.memory.windows.counters import (
        count_mappings,
        read_limits,
        read_process,
        read_process_limits,
        read_split,
    )
else:
    from vmtool.memory.posix.counters import (
        count_mappings,
        read_limits,
        read_process,
        read_process_limits,
        read_split,
    )

__all__ = (
    "Counters",
    "MemoryLimits",
    "ProcessLimits",
    "count_mappings",
    "read_limits",
    "read_node_bytes",
    "read_process",
    "read_process_limits",
    "read_range",
    "read_split",
)


def read_node_bytes(base: int, nbytes: int) -> dict[int, int] | None:
    """Return how many bytes of a range are in RAM on each NUMA node, by the kernel's count.

    ``None`` where the kernel does not say: outside Linux, or without CONFIG_NUMA.
    """
    if sys.platform == "linux":
        from vmtool.memory.posix.numa import count_node_bytes

        try:
            return count_node_bytes(base, nbytes)
        except OSError:
            return None
    else:
        return None


def read_range(base: int, nbytes: int) -> Counters:
    """Return the counters of ``base..base + nbytes``, areas that reach outside clipped to it.

    Raises nothing; a counter that cannot be read is ``None``.
    """
    return read_split(((base, base + nbytes),))[1][0]
