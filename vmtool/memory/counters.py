"""The four ledgers as the kernel keeps them: address space, commit charge, resident, mappings.

"Released" means four different things. Each is read apart here, for the whole process or for one
range of addresses, so that vmtool's belief about each can be held against the kernel's.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.memory.process import wine_version
from vmtool.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vmtool.memory.blocks import Span

_PAGE_PRESENT: Final = 1 << 63  # Documentation/admin-guide/mm/pagemap.rst
_PAGEMAP_CHUNK: Final = 1 << 17  # entries a read: 1 MiB
#: A part of an area is counted page by page only up to this size (32 MiB of pagemap).
_COUNTABLE_PAGES: Final = 1 << 22
_LETTER_A, _LETTER_R, _LETTER_V, _LETTER_Z = b"ARVZ"


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The four ledgers at one moment, or the change between two; ``None`` is not told here.

    Attributes:
        address_space_bytes: Addresses taken, with or without memory behind them.
        charge_bytes: What the kernel's commit accounting holds against the process.
        resident_bytes: Memory that is in RAM now; on macOS the footprint, which counts
            compressed and swapped memory too.
        mappings: Memory areas (VMAs), of which a process may have only so many.
    """

    address_space_bytes: int | None = None
    charge_bytes: int | None = None
    resident_bytes: int | None = None
    mappings: int | None = None

    def __sub__(self, before: Ledgers) -> Ledgers:
        return Ledgers(
            _difference(self.address_space_bytes, before.address_space_bytes),
            _difference(self.charge_bytes, before.charge_bytes),
            _difference(self.resident_bytes, before.resident_bytes),
            _difference(self.mappings, before.mappings),
        )


@dataclass(frozen=True, slots=True)
class Area:
    """One memory area (VMA) as ``/proc/self/smaps`` shows it.

    Attributes:
        start: Its first address.
        end: The address after its last byte.
        resident_bytes: ``Rss``.
        charged: Whether it counts towards the commit charge; ``None`` if the kernel does not say.
    """

    start: int
    end: int
    resident_bytes: int
    charged: bool | None


def read_process() -> Ledgers:
    """Return the ledgers of this process; all ``None`` where the platform does not tell them.

    On Linux one pass over ``smaps`` gives all four exactly; its cost grows with the number of
    areas (milliseconds for a few hundred, seconds at the limit of 65,530). macOS has no charge,
    and its areas are not counted.
    """
    if sys.platform == "win32":
        from vmtool.memory.windows.counters import read_process_ledgers

        return read_process_ledgers()
    elif sys.platform == "darwin":
        from vmtool.memory.darwin import read_task_ledgers

        return read_task_ledgers()
    else:  # mypy needs every branch spelled out
        try:
            with open("/proc/self/smaps", "rb", buffering=1 << 16) as smaps:
                return sum_areas(parse_smaps(smaps))
        except OSError:
            return _read_statm()


def read_range(base: int, nbytes: int) -> Ledgers:
    """Return the ledgers of ``base..base + nbytes``, areas that reach outside clipped to it.

    Raises nothing; what can't be told is ``None``.
    """
    return read_split(((base, base + nbytes),))[1][0]


def read_split(ranges: Sequence[Span]) -> tuple[Ledgers, tuple[Ledgers, ...]]:
    """Return the ledgers of this process, and of each of *ranges*, which are two addresses each.

    Raises nothing; what can't be told is ``None``.
    """
    if sys.platform == "win32":
        from vmtool.memory.windows.counters import read_range_ledgers

        return read_process(), tuple(read_range_ledgers(*span) for span in ranges)
    elif sys.platform == "darwin":
        return read_process(), tuple(Ledgers() for _ in ranges)
    else:  # mypy needs every branch spelled out
        unknown = tuple(Ledgers() for _ in ranges)
        try:
            with open("/proc/self/smaps", "rb", buffering=1 << 16) as smaps:
                areas = list(parse_smaps(smaps))
        except OSError:
            return _read_statm(), unknown
        return sum_areas(areas), tuple(_sum_range(areas, *span) for span in ranges)


def bookkeeping_bytes(reserved: int) -> int:
    """Return what the platform keeps in this process for *reserved* bytes of addresses.

    None keeps anything but Wine: a byte for every page of 4 KiB (seen with Wine 10.0).
    """
    return reserved >> 12 if wine_version() else 0


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
        # one look at a byte sorts out most lines.
        letter = line[0]
        if letter == _LETTER_R:
            if line.startswith(b"Rss:"):
                resident = int(line.split()[1]) * KIB
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


def sum_areas(areas: Iterable[Area]) -> Ledgers:
    """Return the ledgers of *areas* together."""
    space = charge = resident = count = 0
    told = True
    for area in areas:
        nbytes = area.end - area.start
        space += nbytes
        resident += area.resident_bytes
        count += 1
        if area.charged is None:
            told = False
        elif area.charged:
            charge += nbytes
    return Ledgers(space, charge if told else None, resident, count)


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _sum_range(areas: Iterable[Area], base: int, end: int) -> Ledgers:
    """Return the ledgers of the parts of *areas* inside ``base..end``."""
    inside = [area for area in areas if area.start < end and area.end > base]
    clipped = sum_areas(_clip(area, base, end) for area in inside)
    split = [area for area in inside if area.resident_bytes and _reaches_out(area, base, end)]
    if not split:
        return clipped
    whole = sum(area.resident_bytes for area in inside if area not in split)
    parts = [_count_present(max(a.start, base), min(a.end, end)) for a in split]
    known = [part for part in parts if part is not None]
    resident = whole + sum(known) if len(known) == len(parts) else None
    return Ledgers(clipped.address_space_bytes, clipped.charge_bytes, resident, clipped.mappings)


def _reaches_out(area: Area, base: int, end: int) -> bool:
    return area.start < base or area.end > end


def _clip(area: Area, base: int, end: int) -> Area:
    return Area(max(area.start, base), min(area.end, end), area.resident_bytes, area.charged)


def _count_present(start: int, end: int) -> int | None:
    """Return the resident bytes of a part of an area, whose ``Rss`` is only told as a whole."""
    import mmap

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


def _read_statm() -> Ledgers:
    """Return what ``statm`` tells where ``smaps`` is missing; its resident count may lag."""
    import mmap

    from vmtool.memory.pressure import count_mappings

    try:
        with open("/proc/self/statm", "rb") as statm:
            size, resident = (int(text) * mmap.PAGESIZE for text in statm.read().split()[:2])
    except (OSError, ValueError):
        return Ledgers(mappings=count_mappings())
    return Ledgers(size, None, resident, count_mappings())
