"""Reserved huge pages: tried before they are used, counted, and their limits named."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("reserved huge pages are Linux's", allow_module_level=True)

from vmtool.errors import UnavailableError, UsageError
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import read_range
from vmtool.memory.errors import OutOfMemoryError
from vmtool.memory.posix.backing import PosixBacking
from vmtool.memory.posix.calls import CALLS
from vmtool.memory.posix.huge_pages import (
    HugePageLimits,
    diagnose_huge,
    mmap_flags,
    page_size_of,
    read_huge_limits,
)
from vmtool.units import GIB, KIB, MIB

PAGE = 2 * MIB
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
PAGES = 8


@pytest.fixture
def pool():
    """Eight free huge pages of 2 MiB, if there are some or the test may add them."""
    limits = read_huge_limits(PAGE)
    if limits.pool_pages is None:
        pytest.skip("this kernel has no huge pages of 2 MiB")
    if (limits.free_pages or 0) >= PAGES:
        yield
        return
    if os.environ.get("VMTOOL_TEST_MODES") != "1" or not os.access(POOL, os.W_OK):
        pytest.skip("changes the whole machine for a moment: set VMTOOL_TEST_MODES=1 to allow it")
    before = POOL.read_text("ascii")
    POOL.write_text(str(limits.pool_pages + PAGES), "ascii")
    try:
        if (read_huge_limits(PAGE).free_pages or 0) < PAGES:
            pytest.skip("the kernel found no memory for huge pages")
        yield
    finally:
        POOL.write_text(before, "ascii")


def test_flags_carry_the_size():
    assert mmap_flags(2 * MIB) == 0x40000 | 21 << 26
    assert page_size_of(mmap_flags(GIB)) == GIB
    assert page_size_of(0x22) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "protect", "huge_page_bytes": PAGE}, "--method fixed"),
        ({"huge_page_bytes": 3 * MIB}, "2MiB or 1GiB"),
        ({"huge_page_bytes": 4 * KIB}, "2MiB or 1GiB"),
    ],
)
def test_what_cannot_work_is_wrong_usage(arguments, words):
    with pytest.raises(UsageError) as caught:
        open_backing(**arguments)
    assert words in caught.value.hint


def test_transparent_and_reserved_exclude_each_other():
    with pytest.raises(UsageError, match="not both"):
        open_backing(huge=True, huge_page_bytes=PAGE)


def test_a_size_that_the_kernel_lacks_is_not_available():
    with pytest.raises(UnavailableError) as caught:
        open_backing(huge_page_bytes=1 << 40)
    assert "no reserved huge pages of 1 TiB" in caught.value.cause


def test_a_page_is_tried_before_the_backing_is_used(failing):
    """A pool may show free pages that this process cannot have: only mmap knows."""
    fault = failing(CALLS, nth=1, code=errno.ENOMEM)
    with pytest.raises(UnavailableError, match="MAP_HUGE_2MB"):
        PosixBacking("fixed", huge_page_bytes=PAGE, calls=fault.calls)
    assert [name for name, _ in fault.seen] == ["mmap"]


def test_the_page_is_the_granule_and_commits_are_counted(pool):
    backing = open_backing(huge_page_bytes=PAGE)
    assert (backing.granularity, backing.populates, backing.zeroes) == (PAGE, True, True)
    with VirtualBuffer(backing, 64 * PAGE) as buffer:
        assert buffer.base % PAGE == 0
        free = read_huge_limits(PAGE).free_pages
        buffer.grow_to(2 * PAGE)
        buffer.grow_to(3 * PAGE)
        counters = read_range(buffer.base, 64 * PAGE)
        # Not charged; resident at once; one area for each commit, as they never join.
        assert (counters.charge_bytes, counters.resident_bytes) == (0, 3 * PAGE)
        assert counters.mappings == 3
        assert read_huge_limits(PAGE).free_pages == free - 3
        view = buffer.view()
        view[0], view[3 * PAGE - 1] = 1, 2
        del view
        buffer.shrink_to(PAGE)
        assert read_range(buffer.base, 64 * PAGE).resident_bytes == PAGE
        assert read_huge_limits(PAGE).free_pages == free - 1
        buffer.grow_to(2 * PAGE)
        assert buffer.view()[PAGE : PAGE + 8] == bytes(8)


def test_an_empty_pool_refuses_the_commit_and_nothing_changes(pool, kernel_map):
    with VirtualBuffer(open_backing(huge_page_bytes=PAGE), 64 * GIB) as buffer:
        buffer.grow_to(PAGE)
        before = kernel_map(buffer.base, buffer.capacity)
        with pytest.raises(OutOfMemoryError) as caught:
            buffer.grow_to(64 * GIB)
        assert "huge pages of 2 MiB" in caught.value.cause
        assert "nr_hugepages" in caught.value.hint
        assert kernel_map(buffer.base, buffer.capacity) == before
        assert (len(buffer), buffer.committed) == (PAGE, PAGE)


@pytest.fixture
def small_group(pool):
    """A control group that allows two huge pages, with this process in it."""
    root = next((p for p in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
                 if "hugetlb" in _read(Path(p, "cgroup.controllers"))), None)  # fmt: skip
    if root is None:
        pytest.skip("no control group version 2 has the controller hugetlb here")
    mine = next(line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines()
                if line.startswith("0::"))  # fmt: skip
    group = Path(root, f"vmtool-test-{os.getpid()}")
    try:
        Path(root, "cgroup.subtree_control").write_text("+hugetlb", "ascii")
        group.mkdir()
        (group / "hugetlb.2MB.max").write_text(str(2 * PAGE), "ascii")
        (group / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        Path(root, mine.lstrip("/"), "cgroup.procs").write_text(str(os.getpid()), "ascii")
        group.rmdir()


def test_a_group_that_allows_fewer_is_named_and_kills_no_process(small_group):
    """Its limit counts at the first touch, with SIGBUS: so commit faults pages in."""
    with VirtualBuffer(open_backing(huge_page_bytes=PAGE), 64 * PAGE) as buffer:
        buffer.grow_to(PAGE)
        with pytest.raises(OutOfMemoryError) as caught:
            buffer.grow_to(4 * PAGE)
        assert caught.value.symbol == "EFAULT"
        assert str(small_group) in caught.value.cause
        assert "allows 4 MiB" in caught.value.cause
        assert "hugetlb.2MB.max" in caught.value.hint
        assert buffer.committed == PAGE
        buffer.grow_to(2 * PAGE)


def test_the_lowest_limit_on_the_way_to_the_root_is_found(tmp_path):
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "proc/self/mountinfo": "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 c rw\n",
        "sys/fs/cgroup/a/hugetlb.1GB.max": "2147483648\n",
        "sys/fs/cgroup/a/hugetlb.1GB.current": "1073741824\n",
        "sys/fs/cgroup/a/b/hugetlb.1GB.max": "max\n",
        "sys/fs/cgroup/a/b/hugetlb.1GB.current": "0\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "5\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "4\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages": "1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "ascii")
    limits = read_huge_limits(GIB, str(tmp_path))
    assert (limits.pool_pages, limits.free_pages) == (5, 3)
    assert (limits.group_bytes, limits.group_used_bytes) == (2 * GIB, GIB)
    assert limits.group == "/sys/fs/cgroup/a"
    refused = diagnose_huge(errno.EFAULT, 2 * GIB, limits)
    assert refused.kind == "huge-page-group"
    assert "hugetlb.1GB.max" in refused.remedy
    assert "hugepages-1Gi" in refused.remedy
    assert diagnose_huge(errno.ENOMEM, 4 * GIB, limits).kind == "huge-page-pool"


def test_a_pool_of_a_size_that_is_missing_is_distinguished():
    limits = read_huge_limits(1 << 40)
    assert limits.pool_pages is None
    assert diagnose_huge(errno.EINVAL, 1 << 40, limits).kind == "huge-page-size"


def test_a_pool_that_is_hidden_is_not_called_a_size_that_is_missing():
    """Without /sys a page is still refused, and only EINVAL says that there is no such size."""
    hidden = HugePageLimits(PAGE)
    found = diagnose_huge(errno.ENOMEM, PAGE, hidden)
    assert found.kind == "huge-page-pool"
    assert "unknown, as /sys is missing or hidden" in found.cause


def test_a_pool_that_has_enough_is_not_the_reason():
    """Such as RLIMIT_AS, which the counters of the process show."""
    assert diagnose_huge(errno.ENOMEM, PAGE, HugePageLimits(PAGE, 4, 4)) is None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError:
        return ""
