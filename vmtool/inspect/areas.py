"""What the readers of a process return: its memory areas, or that it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryArea(NamedTuple):
    """One memory area (VMA). A tuple, because a process may have 65,530 of them.

    Attributes:
        start: Its first address.
        end: The address after its last byte.
        permissions: Such as ``rw-p``.
        inode: Of the file that is mapped; 0 is anonymous memory.
        name: A path, ``[heap]``, ``[anon:NAME]``, or nothing.
        resident: Bytes in RAM, reserved huge pages too; -1 where only ``maps`` was read.
        huge: Of that, in transparent huge pages: of anonymous or shared memory, or of a file.
        swapped: Bytes swapped out.
        eligible: Whether transparent huge pages could back it.
        charged: Whether it counts towards the commit charge; ``None`` is unknown.
    """

    start: int
    end: int
    permissions: str
    inode: int
    name: str
    resident: int = -1
    huge: int = 0
    swapped: int = 0
    eligible: bool = False
    charged: bool | None = None


class ProcessGoneError(Exception):
    """The process has ended; the message says how, where it is still listed."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What is read seldom.

    Attributes:
        areas: Every memory area.
        took_ns: How long that took.
        at_ns: When it was read (monotonic).
        complete: Whether residency was read too (``smaps``), not only addresses (``maps``).
        nodes: Resident bytes on each NUMA node by the start of an area, if requested.
    """

    areas: tuple[MemoryArea, ...]
    took_ns: int
    at_ns: int
    complete: bool
    nodes: Mapping[int, tuple[int, ...]] | None = None
