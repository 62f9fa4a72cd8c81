"""The memory of a device: what a plan may take of it, and what is in use."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError
from vmtool.machine.facts import safe_part
from vmtool.machine.nvml import open_nvml, other_users, read_nvml
from vmtool.units import MIB

if TYPE_CHECKING:
    from vmtool.machine.nvml import DeviceProcess, Nvml
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.cuda.devices import DeviceInfo

#: What a context is taken to need where it cannot be measured: 300 to 600 MiB were reported on Hopper.
#: It is never taken for more than the device has in use.
_CONTEXT_BYTES: Final = 512 * MIB


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device at a moment.

    Attributes:
        free_bytes: What a plan can still commit: the contexts it needs are taken off; on a device
            that shares the host's memory, also what the host must keep.
        context_bytes: What one context takes of the device.
        context_measured: Whether NVML counted that, or it is an estimate.
        shared_with_host: Whether the host's memory is the limit as well.
        source: ``nvml``, without a context, or ``driver``.
        others: Other processes with a context on the device; ``None`` if not available.
    """

    free_bytes: int
    context_bytes: int
    context_measured: bool
    shared_with_host: bool
    source: str
    others: tuple[DeviceProcess, ...] | None


def read_device_memory(info: DeviceInfo, *, contexts: int = 1) -> DeviceMemory:
    """Return what is free on one device; where NVML answers, no context is made for it.

    Args:
        info: The device.
        contexts: How many processes the plan needs; each makes a context of its own. Where the
            driver is queried, one is made for the moment and is one of them.

    Raises:
        UnavailableError: If there is no usable driver.
        CudaError: If NVML is not available and the device has no room for a context.
    """
    from vmtool.memory.cuda.devices import free_bytes

    managed = read_nvml(info.uuid).device(info.uuid)
    measured = False
    if managed is not None and managed.free_bytes is not None:
        own = managed.bytes_of(os.getpid()) or 0
        measured = own > 0
        free, source = managed.free_bytes + own, "nvml"
        context = own or min(info.total_bytes - managed.free_bytes, _CONTEXT_BYTES)
    else:
        left = free_bytes(info.ordinal)
        context = max(min(info.total_bytes - left, _CONTEXT_BYTES), 0)
        free, source = left + context, "driver"
    free = max(free - contexts * context, 0)
    if info.shares_host_memory:
        free = _shared(info, free)
    return DeviceMemory(
        free_bytes=free,
        context_bytes=context,
        context_measured=measured,
        shared_with_host=info.shares_host_memory,
        source=source,
        others=other_users(managed),
    )


_Value = int | float | str | bool | None  # as in a check's values


def shared_device(**values: _Value) -> dict[str, _Value]:
    """Return the *values* of a check that is not done because a difference may be somebody else's."""
    try:
        open_nvml().close()
    except UnavailableError as error:
        remedy = error.hint or "make NVML work"
    else:
        remedy = "run where NVML lists this process (--pid=host, and the rights to see processes)"
    hint = f"{remedy}, or stop the other programs on the device"
    return {"reason": "device-shared", "hint": hint, **values}


class DeviceMemoryUse:
    """What is in use on one device, ours alone where NVML counts by process.

    Without that, others' memory cannot be told from ours: a difference then proves nothing.

    Args:
        context: The device; this process must have its context already.

    Attributes:
        ours: Whether the figure is of this process alone.
    """

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._nvml: Nvml | None = None
        with suppress(UnavailableError):
            self._nvml = open_nvml()
        # In a container NVML lists numbers of another namespace, among which ours is not found.
        self.ours = bool(self._own())
        if not self.ours:
            self.close()

    def read(self) -> int | None:
        """Return the bytes in use; ``None`` where free memory is only a budget.

        Raises:
            CudaError: If the driver call fails.
        """
        return self._own() if self.ours else self._context.used_bytes()

    def others_grew(self, change: int, tolerance: int) -> bool:
        """Return whether a *change* beyond the *tolerance* may be somebody else's."""
        return not self.ours and abs(change) > tolerance

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _own(self) -> int | None:
        managed = None if self._nvml is None else self._nvml.device(self._context.info.uuid)
        return None if managed is None else managed.bytes_of(os.getpid())


def _shared(info: DeviceInfo, free: int) -> int:
    """Return the lesser of what the host and the device have.

    The driver of an integrated device counts the page cache as used, although it makes room (seen on
    GB10 and Jetson); the host's MemAvailable knows. A coherent device has memory of its own.
    """
    from vmtool.machine import read_facts

    available = read_facts().machine_available_bytes
    if info.integrated:
        free = info.total_bytes
    return free if available is None else min(free, safe_part(available))


def device_free(backing: VirtualBacking, *, contexts: int = 1) -> int | None:
    """Return what a plan with that number of *contexts* can commit on the device of *backing*.

    ``None`` for the host.
    """
    from vmtool.memory.backing_by_name import device_ordinal

    ordinal = device_ordinal(backing.name)
    if ordinal is None:
        return None
    from vmtool.memory.cuda.devices import device

    return read_device_memory(device(ordinal), contexts=contexts).free_bytes
