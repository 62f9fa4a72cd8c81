"""Memory areas as proc_pid_maps(5) and proc_pid_smaps(5) show them, and the reservations they form."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vmtool.inspect.areas_and_reservations import (
    MemoryArea,
    granule,
    group_areas,
    merge_alike,
    parse_maps,
    parse_numa_maps,
    parse_smaps,
    possible_huge_bytes,
    subtract_spans,
    watched_granules,
    with_watched,
)
from vmtool.units import GIB, KIB, MIB

_MAPS = b"""\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
00e24000-011f7000 rw-p 00000000 00:00 0           [heap]
35b1800000-35b1820000 r-xp 00000000 08:02 135522  /usr/lib64/ld-2.15.so
f2c6ff8c000-7f2c7078c000 ---p 00000000 00:00 0
7f0000000000-7f0000200000 rw-p 00000000 00:00 0   [anon:kv cache]
7f0000300000-7f0000400000 r--p 00000000 08:02 9   /srv/a file with blanks
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""
_SMAPS = b"""\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                3000 kB
Pss:                3000 kB
Anonymous:          3000 kB
AnonHugePages:      2048 kB
Swap:                 16 kB
SwapPss:              16 kB
Locked:                0 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg
7f0000400000-7f0000500000 ---p 00000000 00:00 0
Size:               1024 kB
Rss:                   0 kB
AnonHugePages:         0 kB
Swap:                  0 kB
THPeligible:           0
VmFlags: mr mw me nr sd
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
Size:                  4 kB
Rss:                   0 kB
VmFlags: ex
"""


def test_maps_are_read_with_names_that_hold_blanks_and_without_the_vsyscall_page():
    areas = parse_maps(_MAPS)

    assert len(areas) == 6
    assert (areas[0].start, areas[0].end) == (0x400000, 0x452000)
    assert (areas[0].permissions, areas[0].inode) == ("r-xp", 173521)
    assert [area.name for area in areas][1:] == [
        "[heap]",
        "/usr/lib64/ld-2.15.so",
        "",
        "[anon:kv cache]",
        "/srv/a file with blanks",
    ]
    assert areas[0].resident == -1  # not read


def test_smaps_give_residency_huge_pages_swap_and_charge():
    committed, reserved = parse_smaps(_SMAPS)

    assert committed.resident == 3000 << 10
    assert committed.huge == 2 << 20
    assert committed.swapped == 16 << 10
    assert committed.eligible
    assert committed.charged is True
    assert (reserved.permissions, reserved.resident, reserved.charged) == ("---p", 0, False)
    assert not reserved.eligible


def test_reserved_huge_pages_are_resident_and_no_transparent_ones():
    # Rss leaves them out.
    text = (
        b"7f0000000000-7f0000800000 rw-p 00000000 00:0f 9   /anon_hugepage (deleted)\n"
        b"Rss:                   0 kB\nAnonHugePages:         0 kB\n"
        b"Shared_Hugetlb:     2048 kB\nPrivate_Hugetlb:    4096 kB\nVmFlags: rd wr mr mw me de ht sd\n"
    )

    (area,) = parse_smaps(text)

    assert (area.resident, area.huge) == (6 << 20, 0)
    assert possible_huge_bytes([area]) == (0, 0)


def test_a_file_that_ends_in_the_middle_is_no_error():
    for length in range(len(_SMAPS)):
        parse_smaps(_SMAPS[:length].rpartition(b"\n")[0] + b"\n")
        parse_maps(_MAPS[:length].rpartition(b"\n")[0])


def test_numa_maps_count_bytes_on_each_node():
    text = (
        b"7f0000000000 default anon=96 dirty=96 N0=64 N2=32 kernelpagesize_kB=4\n"
        b"7f0000800000 default file=/usr/lib/libc.so.6\n"
    )

    assert parse_numa_maps(text) == {0x7F0000000000: (64 * 4096, 0, 32 * 4096)}


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
