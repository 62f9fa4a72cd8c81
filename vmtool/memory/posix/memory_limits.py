"""The limits of this process and of a POSIX machine on memory, and what is used of them.

They are read where a call fails, because by the time the error reaches the user the reservation that
caused it has been given back.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import os
from dataclasses import asdict

from vmtool.memory.counter_types import MemoryLimits, ProcessLimits, parse_kib
from vmtool.memory.rlimits import read_resource_limit


def read_limits() -> MemoryLimits:
    """Return the limits and their use at this moment; ``None`` for each that is not available.

    The failure that is being explained may leave no memory to read them with. So areas, which take
    least to count, are counted first.
    """
    mappings = max_mappings = None
    try:
        mappings, max_mappings = count_mappings(), _read_int("/proc/sys/vm/max_map_count")
        meminfo = _read_kib("/proc/meminfo")
        swap = meminfo.get("SwapTotal", 0)
        total = meminfo.get("MemTotal")
        return MemoryLimits(
            **asdict(read_process_limits()),
            overcommit_mode=_read_int("/proc/sys/vm/overcommit_memory"),
            charge_bytes=meminfo.get("Committed_AS"),
            charge_limit_bytes=meminfo.get("CommitLimit"),
            available_bytes=meminfo.get("MemAvailable"),
            total_bytes=None if total is None else total + swap,
        )
    except MemoryError:
        return MemoryLimits(mappings=mappings, max_mappings=max_mappings)


def read_process_limits() -> ProcessLimits:
    """Return what this process uses, and its limits."""

    def soft(name: str) -> int | None:
        limit = read_resource_limit(name)
        return None if limit is None else limit.soft

    status = _read_kib("/proc/self/status")
    space = status.get("VmSize")
    if sys.platform == "darwin":
        from vmtool.memory.macos_calls import read_virtual_size

        space = read_virtual_size()
    return ProcessLimits(
        mappings=count_mappings(),
        max_mappings=_read_int("/proc/sys/vm/max_map_count"),
        address_space_bytes=space,
        address_space_limit_bytes=soft("RLIMIT_AS"),
        data_bytes=status.get("VmData"),
        data_limit_bytes=soft("RLIMIT_DATA"),
        memlock_limit_bytes=soft("RLIMIT_MEMLOCK"),
    )


def count_mappings() -> int | None:
    """Return how many memory areas this process has; ``None`` if it cannot be read."""
    # At the limit this process can allocate next to nothing, so the file is not read as lines.
    chunk, count = b"", 0
    try:
        maps = os.open("/proc/self/maps", os.O_RDONLY)
        try:
            while more := os.read(maps, 4096):
                chunk, count = more, count + more.count(b"\n")
        finally:
            os.close(maps)
    except OSError:
        return None
    # The last line is the vsyscall page, where there is one; the limit does not count it.
    return count - (b"[vsyscall]" in chunk)


def _read_int(path: str) -> int | None:
    try:
        with open(path, "rb") as file:  # no codec, whose import may be what fails now
            return int(file.read())
    except (OSError, ValueError):
        return None


def _read_kib(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse_kib(file.read())
    except OSError:
        return {}
