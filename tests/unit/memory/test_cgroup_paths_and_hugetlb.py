"""The groups of a process and their files, in both versions of control groups."""

import pytest

from vmtool.memory.cgroup_paths_and_hugetlb import (
    CgroupMount,
    ancestry,
    parse_limit,
    parse_membership,
    parse_mounts,
)

V1_UNLIMITED = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("root", "path", "inside"),
    [
        ("/", "/", []),
        ("/", "/a/b", ["/a/b", "/a"]),
        ("/docker/8f1d", "/docker/8f1d/x", ["/x"]),
        ("/docker/8f1d", "/docker/8f1d", []),
        ("/docker/8f1d", "/docker/8f1dee", []),  # a sibling whose name begins alike
        ("/", "/../../other", []),
        ("/kubepods", "/system.slice", []),
    ],
)
def test_ancestry_goes_from_the_group_to_the_mount(root, path, inside):
    mount = CgroupMount(2, "/cg", root)
    assert ancestry(mount, path) == (*(f"/cg{name}" for name in inside), "/cg")


def test_membership_distinguishes_the_versions():
    text = "9:name=systemd:/x\n4:cpu,memory:/m:with:colons\n0::/u\nnonsense\n"
    assert parse_membership(text) == {1: "/m:with:colons", 2: "/u"}


def test_mounts_unescape_and_skip_other_controllers():
    text = (
        "1 2 0:1 / /cg\\040dir rw - cgroup2 none rw\n3 4 0:2 / /cpu rw - cgroup none rw,cpu\nbad\n"
    )
    assert parse_mounts(text) == (CgroupMount(2, "/cg dir", "/"),)


@pytest.mark.parametrize("text", ["max\n", V1_UNLIMITED, "", "-1", "junk", None])
def test_what_is_no_limit_is_none(text):
    assert parse_limit(text) is None
