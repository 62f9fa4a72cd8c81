"""The facts about a device that a result contains."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """One process that has a context on a device.

    Attributes:
        pid: Its PID in the machine's own namespace: in a container that is not what ``getpid``
            answers there.
        name: Its path as NVML has it; ``None`` if not available.
        used_bytes: Its memory on the device, its context included; ``None`` where the driver does not
            count by process (WDDM, some MIG and vGPU configurations).
    """

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device; what is ``None`` is not available.

    Attributes:
        backing: The name of the device, such as ``cuda:0``.
        name: The driver's own name for it.
        uuid: The UUID of the device, or of the MIG slice.
        pci: Its address, such as ``0000:3b:00.0``.
        total_bytes: Its memory.
        compute_capability: The compute capability, such as ``9.0``.
        driver_version: The newest CUDA version that the driver supports: 1000 * major + 10 * minor.
        module_version: The version of the kernel module, which CUDA's does not imply.
        driver_model: ``wddm``, ``tcc`` or ``wsl``.
        integrated: Whether it shares the host's memory.
        coherent: Whether its memory is a NUMA node of the host, as on GH200 and GB200.
        ecc: Whether error correction is on.
        mig: Whether it is divided into MIG slices.
        mps: Whether processes go through MPS.
        compute_mode: ``default``, ``exclusive-process`` or ``prohibited``.
        persistence: Whether the driver stays loaded without a client.
        binding_ns: What Python and the binding add to each driver call: the median of the cheapest.
        fresh_zero: Whether a new handle's memory was zero when it was tried; nothing promises it.
        used_by: Who else used it, by NVML, after a run of ``stress``, at the start of
            ``reserve`` or ``grow``; ``None`` where that is not asked.
        attributes: Further attributes of the driver, by name.
    """

    backing: str
    name: str
    uuid: str | None = None
    pci: str | None = None
    total_bytes: int | None = None
    compute_capability: str | None = None
    driver_version: int | None = None
    module_version: str | None = None
    driver_model: str | None = None
    integrated: bool | None = None
    coherent: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    mps: bool | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    binding_ns: int | None = None
    fresh_zero: bool | None = None
    used_by: tuple[DeviceProcess, ...] | None = None
    attributes: Mapping[str, int | None] = field(default_factory=dict)
