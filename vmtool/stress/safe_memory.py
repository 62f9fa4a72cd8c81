"""What is safe to commit on this machine, or a device, beside the workers of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vmtool.machine.device_memory import device_free
from vmtool.machine.memory_limit_sentences import describe_huge_pages, describe_safe
from vmtool.machine.preflight import WORKER_BYTES, safe_device_part, safe_for_workers
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking


@dataclass(frozen=True, slots=True)
class Room:
    """What the machine, or the device, has room for.

    Attributes:
        safe_bytes: What may be committed.
        device_free_bytes: What the device has free; ``None`` for the host.
        bound: What *safe_bytes* comes from, in words.
        how_to_raise: What would make it more.
    """

    safe_bytes: int
    device_free_bytes: int | None = None
    bound: str | None = None
    how_to_raise: str | None = None


def measure_rooms(
    backings: Sequence[VirtualBacking],
    facts: MachineFacts,
    *,
    workers: int,
    huge_page_bytes: int | None = None,
) -> Room:
    """Return what all devices of *backings* have room for: each as much as the smallest.

    Args:
        backings: One or more of each device, or of the host.
        facts: About this machine.
        workers: On all of them together.
        huge_page_bytes: The size of the reserved huge pages that are used, if any.
    """
    places = {backing.name: backing for backing in backings}
    each = workers // len(places)
    rooms = [
        measure_room(backing, facts, workers=each, huge_page_bytes=huge_page_bytes)
        for backing in places.values()
    ]
    least = min(rooms, key=lambda room: room.safe_bytes)
    free = [room.device_free_bytes for room in rooms if room.device_free_bytes is not None]
    return replace(
        least,
        safe_bytes=least.safe_bytes * len(rooms),
        device_free_bytes=min(free) * len(rooms) if free else None,
    )


def measure_room(
    backing: VirtualBacking,
    facts: MachineFacts,
    *,
    workers: int,
    huge_page_bytes: int | None = None,
) -> Room:
    """Return what the machine, or the device of *backing*, has room for beside *workers*.

    Args:
        backing: One of the device, or of the host.
        facts: About this machine.
        workers: How many processes use it.
        huge_page_bytes: The size of the reserved huge pages that are used, if any.
    """
    bounds = {} if huge_page_bytes is None else facts.huge_page_bounds(huge_page_bytes)
    if huge_page_bytes is not None and bounds:
        bound, how_to_raise = describe_huge_pages(facts, huge_page_bytes)
        return Room(min(bounds.values()), None, bound, how_to_raise)
    free = device_free(backing, contexts=workers)
    bound, how_to_raise = describe_safe(facts, free)
    safe = safe_for_workers(facts, workers) if free is None else safe_device_part(free)
    if free is None and workers > 1:
        bound += f"; {workers:,} workers need {format_size(WORKER_BYTES)} each of their own"
    return Room(safe, free, bound, how_to_raise)
