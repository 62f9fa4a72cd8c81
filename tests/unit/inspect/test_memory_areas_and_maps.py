"""Memory areas, as proc_pid_maps(5) and proc_pid_smaps(5) show them."""

from vmtool.inspect.memory_areas_and_maps import parse_maps, parse_numa_maps, parse_smaps
from vmtool.inspect.reservations import possible_huge_bytes

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
