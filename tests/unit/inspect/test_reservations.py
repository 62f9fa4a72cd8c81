"""Which memory areas belong together, and in what unit they are committed."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vmtool.inspect.memory_areas_and_maps import MemoryArea
from vmtool.inspect.reservations import (
    granule,
    group_areas,
    merge_alike,
    subtract_spans,
    watched_granules,
    with_watched,
)
from vmtool.units import GIB, KIB, MIB

_BASE = 0x7F0000000000


def _areas(*parts, base=_BASE, name="", inode=0):
    """Make neighbouring areas from pairs of permissions and length."""
    found, at = [], base
    for permissions, length in parts:
        found.append(MemoryArea(at, at + length, permissions, inode, name, 0))
        at += length
    return found


def test_a_reserved_range_with_committed_parts_is_one_reservation():
    areas = _areas(
        ("rw-p", 256 * KIB), ("---p", 128 * KIB), ("rw-p", 64 * KIB), ("---p", GIB - 448 * KIB)
    )

    (found,) = group_areas(areas)

    assert found.base == _BASE
    assert found.capacity_bytes == GIB
    assert found.committed_bytes == 320 * KIB
    assert found.pieces == 4
    assert found.granule_bytes == 64 * KIB
    assert not found.granule_exact
    assert (found.permissions, found.kind) == ("rw-p", "anonymous")


def test_neighbours_with_other_names_or_files_are_apart():
    areas = [
        *_areas(("rw-p", MIB)),
        *_areas(("rw-p", MIB), base=_BASE + MIB, name="[anon:kv]"),
        *_areas(("r--p", MIB), ("r-xp", MIB), base=_BASE + 2 * MIB, name="/lib/a.so", inode=7),
        *_areas(("rw-p", MIB), base=_BASE + 5 * MIB),
    ]

    found = sorted(group_areas(areas), key=lambda item: item.base)

    assert [(item.name, item.pieces, item.kind) for item in found] == [
        ("", 1, "anonymous"),
        ("[anon:kv]", 1, "anonymous"),
        ("/lib/a.so", 2, "file"),
        ("", 1, "anonymous"),
    ]
    assert found[2].permissions == "mixed"


def test_thread_stacks_and_arenas_of_glibc_are_apart_and_shown_as_one_row_each():
    arena = 0x7F0010000000  # 64 MiB aligned
    areas = [
        *_areas(("---p", 4 * KIB), ("rw-p", 8 * MIB), ("---p", 4 * KIB), ("rw-p", 8 * MIB)),
        *_areas(
            ("rw-p", MIB), ("---p", 63 * MIB), ("rw-p", 2 * MIB), ("---p", 62 * MIB), base=arena
        ),
    ]

    found = group_areas(areas, stack_bytes=8 * MIB)
    rows = merge_alike(found, 10)

    assert sorted(item.owner for item in found) == ["glibc malloc arena"] * 2 + ["thread stack"] * 2
    assert [(row.owner, row.capacity_bytes, row.committed_bytes, row.pieces) for row in rows] == [
        ("glibc malloc arena", 128 * MIB, 3 * MIB, 4),
        ("thread stack", 16 * MIB + 8 * KIB, 16 * MIB, 4),
    ]


def test_owners_are_named_where_the_pattern_is_certain():
    def owner(*areas):
        return group_areas(areas)[0].owner

    jvm = MemoryArea(_BASE, _BASE + 4096, "r-xp", 5, "/opt/jdk/lib/server/libjvm.so")
    assert owner(*_areas(("rw-p", 4 * MIB), ("---p", 60 * MIB), base=0xC000000000)) == "Go heap"
    assert owner(*_areas(("rw-p", GIB), ("---p", GIB), base=0x600000000), jvm) == "JVM heap"
    assert owner(*_areas(("rw-p", GIB), ("---p", GIB), base=0x600000000)) is None
    assert owner(*_areas(("rw-p", GIB), name="[anon:jemalloc_pg]")) == "jemalloc"
    assert owner(*_areas(("rw-s", GIB), name="/dev/nvidiactl", inode=3)) == "NVIDIA driver"
    assert owner(*_areas(("rw-p", GIB))) is None


def test_the_granule_is_exact_after_three_commits_were_watched():
    seen = {}
    total = 64 * MIB

    def at(committed):
        return _areas(("rw-p", committed), ("---p", total - committed))

    sizes = [2 * MIB, 4 * MIB, 8 * MIB, 10 * MIB]
    for before, after in pairwise(sizes):
        watched_granules(at(before), at(after), seen)
    (found,) = with_watched(group_areas(at(sizes[-1])), seen)

    assert found.granule_bytes == 2 * MIB
    assert found.granule_exact
    # 2, 4 and 2 MiB were added: their number and their unit, however long the watch.
    assert seen == {_BASE: (3, 2 * MIB)}
    watched_granules(at(10 * MIB), (), seen)
    assert seen == {}


def test_two_watched_commits_are_too_few():
    seen = {_BASE: (2, 2 * MIB)}
    (found,) = with_watched(group_areas(_areas(("rw-p", 4 * MIB), ("---p", MIB))), seen)

    assert (found.granule_bytes, found.granule_exact) == (4 * MIB, False)


_SPANS = st.sets(st.integers(0, 60), max_size=30).map(
    lambda cells: [(cell, cell + 1) for cell in sorted(cells)]
)


@given(_SPANS, _SPANS)
def test_the_difference_of_spans_is_that_of_their_cells(spans, others):
    def cells(of):
        return {cell for start, end in of for cell in range(start, end)}

    assert cells(subtract_spans(spans, others)) == cells(spans) - cells(others)


@given(st.integers(1, 64), st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1))
def test_the_granule_divides_every_offset_and_length(unit, parts):
    spans = [(start * unit, (start + length) * unit) for start, length in parts]

    found = granule(0, spans)

    assert found is not None
    assert found % unit == 0
    assert all(start % found == 0 and end % found == 0 for start, end in spans)
