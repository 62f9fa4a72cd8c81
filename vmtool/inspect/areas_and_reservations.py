"""Memory areas, parsed from Linux's ``maps``, ``smaps`` and ``numa_maps``, and the reservations they form."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from math import gcd
from typing import TYPE_CHECKING, Final, NamedTuple

from vmtool.results.inspect import ReservedRange
from vmtool.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_UNREAD: Final = (-1, 0, 0, False, None)
#: What a line of ``maps`` says behind the addresses, with what it does not say: the end of a tuple.
_Rest = tuple[str, int, str, int, int, int, bool, None]
_RESIDENT: Final = (b"\nRss:", b"\nShared_Hugetlb:", b"\nPrivate_Hugetlb:")
#: The fields of ``smaps`` with transparent huge pages.
HUGE_FIELDS: Final = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")
_HUGE: Final = tuple(f"\n{name}:".encode() for name in HUGE_FIELDS)
_NONE: Final = "---p"
#: glibc's arenas: HEAP_MAX_SIZE is 64 MiB on 64-bit systems (malloc/arena.c).
_ARENA: Final = 64 * MIB
#: Guard areas of thread stacks are rarely larger (the default of pthreads is one page).
_GUARD: Final = MIB
#: Go reserves its heap upwards from here on 64-bit systems (runtime/malloc.go, arena hints).
_GO_HEAP: Final = 0xC000000000
#: Compressed references of a JVM reach 32 GiB (8-byte alignment, 32 bits).
_COMPRESSED: Final = 32 * GIB
_WASM_LEAST: Final = 4 * GIB
#: The allocation of a commit has to be seen this often before the unit counts as known.
_WATCHED_COMMITS: Final = 3
_OWNERS: Final = (
    (re.compile(r"\[anon: ?Go: "), "Go runtime"),
    (re.compile(r"\[anon:(je_|jemalloc)"), "jemalloc"),
    (re.compile(r"\[anon:(mi-|mimalloc)"), "mimalloc"),
    (re.compile(r"\[anon:(tcmalloc|tcm)"), "TCMalloc"),
    (re.compile(r"\[anon:v8"), "V8"),
    (re.compile(r"\[anon: ?glibc: malloc arena"), "glibc malloc arena"),
    (re.compile(r"\[anon: ?glibc: pthread stack"), "thread stack"),
    (re.compile(r"/dev/nvidia-uvm"), "CUDA unified memory"),
    (re.compile(r"/dev/nvidia"), "NVIDIA driver"),
    (re.compile(r"/memfd:wasm|\[anon:wasm"), "WebAssembly memory"),
    (re.compile(r"/memfd:pulseaudio"), "PulseAudio"),
)


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


def group_areas(
    areas: Sequence[MemoryArea],
    *,
    stack_bytes: int | None = None,
    nodes: Mapping[int, tuple[int, ...]] | None = None,
) -> tuple[ReservedRange, ...]:
    """Return *areas* as reservations, largest first.

    Neighbouring anonymous mappings with one name are one reservation, as are neighbouring mappings
    of one file. The kernel keeps no more than that: two reservations side by side look like one,
    but for thread stacks and arenas of glibc, whose shape is known.

    Args:
        areas: Ascending.
        stack_bytes: The soft ``RLIMIT_STACK``, which is the size of a thread's stack.
        nodes: Resident bytes on each NUMA node, by the start of an area.
    """
    libraries = frozenset(area.name.rsplit("/", 1)[-1] for area in areas if area.inode)
    found = [
        _reservation(run, owner or _owner(run, libraries), nodes)
        for run, owner in _runs(areas, stack_bytes)
    ]
    found.sort(key=lambda item: (-item.capacity_bytes, item.base))
    return tuple(found)


def _runs(
    areas: Sequence[MemoryArea], stack_bytes: int | None
) -> Iterator[tuple[Sequence[MemoryArea], str | None]]:
    """Yield neighbours that belong together, with their owner where their shape shows it."""
    # There may be 65,530 areas: no call and no object for each.
    breaks = [
        index
        for index, (before, area) in enumerate(pairwise(areas), start=1)
        if before.end != area.start
        or before.name != area.name
        or before.inode != area.inode
        or before.permissions[3] != area.permissions[3]
    ]
    for first, last in pairwise([0, *breaks, len(areas)]):
        yield from _split(areas[first:last], stack_bytes)


def _split(
    run: Sequence[MemoryArea], stack_bytes: int | None
) -> Iterator[tuple[Sequence[MemoryArea], str | None]]:
    """Yield *run* in parts: each thread stack and glibc arena apart, the rest together."""
    first = 0
    if run and not run[0].inode and not run[0].name:
        for index in _possible_pairs(run, stack_bytes):
            owner = _pair_owner(run[index], run[index + 1], stack_bytes)
            if owner is None or index < first:
                continue
            if first < index:
                yield run[first:index], None
            yield run[index : index + 2], owner
            first = index + 2
    if first < len(run):
        yield run[first:], None


def _possible_pairs(run: Sequence[MemoryArea], stack_bytes: int | None) -> list[int]:
    """Return which areas may be the first of a thread stack or arena, by one cheap test of each."""
    least = max(stack_bytes - _GUARD, 1) if stack_bytes else 1 << 64
    return [
        index
        for index, (first, second) in enumerate(pairwise(run))
        if not first.start % _ARENA or second.end - second.start >= least
    ]


def _pair_owner(first: MemoryArea, second: MemoryArea, stack_bytes: int | None) -> str | None:
    if (
        first.permissions == _NONE
        and first.end - first.start <= _GUARD
        and second.permissions == "rw-p"
        and stack_bytes is not None
        and second.end - second.start in (stack_bytes, stack_bytes - (first.end - first.start))
    ):
        return "thread stack"
    if (
        first.permissions == "rw-p"
        and second.permissions == _NONE
        and not _in_go_heap(first.start)
        and first.start % _ARENA == 0
        and second.end - first.start == _ARENA
    ):
        return "glibc malloc arena"
    return None


def _reservation(
    run: Sequence[MemoryArea], owner: str | None, nodes: Mapping[int, tuple[int, ...]] | None
) -> ReservedRange:
    base, end = run[0].start, run[-1].end
    committed = [area for area in run if area.permissions[:3] != "---"]
    modes = {area.permissions for area in committed}
    read = all(area.resident >= 0 for area in run)
    anonymous = run[0].inode == 0 and not run[0].name.startswith("[stack")
    return ReservedRange(
        base=base,
        capacity_bytes=end - base,
        committed_bytes=sum(area.end - area.start for area in committed),
        resident_bytes=sum(area.resident for area in run) if read else None,
        huge_bytes=sum(area.huge for area in run) if read else None,
        swapped_bytes=sum(area.swapped for area in run) if read else None,
        pieces=len(run),
        granule_bytes=granule(base, _spans(committed)) if anonymous else None,
        granule_exact=False,
        permissions=next(iter(modes), _NONE) if len(modes) < 2 else "mixed",
        kind=_kind(run[0]),
        name=run[0].name,
        owner=owner,
        node_bytes=None if nodes is None else _sum_nodes(run, nodes),
    )


def _spans(areas: Iterable[MemoryArea]) -> list[tuple[int, int]]:
    """Return the spans of *areas*, neighbours joined: the kernel need not have joined them."""
    spans: list[tuple[int, int]] = []
    for area in areas:
        if spans and spans[-1][1] == area.start:
            spans[-1] = (spans[-1][0], area.end)
        else:
            spans.append((area.start, area.end))
    return spans


def granule(base: int, spans: Iterable[tuple[int, int]]) -> int | None:
    """Return the largest unit that the offsets and lengths of *spans* are multiples of."""
    unit = 0
    for start, end in spans:
        unit = gcd(unit, start - base, end - start)
    return unit or None


def watched_granules(
    before: Sequence[MemoryArea], after: Sequence[MemoryArea], seen: dict[int, tuple[int, int]]
) -> None:
    """Add to *seen*, by the base of a reservation, what was committed or released.

    Args:
        before: The areas at an earlier reading.
        after: The areas now.
        seen: How many parts there were, and the largest unit of their lengths. It is changed in
            place, and has no reservation that is gone: a watch may take days.
    """
    old = {run[0].start: run for run, _ in _runs(before, None)}
    runs = [run for run, _ in _runs(after, None)]
    for base in seen.keys() - {run[0].start for run in runs}:
        del seen[base]
    for run in runs:
        was = old.get(run[0].start)
        if was is None or run[0].inode or run[-1].end != was[-1].end:
            continue
        then = _spans(a for a in was if a.permissions[:3] != "---")
        now = _spans(a for a in run if a.permissions[:3] != "---")
        changed = [
            end - start for start, end in subtract_spans(now, then) + subtract_spans(then, now)
        ]
        if changed:
            count, unit = seen.get(run[0].start, (0, 0))
            seen[run[0].start] = (count + len(changed), gcd(unit, *changed))


def with_watched(
    reservations: Iterable[ReservedRange], seen: Mapping[int, tuple[int, int]]
) -> tuple[ReservedRange, ...]:
    """Return *reservations* with the granule that the watched commits show."""
    return tuple(
        replace(
            item,
            granule_bytes=gcd(item.granule_bytes or 0, seen[item.base][1]) or None,
            granule_exact=True,
        )
        if seen.get(item.base, (0, 0))[0] >= _WATCHED_COMMITS
        else item
        for item in reservations
    )


def subtract_spans(
    spans: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of *spans* that are in none of *others*; both ascend."""
    left: list[tuple[int, int]] = []
    position = 0
    for start, end in spans:
        while position < len(others) and others[position][1] <= start:
            position += 1
        at, index = start, position
        while index < len(others) and others[index][0] < end:
            if others[index][0] > at:
                left.append((at, others[index][0]))
            at = max(at, others[index][1])
            index += 1
        if at < end:
            left.append((at, end))
    return left


