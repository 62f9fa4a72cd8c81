"""From memory areas to reservations: which neighbours belong together, and in what unit; pure."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise, zip_longest
from math import gcd
from typing import TYPE_CHECKING, Final

from vmtool.inspect.memory_areas_and_maps import kind_of
from vmtool.results.inspect import ReservedRange
from vmtool.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vmtool.inspect.memory_areas_and_maps import MemoryArea

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
        kind=kind_of(run[0]),
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


_NAMES: Final = (
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


def _named_owner(name: str) -> str | None:
    return next((owner for pattern, owner in _NAMES if pattern.match(name)), None)


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
