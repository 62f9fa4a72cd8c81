"""Memory is bound to a node, and where its pages are is the kernel's own count."""

from __future__ import annotations

import ctypes
import errno
import sys
from dataclasses import replace
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("NUMA nodes are chosen on Linux only", allow_module_level=True)

from vmtool.errors import CallError, UnavailableError
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.posix.backing import PosixBacking
from vmtool.memory.posix.calls import CALLS, call_error
from vmtool.memory.posix.numa import (
    count_node_bytes,
    node_mask,
    parse_node_bytes,
    parse_nodes,
    read_nodes,
)
from vmtool.units import MIB

NODES = read_nodes()


@pytest.mark.parametrize(
    ("text", "nodes"), [("0\n", (0,)), ("0-2,4\n", (0, 1, 2, 4)), ("1,3-3", (1, 3)), ("\n", ())]
)
def test_the_list_of_nodes_is_read(text, nodes):
    assert parse_nodes(text) == nodes


def test_a_kernel_without_nodes_has_none(tmp_path):
    assert read_nodes(str(tmp_path)) == ()


def test_the_mask_has_one_bit_and_the_kernel_reads_one_bit_fewer():
    mask, bits = node_mask(9)
    assert int.from_bytes(mask, "little") == 1 << 9
    assert bits == 8 * len(mask) + 1


# Recorded on Linux 6.18 with one node; the second node is written in by hand.
NUMA_MAPS = b"""\
7f0000000000 default anon=4 dirty=4 active=0 N0=4 kernelpagesize_kB=4
7f0000200000 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f0000400000 bind:1
7f0000600000 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f0000a00000 default stack anon=1 dirty=1 N0=1 kernelpagesize_kB=4
""".splitlines(keepends=True)


def test_pages_are_added_up_by_node_in_their_own_size():
    found = parse_node_bytes(NUMA_MAPS, 0x7F0000200000, 0x7F0000A00000)
    assert found == {0: 4096, 1: 2 * 4096 + 2 * 2 * MIB}


@pytest.mark.skipif(not NODES, reason="this kernel has no NUMA")
@pytest.mark.parametrize("method", host_methods())
def test_what_is_committed_lands_on_the_node(method):
    node = NODES[-1]
    try:
        buffer = VirtualBuffer(open_backing(method=method, node=node), 8 * MIB)
        buffer.grow_to(MIB)
    except CallError as error:
        if error.symbol in {"EPERM", "ENOSYS"}:
            pytest.skip(error.cause)
        raise
    with buffer:
        buffer.view()[:] = b"x" * MIB
        assert count_node_bytes(buffer.base, 8 * MIB) == {node: MIB}
        buffer.shrink_to(0)
        assert count_node_bytes(buffer.base, 8 * MIB) == {}


@pytest.mark.skipif(not NODES, reason="this kernel has no NUMA")
def test_a_node_that_is_not_there_is_refused_before_anything_is_reserved():
    with pytest.raises(UnavailableError, match="this machine has no NUMA node 1000") as caught:
        open_backing(node=1000)
    assert caught.value.hint.startswith("use ")


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EPERM, "SYS_NICE"), (errno.ENOSYS, "--node"), (errno.EINVAL, "node")],
)
def test_each_refusal_of_mbind_has_its_cause(code, words):
    ctypes.set_errno(code)
    error = call_error("mbind", 1 << 40, 4096, 3)
    assert error.cause
    assert words in error.hint


def test_a_platform_without_mbind_refuses_a_node():
    with pytest.raises(UnavailableError, match="Linux only"):
        PosixBacking("fixed", node=0, calls=replace(CALLS, mbind=None))


def test_the_status_names_the_same_nodes():
    status = Path("/proc/self/status").read_text("ascii", errors="replace")
    if "Mems_allowed_list" in status and NODES:
        allowed = status.partition("Mems_allowed_list:")[2].splitlines()[0]
        assert set(parse_nodes(allowed)) & set(NODES)