def _kind(area: MemoryArea) -> str:
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


def _owner(run: Sequence[MemoryArea], libraries: frozenset[str]) -> str | None:
    """Return who reserves memory in this way; ``None`` unless the pattern is certain."""
    first, capacity = run[0], run[-1].end - run[0].start
    if named := _named_owner(first.name):
        return named
    if first.inode or first.name:
        return None
    if _in_go_heap(first.start) and not first.start % _ARENA:
        return "Go heap"
    if "libjvm.so" in libraries and run[-1].end <= _COMPRESSED and capacity >= 8 * MIB:
        return "JVM heap"
    if capacity >= _WASM_LEAST and any(
        library.startswith(("libwasmtime", "_libwasmtime")) for library in libraries
    ):
        return "WebAssembly memory and its guard region"
    return None


def _in_go_heap(address: int) -> bool:
    return _GO_HEAP <= address < _GO_HEAP + (1 << 36)


def _named_owner(name: str) -> str | None:
    return next((owner for pattern, owner in _OWNERS if pattern.match(name)), None)


def _sum_nodes(run: Iterable[MemoryArea], nodes: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    counts = [nodes[area.start] for area in run if area.start in nodes]
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def merge_alike(reservations: Iterable[ReservedRange], top: int) -> tuple[ReservedRange, ...]:
    """Return the *top* largest, all thread stacks and all glibc arenas as one row each."""
    alike: dict[str, ReservedRange] = {}
    rest = []
    for item in reservations:
        if item.owner not in {"thread stack", "glibc malloc arena"}:
            rest.append(item)
            continue
        known = alike.get(item.owner)
        alike[item.owner] = item if known is None else _joined(known, item)
    both = sorted([*alike.values(), *rest], key=lambda item: (-item.capacity_bytes, item.base))
    return tuple(both[:top])


def _joined(first: ReservedRange, second: ReservedRange) -> ReservedRange:
    def total(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return replace(
        first,
        base=min(first.base, second.base),
        capacity_bytes=first.capacity_bytes + second.capacity_bytes,
        committed_bytes=first.committed_bytes + second.committed_bytes,
        resident_bytes=total(first.resident_bytes, second.resident_bytes),
        huge_bytes=total(first.huge_bytes, second.huge_bytes),
        swapped_bytes=total(first.swapped_bytes, second.swapped_bytes),
        pieces=first.pieces + second.pieces,
        node_bytes=_added(first.node_bytes, second.node_bytes),
        granule_bytes=None,
    )


def _added(first: tuple[int, ...] | None, second: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if first is None or second is None:
        return None
    return tuple(map(sum, zip_longest(first, second, fillvalue=0)))


def possible_huge_bytes(areas: Iterable[MemoryArea], huge_page: int = 2 * MIB) -> tuple[int, int]:
    """Return what transparent huge pages could back of what is resident, and what they may now.

    They could back all anonymous memory in areas of at least a huge page, and what they back
    already. Whether they may is up to the mode and to ``madvise``, which the kernel counts together
    (``THPeligible``).
    """
    could = may = 0
    for area in areas:
        if area.resident > 0 and area.end - area.start >= huge_page:
            # The first segment of System V shared memory has the inode 0.
            anonymous = not area.inode and not area.name.startswith("/")
            could += area.resident if anonymous or area.huge else 0
            may += area.resident if area.eligible else 0
    return max(could, may), may
