"""What processes hold on each GPU, as NVML counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.nvml import read_nvml
from vmtool.results.inspect import ProcessDevice, Unavailable

if TYPE_CHECKING:
    from vmtool.machine.nvml import ManagedDevice, NvmlReading

_NOT_LISTED: Final = (
    "NVML does not list this process. In a container without --pid=host it never does, because NVML "
    "uses the host's PIDs: run vmtool on the host to see its memory on a GPU"
)


def read_devices(
    pids: tuple[int, ...], reading: NvmlReading | None = None
) -> tuple[tuple[ProcessDevice, ...], Unavailable | None]:
    """Return every device that one of *pids* may have memory on, and what is not known of that.

    In a container NVML lists no process, or the host's numbers, where *pids* are not found: that none
    is listed does not prove that nothing is held.

    Args:
        pids: The process and those of its descendants that count as its own.
        reading: What NVML reported; it is queried if this is omitted.
    """
    nvml = read_nvml() if reading is None else reading
    if nvml.absent is not None:
        return (), Unavailable("devices", "platform", nvml.absent)
    found = []
    for device in nvml.devices:
        if device.processes is not None and not _listed(device, pids):
            continue
        own = [used for pid in pids if (used := device.bytes_of(pid)) is not None]
        found.append(
            ProcessDevice(
                device=device.index,
                name=device.name,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                own_bytes=sum(own) if len(own) == len(pids) else None,
                others=device.others(*pids),
            )
        )
    if len(found) < len(nvml.devices) and not any(_listed(each, pids) for each in nvml.devices):
        return tuple(found), Unavailable("devices", "not listed", _NOT_LISTED)
    return tuple(found), None


def _listed(device: ManagedDevice, pids: tuple[int, ...]) -> bool:
    return any(process.pid in pids for process in device.processes or ())
