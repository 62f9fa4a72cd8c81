"""The memory limits above a process, in every arrangement of the two cgroup versions."""

import os
import sys

import pytest

from vmtool.machine.cgroups import GroupLimit, read_cgroups
from vmtool.machine.kernel_files import KernelFiles
from vmtool.units import GIB, MIB

# Recorded on a systemd host (v2 only), in a v1 container, and on a hybrid machine.
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CONTAINER = (
    "612 611 0:30 /docker/8f1d /sys/fs/cgroup/memory ro,nosuid master:13 - cgroup cgroup rw,memory\n"
    "613 611 0:31 /docker/8f1d /sys/fs/cgroup/cpu ro,nosuid master:14 - cgroup cgroup rw,cpu\n"
)
HYBRID_MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
APP = "/sys/fs/cgroup/app"
V1_UNLIMITED = "9223372036854771712\n"


def test_v2_reads_every_ancestor_and_the_tightest_counts(recorded):
    top = "/sys/fs/cgroup"
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "0::/user.slice/app.scope\n",
                "/proc/self/mountinfo": V2_MOUNT,
                f"{top}/user.slice/memory.max": f"{2 * GIB}\n",
                f"{top}/user.slice/memory.current": f"{GIB}\n",
                f"{top}/user.slice/memory.high": "max\n",
                f"{top}/user.slice/memory.stat": f"anon 5\ninactive_file {256 * MIB}\n",
                f"{top}/user.slice/app.scope/memory.max": "max\n",
                f"{top}/user.slice/app.scope/memory.high": "max\n",
                f"{top}/user.slice/app.scope/memory.current": f"{512 * MIB}\n",
            }
        )
    )
    # The root of version 2 has no memory files and so is no level.
    assert [level.path for level in facts.levels] == [
        f"{top}/user.slice/app.scope",
        f"{top}/user.slice",
    ]
    assert facts.tightest.path == f"{top}/user.slice"
    assert facts.available_bytes == 2 * GIB - (GIB - 256 * MIB)


def test_active_cache_is_reclaimable_and_dirty_or_mapped_pages_are_not(recorded):
    """A file of 600 MiB that was read three times, in a group of 900 MiB."""
    files = {
        "/proc/self/cgroup": "0::/app\n",
        "/proc/self/mountinfo": V2_MOUNT,
        f"{APP}/memory.max": f"{900 * MIB}\n",
        f"{APP}/memory.current": f"{640 * MIB}\n",
        f"{APP}/memory.stat": (
            f"anon {20 * MIB}\nfile {650 * MIB}\nshmem {30 * MIB}\nfile_mapped {4 * MIB}\nfile_dirty {3 * MIB}\n"
            f"file_writeback {MIB}\ninactive_file {10 * MIB}\nactive_file {600 * MIB}\n"
            f"unevictable {2 * MIB}\n"
        ),
        f"{APP}/memory.events": "low 0\nhigh 7\nmax 3900\noom 0\noom_kill 0\n",
        f"{APP}/memory.pressure": "some avg10=31.00 avg60=0.00 avg300=0.00 total=9\n",
    }
    (level,) = read_cgroups(recorded(files)).levels
    assert level.cache_bytes == 620 * MIB
    assert level.reclaimable_bytes == 602 * MIB
    assert level.available_bytes == 862 * MIB
    assert (level.limit_hits, level.high_hits) == (3900, 7)
    assert level.pressure.some_percent == 31.0


def test_what_is_counted_of_the_groups_below_is_left_out_where_the_kernel_says_it_apart(recorded):
    files = {
        "/proc/self/cgroup": "0::/app\n",
        "/proc/self/mountinfo": V2_MOUNT,
        f"{APP}/memory.max": f"{900 * MIB}\n",
        f"{APP}/memory.events": "low 0\nhigh 7\nmax 3900\noom 4\noom_kill 3\n",
        f"{APP}/memory.events.local": "low 0\nhigh 2\nmax 30\noom 0\noom_kill 0\n",
    }
    (level,) = read_cgroups(recorded(files)).levels
    assert (level.limit_hits, level.high_hits) == (30, 2)
    assert level.oom_kills == 3  # a victim may be in any group below


