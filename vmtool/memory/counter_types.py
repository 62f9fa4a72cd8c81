"""The types of the kernel's counters and of memory limits, for a process and for the machine.

"Released" means four different things: addresses, commit charge, resident pages and memory areas
are given back by different calls. Each is a number of its own here, so that what vmtool expects
can be compared with what the kernel says (``docs/platform-facts.md``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Four counters at one moment, or the change between two; ``None`` is not available here.

    Attributes:
        address_space_bytes: Addresses taken, with or without memory behind them.
        charge_bytes: What the kernel's commit accounting charges to the process.
        resident_bytes: Memory that is in RAM now; on macOS the footprint, which counts
            compressed and swapped memory too.
        mappings: Memory areas (VMAs), of which a process may have a limited number.
    """

    address_space_bytes: int | None = None
    charge_bytes: int | None = None
    resident_bytes: int | None = None
    mappings: int | None = None

    def __sub__(self, before: Counters) -> Counters:
        return Counters(
            _difference(self.address_space_bytes, before.address_space_bytes),
            _difference(self.charge_bytes, before.charge_bytes),
            _difference(self.resident_bytes, before.resident_bytes),
            _difference(self.mappings, before.mappings),
        )


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What this process uses, and its limits; ``None`` is unknown, of a limit unlimited.

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
class MemoryLimits(ProcessLimits):
    """The limits of this process and of its machine, and what is used of them.

    Attributes:
        overcommit_mode: ``vm.overcommit_memory``: 0 heuristic, 1 always, 2 never.
        charge_bytes: Commit charge of the machine (``Committed_AS``).
        charge_limit_bytes: ``CommitLimit``; on Linux it applies only in mode 2.
        available_bytes: What the machine can still give without swapping (``MemAvailable``).
        total_bytes: RAM and swap: what the heuristic mode compares one request with.
    """

    overcommit_mode: int | None = None
    charge_bytes: int | None = None
    charge_limit_bytes: int | None = None
    available_bytes: int | None = None
    total_bytes: int | None = None


def parse_kib(text: str | None) -> dict[str, int]:
    """Return the ``Name:  123 kB`` lines of a ``/proc`` file, in bytes."""
    values: dict[str, int] = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[2] == "kB" and fields[1].isdecimal():
            values[fields[0].rstrip(":")] = int(fields[1]) << 10
    return values


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
