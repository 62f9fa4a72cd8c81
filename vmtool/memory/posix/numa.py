"""NUMA nodes on Linux: which nodes there are, and on which node a page is.

numa(7), mbind(2) and ``/proc/self/numa_maps`` in proc(5). A kernel without CONFIG_NUMA has none of
them, and a machine with one node has one choice.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MPOL_BIND: Final = 2  # include/uapi/linux/mempolicy.h: no page from any other node
#: The number of mbind differs, and no C library has a function for it (libnuma does).
#: Each architecture's unistd.h or syscall.tbl; those that are not here use the generic table.
_SYSCALLS: Final = {"x86_64": 237, "ppc64le": 259, "s390x": 268}
_GENERIC_SYSCALL: Final = 235
_MASK_BITS: Final = 1024  # CONFIG_NODES_SHIFT is at most 10
_ONLINE: Final = "sys/devices/system/node/online"
_PAGES: Final = re.compile(rb"\bN([0-9]+)=([0-9]+)")
_PAGE_KIB: Final = re.compile(rb"\bkernelpagesize_kB=([0-9]+)")


def mbind_number() -> int:
    """Return the number of the system call mbind on this machine."""
    return _SYSCALLS.get(os.uname().machine, _GENERIC_SYSCALL)


def node_mask(node: int) -> tuple[bytes, int]:
    """Return the mask of one node as mbind takes it, and its length in bits plus one.

    The kernel reads one bit fewer than it is given (``get_nodes`` in mm/mempolicy.c).
    """
    mask = (1 << node).to_bytes(_MASK_BITS // 8, "little")
    return mask, _MASK_BITS + 1


def read_nodes(root: str = "/") -> tuple[int, ...]:
    """Return the nodes that are online; empty on a kernel without NUMA."""
    try:
        text = Path(root, _ONLINE).read_text("ascii")
    except OSError:
        return ()
    return parse_nodes(text)


def parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as ``0-1,4``."""
    nodes: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            nodes.extend(range(int(first), int(last or first) + 1))
    return tuple(nodes)


def count_node_bytes(base: int, nbytes: int, path: str = "/proc/self/numa_maps") -> dict[int, int]:
    """Return how many bytes of ``base..base + nbytes`` are on each node, by the kernel's count.

    Only memory that is in RAM has a node. Areas that begin in the range are counted whole, so the
    range is one that no area leaves, such as a reservation.

    Raises:
        OSError: If this kernel does not say (it has no CONFIG_NUMA).
    """
    with open(path, "rb", buffering=1 << 16) as areas:
        return parse_node_bytes(areas, base, base + nbytes)


def parse_node_bytes(lines: Iterable[bytes], base: int, end: int) -> dict[int, int]:
    """Return the bytes on each node of the areas of ``numa_maps`` that begin in ``base..end``."""
    found: dict[int, int] = {}
    for line in lines:
        start = int(line.split(None, 1)[0], 16)
        size = _PAGE_KIB.search(line)
        if size is None or not base <= start < end:
            continue
        for node, pages in _PAGES.findall(line):
            found[int(node)] = found.get(int(node), 0) + int(pages) * (int(size[1]) << 10)
    return found
