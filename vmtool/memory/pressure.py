"""What this process and machine use of the memory that they may, at the moment of a failure.

The counters are read where the call fails, because by the time the error reaches the user the
reservation that caused it has been given back.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What this process uses of what it may; ``None`` is unknown, and of a limit unlimited.

    Attributes:
        mappings: Memory areas in use (lines of ``/proc/self/maps``).
        max_mappings: ``vm.max_map_count``.
        address_space_bytes: Address space in use (``VmSize``; macOS: ``pti_virtual_size``).
        address_space_limit_bytes: ``RLIMIT_AS``.
        data_bytes: Private writable memory (``VmData``).
        data_limit_bytes: ``RLIMIT_DATA``.
        memlock_limit_bytes: ``RLIMIT_MEMLOCK``.
    """

    mappings: int | None = None
    max_mappings: int | None = None
    address_space_bytes: int | None = None
    address_space_limit_bytes: int | None = None
    data_bytes: int | None = None
    data_limit_bytes: int | None = None
    memlock_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pressure(ProcessFacts):
    """Limits and use of memory by this process and its machine.

    Attributes:
        overcommit_mode: ``vm.overcommit_memory``: 0 heuristic, 1 always, 2 never.
        charge_bytes: Commit charge of the machine (``Committed_AS``).
        charge_limit_bytes: ``CommitLimit``; on Linux it binds only in mode 2.
        available_bytes: What the machine can still give without swapping (``MemAvailable``).
        total_bytes: RAM and swap: what the heuristic mode compares one request with.
    """

    overcommit_mode: int | None = None
    charge_bytes: int | None = None
    charge_limit_bytes: int | None = None
    available_bytes: int | None = None
    total_bytes: int | None = None


def read_pressure() -> Pressure:
    """Return the counters of this moment; what the platform does not tell is ``None``.

    So is everything where the failure that is being explained leaves no memory to explain it with.
    """
    try:
        return _read_counters()
    except MemoryError:
        return Pressure()


def _read_counters() -> Pressure:
    if sys.platform == "win32":
        from vmtool.memory.windows.counters import read_system_memory

        counters = read_system_memory()
        if counters is None:
            return Pressure()
        return Pressure(
            charge_bytes=counters.charge_bytes,
            charge_limit_bytes=counters.charge_limit_bytes,
            available_bytes=counters.available_bytes,
        )
    else:  # mypy needs both branches spelled out
        meminfo = _read_kib("/proc/meminfo")
        swap = meminfo.get("SwapTotal", 0)
        total = meminfo.get("MemTotal")
        return Pressure(
            **asdict(read_process_facts()),
            overcommit_mode=_read_int("/proc/sys/vm/overcommit_memory"),
            charge_bytes=meminfo.get("Committed_AS"),
            charge_limit_bytes=meminfo.get("CommitLimit"),
            available_bytes=meminfo.get("MemAvailable"),
            total_bytes=None if total is None else total + swap,
        )


def read_process_facts() -> ProcessFacts:
    """Return what this process uses of what it may; Windows limits no process."""
    if sys.platform == "win32":
        return ProcessFacts()
    else:  # mypy needs both branches spelled out
        import resource  # absent on Windows

        def limit(which: int) -> int | None:
            soft = resource.getrlimit(which)[0]
            return None if soft == resource.RLIM_INFINITY else soft

        status = _read_kib("/proc/self/status")
        space = status.get("VmSize")
        if sys.platform == "darwin":
            from vmtool.memory.darwin import read_virtual_size

            space = read_virtual_size()
        return ProcessFacts(
            mappings=count_mappings(),
            max_mappings=_read_int("/proc/sys/vm/max_map_count"),
            address_space_bytes=space,
            address_space_limit_bytes=limit(resource.RLIMIT_AS),
            data_bytes=status.get("VmData"),
            data_limit_bytes=limit(resource.RLIMIT_DATA),
            memlock_limit_bytes=limit(resource.RLIMIT_MEMLOCK),
        )


def parse_kib(text: str | None) -> dict[str, int]:
    """Return the ``Name:  123 kB`` lines of a ``/proc`` file, in bytes."""
    values: dict[str, int] = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[2] == "kB" and fields[1].isdecimal():
            values[fields[0].rstrip(":")] = int(fields[1]) << 10
    return values


def count_mappings() -> int | None:
    """Return how many memory areas this process has, or ``None`` where it can't be told."""
    if sys.platform == "win32":
        from vmtool.memory.windows.counters import read_process_ledgers

        return read_process_ledgers().mappings
    else:  # mypy needs both branches spelled out
        return _count_lines_of_maps()


def _count_lines_of_maps() -> int | None:
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
