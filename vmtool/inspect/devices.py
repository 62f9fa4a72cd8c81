"""What processes hold on each GPU, as NVML counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine.nvml import read_nvml
from vmtool.results.inspect import ProcessDevice, Unavailable

if TYPE_CHECKING:
    from vmtool.machine.nvml import NvmlReading


def read_devices(
    pids: tuple[int, ...], reading: NvmlReading | None = None
) -> tuple[tuple[ProcessDevice, ...], Unavailable | None]:
    """Return every device that one of *pids* has memory on, or why that is not known.

    Args:
        pids: The process and those of its descendants that count as its own.
        reading: What NVML reported; it is queried if this is omitted.
    """
    nvml = read_nvml() if reading is None else reading
    if nvml.absent is not None:
        return (), Unavailable("devices", "platform", nvml.absent)
    found = []
    for device in nvml.devices:
        own = [used for pid in pids if (used := device.bytes_of(pid)) is not None]
        here = {process.pid for process in device.processes or ()} & set(pids)
        if device.processes is not None and not here:
            continue
        found.append(
            ProcessDevice(
                device=device.index,
                name=device.name,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                own_bytes=sum(own) if own else None,
                others=device.others(*pids),
            )
        )
    return tuple(found), None
