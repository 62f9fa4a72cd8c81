"""The limits of this process and its machine on memory, and what is used of them, on every platform."""

from __future__ import annotations

import sys

from vmtool.memory.counter_types import MemoryLimits, ProcessLimits

if sys.platform == "win32":
    from vmtool.memory.windows.memory_limits import (
        count_mappings,
        read_limits,
        read_process_limits,
    )
else:
    from vmtool.memory.posix.memory_limits import count_mappings, read_limits, read_process_limits

__all__ = (
    "MemoryLimits",
    "ProcessLimits",
    "count_mappings",
    "read_limits",
    "read_process_limits",
)
