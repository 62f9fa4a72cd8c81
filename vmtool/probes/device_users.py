"""Who else uses a device: this process may exhaust it only where nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import RefusedError
from vmtool.machine.nvml import other_users, read_nvml
from vmtool.memory.backing_by_name import describe_device

if TYPE_CHECKING:
    from vmtool.memory.cuda.devices import DeviceInfo


def refuse_shared_device(backing: str, kind: str) -> None:
    """Raise unless this process may exhaust a device: nobody else is on it.

    Raises:
        RefusedError: If others use it, or NVML cannot say that nobody does.
    """
    info = describe_device(backing)
    if info is None or kind not in {"commit", "mappings"}:
        return
    reading = read_nvml(info.uuid)
    managed = reading.device(info.uuid)
    others = other_users(managed)
    if others is not None and not others and _lists_us(info):
        return
    if others:
        names = ", ".join(f"{each.name or 'a process'} ({each.pid})" for each in others)
        cause = f"{backing} is in use by {names}, which may be refused memory meanwhile"
    else:
        why = reading.absent or "NVML lists no processes, not even this one"
        cause = f"who else uses {backing} is unknown: {why}"
    does = {
        "commit": f"takes all memory of {backing}",
        "mappings": f"maps one handle of {backing} until the driver refuses",
    }
    raise RefusedError(
        f"limits {kind} {does[kind]}", cause=cause, hint="use --force to do it anyway"
    )


def _lists_us(info: DeviceInfo) -> bool:
    """Return whether NVML lists a process once this one has a context on the device.

    In a container with processes of its own (no ``--pid=host``) the list stays empty, whoever is there.
    """
    from vmtool.memory.cuda.context import DeviceContext

    context = DeviceContext(info.ordinal)
    try:
        managed = read_nvml(info.uuid).device(info.uuid)
    finally:
        context.close()
    return managed is not None and bool(managed.processes)
