"""Reading the facts of a device, from the driver and from NVML."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.errors import VmtoolError
from vmtool.machine.device_facts import DeviceFacts
from vmtool.machine.device_measurements import binding_ns
from vmtool.machine.nvml import COMPUTE_MODES, read_nvml, users_beside_us

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.cuda.devices import DeviceInfo


def with_device(facts: MachineFacts, backing: str, *, users: bool = False) -> MachineFacts:
    """Return *facts* with those of the device that *backing* names.

    They are unchanged for the host, and where the driver answers no more: the result says why.

    Args:
        facts: The machine's.
        backing: The name of a backing.
        users: Whether to ask NVML who else uses the device, on which this process has a context.
    """
    from vmtool.memory.backing_by_name import describe_device

    with suppress(VmtoolError):
        info = describe_device(backing)
        if info is not None:
            found = replace(
                read_device_facts(info), used_by=users_beside_us(info) if users else None
            )
            return replace(facts, device=found)
    return facts


def read_device_facts(info: DeviceInfo) -> DeviceFacts:
    """Return the facts of a device; no context is made for them.

    Raises:
        UnavailableError: If there is no usable driver.
    """
    nvml = read_nvml(info.uuid)
    managed = nvml.device(info.uuid)
    attributes = dict(info.attributes)
    mode = attributes.pop("compute_mode", None)
    ecc, mps, coherent = (_flag(attributes.pop(name, None)) for name in ("ecc", "mps", "coherent"))
    return DeviceFacts(
        backing=f"cuda:{info.ordinal}",
        name=info.name,
        uuid=info.uuid,
        pci=info.pci,
        total_bytes=info.total_bytes,
        compute_capability=info.compute_capability,
        driver_version=info.driver_version,
        module_version=info.module_version or nvml.driver_version,
        driver_model=info.driver_model,
        integrated=info.integrated,
        coherent=coherent,
        ecc=ecc if managed is None or managed.ecc is None else managed.ecc,
        mig=None if managed is None else managed.mig,
        mps=mps,
        compute_mode=COMPUTE_MODES.get(-1 if mode is None else mode),
        persistence=None if managed is None else managed.persistence,
        binding_ns=binding_ns(),
        attributes=attributes,
    )


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
