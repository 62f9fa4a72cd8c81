"""The memory areas of a process, and the parsers of Linux's ``maps``, ``smaps`` and ``numa_maps``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNREAD: Final = (-1, 0, 0, False, None)
#: What a line of ``maps`` says behind the addresses, with what it does not say: the end of a tuple.
_Rest = tuple[str, int, str, int, int, int, bool, None]
_RESIDENT: Final = (b"\nRss:", b"\nShared_Hugetlb:", b"\nPrivate_Hugetlb:")
#: The fields of ``smaps`` with transparent huge pages.
HUGE_FIELDS: Final = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")
_HUGE: Final = tuple(f"\n{name}:".encode() for name in HUGE_FIELDS)


class MemoryArea(NamedTuple):
    """One memory area (VMA). A tuple, because a process may have 65,530 of them.

    Attributes:
        start: Its first address.
        end: The address after its last byte.
        permissions: Such as ``rw-p``.
        inode: Of the file that is mapped; 0 is anonymous memory.
        name: A path, ``[heap]``, ``[anon:NAME]``, or nothing.
        resident: Bytes in RAM, reserved huge pages too; -1 where only ``maps`` was read.
        huge: Of that, in transparent huge pages: of anonymous or shared memory, or of a file.
        swapped: Bytes swapped out.
        eligible: Whether transparent huge pages could back it.
        charged: Whether it counts towards the commit charge; ``None`` is unknown.
    """

    start: int
    end: int
    permissions: str
    inode: int
    name: str
    resident: int = -1
    huge: int = 0
    swapped: int = 0
    eligible: bool = False
    charged: bool | None = None


def kind_of(area: MemoryArea) -> str:
    """Return the kind of *area* by its name, such as ``device``, ``shared``, ``heap`` or ``anonymous``."""
    name = area.name
    if name.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd")):
        return "device"
    if name.startswith("/memfd:"):
        return "shared"
    if "hugetlb" in name or name.startswith("/anon_hugepage"):
        return "hugetlb"
    if name.startswith(("/dev/shm/", "/SYSV", "/dev/zero")):  # noqa: S108
        return "shared"
    if name.startswith("[heap"):
        return "heap"
    if name.startswith("[stack"):
        return "stack"
    if name in {"[vdso]", "[vvar]", "[vvar_vclock]", "[uprobes]"}:
        return "kernel"
    if area.inode:
        return "file"
    return "anonymous"


class ProcessGoneError(Exception):
    """The process has ended; the message says how, where it is still listed."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What is read seldom.

    Attributes:
        areas: Every memory area.
        took_ns: How long that took.
        at_ns: When it was read (monotonic).
        complete: Whether residency was read too (``smaps``), not only addresses (``maps``).
        nodes: Resident bytes on each NUMA node by the start of an area, if requested.
    """

    areas: tuple[MemoryArea, ...]
    took_ns: int
    at_ns: int
    complete: bool
    nodes: Mapping[int, tuple[int, ...]] | None = None


def parse_maps(text: bytes) -> list[MemoryArea]:
    """Return the areas in the text of a ``maps`` file, ascending, without the vsyscall page."""
    # A look at 60,000 areas takes well under a second only if a line costs few steps. Most areas
    # begin where the one before ends, and most lines are alike behind their addresses: each such
    # number and text is decoded once.
    found: list[MemoryArea] = []
    rests: dict[bytes, _Rest | None] = {}
    new, add = tuple.__new__, found.append
    end_text, end = b"", 0
    for line in text.split(b"\n"):
        # START-END PERMISSIONS OFFSET DEVICE INODE NAME: proc_pid_maps(5).
        span, _, rest = line.partition(b" ")
        if rest not in rests:
            rests[rest] = _parse_rest(rest)
        if (decoded := rests[rest]) is None:
            continue
        start_text, _, after = span.partition(b"-")
        start = end if start_text == end_text else int(start_text, 16)
        end_text, end = after, int(after, 16)
        add(new(MemoryArea, (start, end) + decoded))  # noqa: RUF005 - faster than unpacking
    return found


def _parse_rest(rest: bytes) -> _Rest | None:
    """Return the rest of an area; ``None`` for what is no area of the process."""
    fields = rest.split(None, 4)
    if len(fields) < 4:
        return None
    name = fields[4] if len(fields) > 4 else b""
    if name == b"[vsyscall]":  # the kernel's own: neither VmSize nor the limit counts it
        return None
    return fields[0].decode(), int(fields[3]), name.decode("utf-8", "replace"), *_UNREAD


def parse_smaps(text: bytes) -> list[MemoryArea]:
    """Return the areas in the text of an ``smaps`` file, ascending, without the vsyscall page."""
    # An area has some 25 lines, and 60,000 areas 1.5 million: the file is not split into lines.
    found = []
    at, end = 0, len(text)
    while at < end:
        body = text.find(b"\n", at)
        flags = text.find(b"\nVmFlags:", body)
        stop = text.find(b"\n", flags + 1) if flags >= 0 else end
        fields = text[at:body].split(None, 5)
        if len(fields) >= 5 and fields[-1] != b"[vsyscall]":
            start, _, after = fields[0].partition(b"-")
            found.append(
                MemoryArea(
                    int(start, 16),
                    int(after, 16),
                    fields[1].decode(),
                    int(fields[4]),
                    fields[5].decode("utf-8", "replace") if len(fields) > 5 else "",
                    # Rss has no reserved huge pages in it.
                    _sum(text, _RESIDENT, body, stop) << 10,
                    _sum(text, _HUGE, body, stop) << 10,
                    _number(text, b"\nSwap:", body, stop) << 10,
                    text.find(b"\nTHPeligible:           1", body, stop) >= 0,
                    None if flags < 0 else text.find(b" ac", flags, stop) >= 0,
                )
            )
        at = stop + 1 if stop >= 0 else end
    return found


def _sum(text: bytes, keys: tuple[bytes, ...], start: int, stop: int) -> int:
    return sum(_number(text, key, start, stop) for key in keys)


def _number(text: bytes, key: bytes, start: int, stop: int) -> int:
    found = text.find(key, start, stop)
    if found < 0:
        return 0
    begin = found + len(key)
    return int(text[begin : text.find(b"kB", begin, stop)])


def parse_numa_maps(text: bytes) -> dict[int, tuple[int, ...]]:
    """Return the resident bytes on each NUMA node, by the start of the area (``numa_maps``)."""
    pages: dict[int, dict[int, int]] = {}
    most = 0
    for line in text.split(b"\n"):
        fields = line.split()
        if len(fields) < 2:
            continue
        size = next(
            (int(f[18:]) << 10 for f in fields if f.startswith(b"kernelpagesize_kB=")), 4096
        )
        nodes = {}
        for field in fields[2:]:
            node, equals, count = field.partition(b"=")
            if equals and node[:1] == b"N" and node[1:].isdigit():
                nodes[int(node[1:])] = int(count) * size
        if nodes:
            most = max(most, *nodes)
            pages[int(fields[0], 16)] = nodes
    return {
        start: tuple(nodes.get(node, 0) for node in range(most + 1))
        for start, nodes in pages.items()
    }