@pytest.mark.parametrize(("disabled", "waiting"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_group_without_an_oom_killer_is_waited_in(recorded, disabled, waiting):
    files = {
        "/proc/self/cgroup": "2:memory:/app\n",
        "/proc/self/mountinfo": "1 2 0:1 / /cg rw - cgroup c rw,memory\n",
        "/cg/app/memory.limit_in_bytes": f"{120 * MIB}\n",
        "/cg/app/memory.usage_in_bytes": f"{120 * MIB}\n",
        "/cg/app/memory.oom_control": (
            f"oom_kill_disable {disabled}\nunder_oom {waiting}\noom_kill 3\n"
        ),
    }
    (level, *_) = read_cgroups(recorded(files)).levels
    assert (level.oom_killer_off, level.under_oom) == (disabled == 1, waiting == 1)
    assert level.oom_kills == 3


@pytest.mark.parametrize(
    ("mounts", "membership", "pids", "hugetlb", "limit_name"),
    [
        (V2_MOUNT, "0::/app\n", APP, APP, "max"),
        (
            "1 2 0:1 / /cg/pids rw - cgroup c rw,pids\n3 4 0:2 / /cg/huge rw - cgroup c rw,hugetlb\n",
            "2:pids:/app\n3:hugetlb:/app\n",
            "/cg/pids/app",
            "/cg/huge/app",
            "limit_in_bytes",
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_groups_of_tasks_and_of_huge_pages(
    recorded, mounts, membership, pids, hugetlb, limit_name
):
    used_name = {"max": "current"}.get(limit_name, "usage_in_bytes")
    files = {
        "/proc/self/cgroup": membership,
        "/proc/self/mountinfo": mounts,
        f"{pids}/pids.max": "32\n",
        f"{pids}/pids.current": "5\n",
        f"{pids.rpartition('/')[0]}/pids.max": "1000\n",
        f"{pids.rpartition('/')[0]}/pids.current": "990\n",
        f"{hugetlb}/hugetlb.2MB.{limit_name}": f"{8 * MIB}\n",
        f"{hugetlb}/hugetlb.2MB.{used_name}": f"{2 * MIB}\n",
        f"{hugetlb}/hugetlb.1GB.{limit_name}": V1_UNLIMITED,
    }
    facts = read_cgroups(recorded(files))
    # The group above has the larger limit, and leaves less.
    assert facts.tasks == GroupLimit(pids.rpartition("/")[0], 1000, 990)
    assert facts.huge_pages == (GroupLimit(hugetlb, 8 * MIB, 2 * MIB, 2 * MIB),)


def test_v2_high_binds_before_max(recorded):
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "0::/\n",
                "/proc/self/mountinfo": V2_MOUNT,
                "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
                "/sys/fs/cgroup/memory.high": f"{GIB}\n",
                "/sys/fs/cgroup/memory.current": "0\n",
            }
        )
    )
    assert facts.tightest.bound_bytes == GIB
    assert facts.available_bytes == GIB


def test_v1_container_without_its_own_namespace_reads_what_is_mounted(recorded):
    top = "/sys/fs/cgroup/memory"
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "7:memory:/docker/8f1d\n3:cpu,cpuacct:/docker/8f1d\n",
                "/proc/self/mountinfo": V1_CONTAINER,
                f"{top}/memory.limit_in_bytes": f"{GIB}\n",
                f"{top}/memory.usage_in_bytes": f"{300 * MIB}\n",
                f"{top}/memory.stat": f"inactive_file 7\ntotal_inactive_file {100 * MIB}\n",
            }
        )
    )
    assert [(level.version, level.path) for level in facts.levels] == [(1, top)]
    assert facts.available_bytes == GIB - 200 * MIB


def test_hybrid_takes_memory_from_version_1_and_skips_a_unified_tree_without_it(recorded):
    top = "/sys/fs/cgroup/memory"
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "4:memory:/a/b\n9:name=systemd:/\n0::/\n",
                "/proc/self/mountinfo": HYBRID_MOUNTS,
                f"{top}/memory.limit_in_bytes": V1_UNLIMITED,
                f"{top}/memory.usage_in_bytes": "1000\n",
                f"{top}/a/memory.limit_in_bytes": f"{GIB}\n",
                f"{top}/a/memory.usage_in_bytes": "0\n",
                f"{top}/a/b/memory.limit_in_bytes": f"{2 * GIB}\n",
                f"{top}/a/b/memory.usage_in_bytes": "0\n",
                "/sys/fs/cgroup/unified/cgroup.procs": "1\n",
            }
        )
    )
    assert [level.version for level in facts.levels] == [1, 1, 1]
    assert facts.tightest.path == f"{top}/a"


def test_no_limit_anywhere_is_unlimited(recorded):
    top = "/sys/fs/cgroup/memory"
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "4:memory:/\n",
                "/proc/self/mountinfo": HYBRID_MOUNTS,
                f"{top}/memory.limit_in_bytes": V1_UNLIMITED,
                f"{top}/memory.usage_in_bytes": "1000\n",
            }
        )
    )
    assert facts.levels
    assert facts.tightest is None
    assert facts.available_bytes is None


@pytest.mark.parametrize("missing", ["/proc/self/cgroup", "/proc/self/mountinfo"])
def test_missing_files_leave_the_limits_unknown(recorded, missing):
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/memory.max": "5\n",
    }
    del files[missing]
    assert read_cgroups(recorded(files)).levels == ()


def test_a_use_above_the_limit_leaves_nothing(recorded):
    facts = read_cgroups(
        recorded(
            {
                "/proc/self/cgroup": "0::/\n",
                "/proc/self/mountinfo": V2_MOUNT,
                "/sys/fs/cgroup/memory.max": "100\n",
                "/sys/fs/cgroup/memory.current": "200\n",
            }
        )
    )
    assert facts.available_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_the_group_of_a_real_process_matches_the_kernels():
    mine = read_cgroups(KernelFiles())
    same = read_cgroups(KernelFiles(), str(os.getpid()))

    assert [level.path for level in mine.levels] == [level.path for level in same.levels]
