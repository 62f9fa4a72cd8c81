"""What the commands ask of a device before they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.memory.backing import VirtualBacking


def device_free(backing: VirtualBacking) -> int | None:
    """Return what is free on the device of *backing*, or ``None`` for the host."""
    from vmtool.memory import device_ordinal

    ordinal = device_ordinal(backing.name)
    if ordinal is None:
        return None
    from vmtool.memory.cuda.devices import free_bytes

    return free_bytes(ordinal)
