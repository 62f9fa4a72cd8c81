"""Counters are read exactly, for the process and for one range; limits with whatever memory is left."""

import mmap
import sys

import pytest

from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import Counters, read_process, read_range, read_split
from vmtool.units import GIB, MIB

if sys.platform == "win32":
    pytest.skip("reads /proc", allow_module_level=True)

from vmtool.memory.posix import counters
from vmtool.memory.posix.counters import Area, parse_smaps, read_areas, sum_areas

PAGE = mmap.PAGESIZE
linux = pytest.mark.skipif(sys.platform != "linux", reason="these counters are Linux's")

# Recorded on Linux 6.18, shortened to the keys around those that are read.
SMAPS = b"""\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0                          [anon:vmtool]
Size:               2048 kB
KernelPageSize:        4 kB
Rss:                  12 kB
Pss:                  12 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac
7f0000200000-7f0040000000 ---p 00000000 00:00 0
Size:            1046528 kB
Rss:                   0 kB
VmFlags: mr mw me nr
7f0040000000-7f0040003000 r-xp 00003000 fe:00 260850  /usr/lib/a b-c.so
Size:                 12 kB
Rss:                   8 kB
VmFlags: rd ex mr mw me
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Size:                  4 kB
Rss:                   0 kB
VmFlags: ex
""".splitlines(keepends=True)


def test_smaps_is_read_without_the_vsyscall_page():
    assert list(parse_smaps(SMAPS)) == [
        Area(0x7F0000000000, 0x7F0000200000, 12288, charged=True),
        Area(0x7F0000200000, 0x7F0040000000, 0, charged=False),
        Area(0x7F0040000000, 0x7F0040003000, 8192, charged=False),
    ]


def test_ledgers_are_sums_and_only_accounted_areas_are_charge():
    assert sum_areas(parse_smaps(SMAPS)) == Counters(GIB + 3 * 4096, 2 * MIB, 12288 + 8192, 3)


def test_without_vmflags_the_charge_is_not_available():
    lines = [line for line in SMAPS if not line.startswith(b"VmFlags")]
    assert sum_areas(parse_smaps(lines)).charge_bytes is None


def test_a_change_with_an_unknown_side_is_unknown():
    change = Counters(10, None, 5, 2) - Counters(4, 1, None, 3)
    assert change == Counters(6, None, None, -1)


@linux
def test_the_process_agrees_with_statm():
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[0])
    assert abs(read_process().address_space_bytes - pages * PAGE) < MIB


@linux
@pytest.mark.parametrize(
    ("method", "charged_after"), [("fixed", 0), ("protect", 8 * PAGE), ("advise", 0)]
)
def test_a_range_distinguishes_reserve_commit_touch_and_release(method, charged_after):
    backing = open_backing(method=method)
    reservation = backing.reserve(GIB)
    base = reservation.base
    try:
        reserved = read_range(base, GIB)
        assert (reserved.address_space_bytes, reserved.charge_bytes) == (GIB, 0)
        assert reserved.resident_bytes == 0

        backing.commit(reservation, 0, 8 * PAGE)
        committed = read_range(base, GIB)
        assert committed.charge_bytes == (0 if method == "advise" else 8 * PAGE)
        assert committed.resident_bytes == (8 * PAGE if method == "advise" else 0)

        _touch(base, 8 * PAGE)
        assert read_range(base, GIB).resident_bytes == 8 * PAGE

        backing.release(reservation, 0, 8 * PAGE)
        released = read_range(base, GIB)
        assert released.resident_bytes == 0
        # Only mmap(MAP_FIXED) gives the charge back once pages were touched.
        assert released.charge_bytes == charged_after
        assert released.address_space_bytes == GIB
    finally:
        backing.unreserve(reservation)
    assert read_range(base, GIB).address_space_bytes == 0


@linux
def test_an_area_that_reaches_out_is_clipped_to_the_range():
    backing = open_backing()
    reservation = backing.reserve(64 * PAGE)
    base = reservation.base
    try:
        backing.commit(reservation, 0, 64 * PAGE)
        _touch(base, 16 * PAGE)
        inside = read_range(base + 8 * PAGE, 16 * PAGE)
        assert inside == Counters(16 * PAGE, 16 * PAGE, 8 * PAGE, 1)
    finally:
        backing.unreserve(reservation)


@linux
def test_writable_areas_are_what_is_committed():
    backing = open_backing()
    reservation = backing.reserve(16 * PAGE)
    base = reservation.base
    try:
        backing.commit(reservation, 0, 2 * PAGE)
        backing.commit(reservation, 8 * PAGE, PAGE)
        assert read_areas(base, 16 * PAGE) == (
            (base, base + 2 * PAGE),
            (base + 8 * PAGE, base + 9 * PAGE),
        )
    finally:
        backing.unreserve(reservation)


@linux
def test_without_smaps_statm_is_read(tmp_path):
    (tmp_path / "statm").write_text("5000 300 100 1 0 900 0\n", encoding="ascii")
    counters = read_process(str(tmp_path))
    assert counters.charge_bytes is None
    assert counters.address_space_bytes == 5000 * PAGE
    assert counters.resident_bytes == 300 * PAGE
    assert counters.mappings > 10
    process, ranges = read_split([(0, 1 << 47)], str(tmp_path))
    assert (process.resident_bytes, ranges) == (300 * PAGE, (Counters(),))


@linux
def test_without_proc_only_limits_are_left(tmp_path):
    assert read_process(str(tmp_path)).address_space_bytes is None


def _touch(base, nbytes):
    import ctypes

    for address in range(base, base + nbytes, PAGE):
        ctypes.c_ubyte.from_address(address).value = 1


@linux
def test_areas_are_counted_also_where_there_is_no_memory_to_read_the_rest(monkeypatch):
    """The limit on areas was then put down to the kernel, which "had no memory for it"."""

    def opened(path, mode="r", **options):
        if options:  # with a codec, as for longer files
            raise MemoryError
        return open(path, mode)

    monkeypatch.setattr(counters, "open", opened, raising=False)
    limits = counters.read_limits()
    assert limits.mappings > 0
    assert limits.max_mappings > 0
    assert limits.available_bytes is None
