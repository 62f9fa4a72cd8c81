"""The limits of a Windows machine on memory, and what is used of them."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

from vmtool.memory.counter_types import MemoryLimits, ProcessLimits
from vmtool.memory.windows.counters import read_process, read_system_memory


def count_mappings() -> int | None:
    """Return how many allocations, views and placeholders this process has."""
    return read_process().mappings


def read_limits() -> MemoryLimits:
    """Return the machine's commit limit and its use; Windows limits no process by itself."""
    memory = read_system_memory()
    if memory is None:
        return MemoryLimits()
    return MemoryLimits(
        charge_bytes=memory.charge_bytes,
        charge_limit_bytes=memory.charge_limit_bytes,
        available_bytes=memory.available_bytes,
    )


def read_process_limits() -> ProcessLimits:
    """Return no limits: Windows limits no process but through job objects."""
    return ProcessLimits()
