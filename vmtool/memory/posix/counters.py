"""The memory counters and limits of Linux and macOS, for this process or for ranges of addresses.

On Linux one pass over ``smaps`` gives all four counters exactly; its cost grows with the number of
areas (milliseconds for a few hundred, seconds at the limit of 65,530). macOS has no commit charge,
and its areas are not counted (docs/platform-facts.md#macos-no-charge).

Limits are read where a call fails, because by the time the error reaches the user the reservation
that caused it has been given back.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import mmap
import os
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from vmtool.memory.counter_types import Counters, MemoryLimits, ProcessLimits, parse_kib
from vmtool.memory.rlimits_and_privileges import soft_limit
from vmtool.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vmtool.memory.span_map import Span

_PAGE_PRESENT: Final = 1 << 63  # Documentation/admin-guide/mm/pagemap.rst
_PAGEMAP_CHUNK: Final = 1 << 17  # entries a read: 1 MiB
#: A part of an area is counted page by page only up to this size (32 MiB of pagemap).
_COUNTABLE_PAGES: Final = 1 << 22
_LETTER_A, _LETTER_H, _LETTER_P, _LETTER_R, _LETTER_S, _LETTER_V, _LETTER_Z = b"AHPRSVZ"


@dataclass(frozen=True, slots=True)
class Area:
    """One memory area (VMA) as ``/proc/self/smaps`` shows it.

    Attributes:
        start: Its first address.
        end: The address after its last byte.
        resident_bytes: ``Rss``, and the reserved huge pages that it leaves out.
        charged: Whether it counts towards the commit charge; ``None`` if the kernel does not say.
    """

    start: int
    end: int
    resident_bytes: int
    charged: bool | None


def read_process(proc: str = "/proc/self") -> Counters:
    """Return the counters of this process; ``None`` for each that the platform does not have.

    Args:
        proc: Where Linux shows this process.
    """
    if sys.platform == "darwin":
        from vmtool.memory.macos_calls import read_task_counters

        return read_task_counters()
    else:
        try:
            with open(f"{proc}/smaps", "rb", buffering=1 << 16) as smaps:
                return sum_areas(parse_smaps(smaps))
        except OSError:
            return _read_statm(proc)


def read_split(
    ranges: Sequence[Span], proc: str = "/proc/self"
) -> tuple[Counters, tuple[Counters, ...]]:
    """Return the counters of this process, and of each of *ranges*, pairs of addresses.

    Raises nothing; a counter that cannot be read is ``None``.
    """
    unknown = tuple(Counters() for _ in ranges)
    if sys.platform == "darwin":
        return read_process(), unknown
    else:
        try:
            with open(f"{proc}/smaps", "rb", buffering=1 << 16) as smaps:
                areas = list(parse_smaps(smaps))
        except OSError:
            return _read_statm(proc), unknown
        return sum_areas(areas), tuple(_sum_range(areas, *span) for span in ranges)


def read_areas(base: int, nbytes: int) -> tuple[Span, ...]:
    """Return the writable areas of this process inside ``base..base + nbytes`` (Linux).

    Raises:
        OSError: If ``/proc/self/maps`` cannot be read.
    """
    end = base + nbytes
    found = []
    with open("/proc/self/maps", "rb", buffering=1 << 16) as maps:
        for line in maps:
            addresses, mode = line.split(None, 2)[:2]
            start, stop = (int(text, 16) for text in addresses.split(b"-"))
            if mode[1:2] == b"w" and start < end and stop > base:
                found.append((max(start, base), min(stop, end)))
    return tuple(found)


def parse_smaps(lines: Iterable[bytes]) -> Iterator[Area]:
    """Yield the areas in the lines of an ``smaps`` file, the vsyscall page left out."""
    start = end = resident = 0
    charged: bool | None = None
    for line in lines:
        # An area has some 25 lines. Names begin with a capital, addresses with a small digit, and
        # one look at a byte or two sorts out most lines.
        letter = line[0]
        if letter == _LETTER_R:
            if line.startswith(b"Rss:"):
                resident = int(line.split()[1]) * KIB
        elif letter in {_LETTER_P, _LETTER_S}:
            # Rss leaves out reserved huge pages: docs/platform-facts.md#linux-hugetlb-counters
            if line[8 if letter == _LETTER_P else 7] == _LETTER_H:
                resident += int(line.split()[1]) * KIB
        elif letter == _LETTER_V:
            if line.startswith(b"VmFlags:"):
                charged = b"ac" in line.split()[1:]
        elif not _LETTER_A <= letter <= _LETTER_Z:
            addresses = line.split(None, 1)[0]
            if end:
                yield Area(start, end, resident, charged)
            # The vsyscall page is not the process's: neither VmSize nor the limit counts it.
            text_start, text_end = addresses.split(b"-")
            start, end = int(text_start, 16), int(text_end, 16)
            resident, charged = 0, None
            if line.rstrip().endswith(b"[vsyscall]"):
                end = 0
    if end:
        yield Area(start, end, resident, charged)


def sum_areas(areas: Iterable[Area]) -> Counters:
    """Return the counters of *areas* together."""
    space = charge = resident = count = 0
    known = True
    for area in areas:
        nbytes = area.end - area.start
        space += nbytes
        resident += area.resident_bytes
        count += 1
        if area.charged is None:
            known = False
        elif area.charged:
            charge += nbytes
    return Counters(space, charge if known else None, resident, count)


def _sum_range(areas: Iterable[Area], base: int, end: int) -> Counters:
    """Return the counters of the parts of *areas* inside ``base..end``."""
    inside = [area for area in areas if area.start < end and area.end > base]
    clipped = sum_areas(_clip(area, base, end) for area in inside)
    split = [area for area in inside if area.resident_bytes and _reaches_out(area, base, end)]
    if not split:
        return clipped
    whole = sum(area.resident_bytes for area in inside if area not in split)
    parts = [_count_present(max(a.start, base), min(a.end, end)) for a in split]
    known = [part for part in parts if part is not None]
    resident = whole + sum(known) if len(known) == len(parts) else None
    return Counters(clipped.address_space_bytes, clipped.charge_bytes, resident, clipped.mappings)


def _reaches_out(area: Area, base: int, end: int) -> bool:
    return area.start < base or area.end > end


def _clip(area: Area, base: int, end: int) -> Area:
    return Area(max(area.start, base), min(area.end, end), area.resident_bytes, area.charged)


def _count_present(start: int, end: int) -> int | None:
    """Return the resident bytes of a part of an area, whose ``Rss`` is only given as a whole."""
    page = mmap.PAGESIZE
    left = (end - start) // page
    if left > _COUNTABLE_PAGES:
        return None
    present = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            pagemap.seek(start // page * 8)
            while left:
                data = pagemap.read(min(left, _PAGEMAP_CHUNK) * 8)
                if not data:
                    return None
                count = len(data) // 8
                present += sum(entry >= _PAGE_PRESENT for entry in struct.unpack(f"{count}Q", data))
                left -= count
    except OSError:
        return None
    return present * page


def _read_statm(proc: str) -> Counters:
    """Return what ``statm`` has where ``smaps`` is missing; its resident count may lag."""
    try:
        with open(f"{proc}/statm", "rb") as statm:
            size, resident = (int(text) * mmap.PAGESIZE for text in statm.read().split()[:2])
    except (OSError, ValueError):
        return Counters(mappings=count_mappings())
    return Counters(size, None, resident, count_mappings())


def read_limits() -> MemoryLimits:
    """Return the limits and their use at this moment; ``None`` for each that is not available.

    The failure that is being explained may leave no memory to read them with. So areas, which take
    least to count, are counted first.
    """
    mappings = max_mappings = None
    try:
        mappings, max_mappings = count_mappings(), _read_int("/proc/sys/vm/max_map_count")
        meminfo = read_kib("/proc/meminfo")
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
    status = read_kib("/proc/self/status")
    space = status.get("VmSize")
    if sys.platform == "darwin":
        from vmtool.memory.macos_calls import read_virtual_size

        space = read_virtual_size()
    return ProcessLimits(
        mappings=count_mappings(),
        max_mappings=_read_int("/proc/sys/vm/max_map_count"),
        address_space_bytes=space,
        address_space_limit_bytes=soft_limit("RLIMIT_AS"),
        data_bytes=status.get("VmData"),
        data_limit_bytes=soft_limit("RLIMIT_DATA"),
        memlock_limit_bytes=soft_limit("RLIMIT_MEMLOCK"),
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


def read_kib(path: str) -> dict[str, int]:
    """Return the ``Name:  123 kB`` lines of a file, in bytes; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse_kib(file.read())
    except OSError:
        return {}
