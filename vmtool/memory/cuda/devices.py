"""The CUDA devices of this machine and what they offer; only ``free_bytes`` makes a context."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass
from typing import Final

from vmtool.errors import UnavailableError
from vmtool.memory.cuda import driver
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, in_wsl, no_vmm
from vmtool.units import MIB

#: What the use of a device may move by without us: its driver keeps tables of its own, and counts
#: other users of the device.
DEVICE_TOLERANCE_BYTES: Final = 64 * MIB

# CU_DEVICE_ATTRIBUTE_..., by the name that results use.
ATTRIBUTES: Final[dict[str, str]] = {
    "vmm": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "posix_fd": "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "fabric": "HANDLE_TYPE_FABRIC_SUPPORTED",
    "rdma": "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "compression": "GENERIC_COMPRESSION_SUPPORTED",
    "multicast": "MULTICAST_SUPPORTED",
    "dma_buf": "DMA_BUF_SUPPORTED",
    "host_numa": "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "host": "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "host_numa_id": "HOST_NUMA_ID",
    "unified_addressing": "UNIFIED_ADDRESSING",
    "memory_pools": "MEMORY_POOLS_SUPPORTED",
    "ecc": "ECC_ENABLED",
    "compute_mode": "COMPUTE_MODE",  # 0 default, 2 prohibited, 3 one process at a time
    "mps": "MPS_ENABLED",
    # The CPU's page tables hold for the device too, as on GH200 and GB200: its memory is then a NUMA
    # node of the host, whose figures count it.
    "coherent": "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
}
#: The kernel module's version, which CUDA's version does not imply.
_MODULE_VERSION: Final = "/sys/module/nvidia/version"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One CUDA device, as the driver describes it.

    Attributes:
        ordinal: Its number in this process, from 0.
        name: The driver's own name for it.
        uuid: 32 hexadecimal digits in the usual groups, of the MIG slice if it is one; ``None`` if
            the driver does not offer the call that knows slices.
        total_bytes: Its memory, used or not.
        compute_capability: The compute capability, such as ``9.0``.
        integrated: Whether it shares the host's memory; ``None`` if unknown.
        driver_version: The newest CUDA version that the driver supports: 1000 * major + 10 * minor.
        driver_model: ``wddm`` or ``tcc`` on Windows, ``wsl`` under WSL, else ``None``.
        attributes: The values of ``ATTRIBUTES``; ``None`` if driver or bindings do not know one.
        pci: Its address, such as ``0000:3b:00.0``; ``None`` if not available.
        module_version: The version of the kernel module, such as ``580.65.06``; ``None`` if not
            available.
    """

    ordinal: int
    name: str
    uuid: str | None
    total_bytes: int
    compute_capability: str
    integrated: bool | None
    driver_version: int
    driver_model: str | None
    attributes: Mapping[str, int | None]
    pci: str | None = None
    module_version: str | None = None

    @property
    def shares_host_memory(self) -> bool:
        """Whether what is committed on it is, or is counted as, memory of the host."""
        return bool(self.integrated or self.attributes.get("coherent"))


def devices() -> tuple[DeviceInfo, ...]:
    """Return every device that this process may use, in the driver's order.

    Raises:
        UnavailableError: If there is no usable driver or no device.
        CudaError: If the driver call fails for a device.
    """
    count: int = driver.load().call("cuDeviceGetCount")
    return tuple(device(ordinal) for ordinal in range(count))


def device(ordinal: int) -> DeviceInfo:
    """Return device *ordinal*.

    Raises:
        UnavailableError: If there is no usable driver or no such device.
        CudaError: If the driver call fails for the device.
    """
    loaded = driver.load()
    count: int = loaded.call("cuDeviceGetCount")
    if not 0 <= ordinal < count:
        known = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        raise UnavailableError(
            f"there is no CUDA device {ordinal} here", hint=f"use {known}" if count else None
        )
    handle: int = loaded.call("cuDeviceGet", ordinal)
    name: bytes = loaded.call("cuDeviceGetName", 256, handle)
    integrated = loaded.attribute("INTEGRATED", handle)
    return DeviceInfo(
        ordinal=ordinal,
        name=name.split(b"\0", 1)[0].decode(errors="replace"),
        uuid=read_uuid(loaded, handle),
        pci=_pci(loaded, handle),
        total_bytes=loaded.call("cuDeviceTotalMem", handle),
        compute_capability=".".join(
            str(loaded.attribute(f"COMPUTE_CAPABILITY_{part}", handle))
            for part in ("MAJOR", "MINOR")
        ),
        integrated=None if integrated is None else bool(integrated),
        driver_version=loaded.version,
        module_version=_module_version(),
        driver_model=driver_model(loaded.attribute("TCC_DRIVER", handle)),
        attributes={key: loaded.attribute(name, handle) for key, name in ATTRIBUTES.items()},
    )


def read_uuid(loaded: driver.Driver, handle: int) -> str | None:
    """Return the UUID of a device or of a MIG slice; ``None`` where no call knows slices.

    Raises:
        DeviceLostError: If the device is lost meanwhile.
    """
    # The first version of the call returns the parent's UUID for a MIG slice, so that all slices look
    # alike: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
    # Bindings 12 have both; in bindings 13 the plain name is the second version.
    name = next(
        (each for each in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid") if loaded.has_binding(each)), ""
    )
    if name == "cuDeviceGetUuid" and loaded.bindings_version.startswith("12."):
        return None
    try:
        text = bytes(loaded.call(name, handle).bytes).hex()
    except (UnavailableError, CudaError):
        if loaded.lost is not None:
            raise
        return None  # a nicety: the device is usable without
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _pci(loaded: driver.Driver, handle: int) -> str | None:
    parts = [loaded.attribute(f"PCI_{part}_ID", handle) for part in ("DOMAIN", "BUS", "DEVICE")]
    domain, bus, slot = parts
    if domain is None or bus is None or slot is None:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _module_version() -> str | None:
    try:
        with open(_MODULE_VERSION, encoding="ascii", errors="replace") as file:
            return file.read().strip() or None
    except OSError:
        return None


def free_bytes(ordinal: int) -> int:
    """Return the free memory of device *ordinal*, with this process's own context in place.

    Raises:
        UnavailableError: If there is no usable driver or no such device.
        CudaError: If the device has no room for a context, or the driver call fails.
    """
    device(ordinal)
    loaded = driver.load()
    handle: int = loaded.call("cuDeviceGet", ordinal)
    context = loaded.call("cuDevicePrimaryCtxRetain", handle)
    try:
        loaded.call("cuCtxPushCurrent", context)
        try:
            free: int = loaded.call("cuMemGetInfo")[0]
        finally:
            loaded.call("cuCtxPopCurrent")
    finally:
        loaded.call("cuDevicePrimaryCtxRelease", handle)
    return free


def offers_peers() -> bool:
    """Return whether the driver can say which devices reach each other's memory."""
    return driver.load().has("cuDeviceCanAccessPeer")


def peers_of(ordinal: int, among: Iterable[int]) -> tuple[int, ...]:
    """Return which of the devices *among* can reach the memory of device *ordinal*.

    A driver that cannot say it has none.

    Raises:
        UnavailableError: If there is no usable driver.
        CudaError: If the driver call fails.
    """
    if not offers_peers():
        return ()
    call = driver.load().call
    return tuple(
        peer for peer in among if peer != ordinal and call("cuDeviceCanAccessPeer", peer, ordinal)
    )


def require_vmm(info: DeviceInfo) -> None:
    """Check that memory can be committed on this device.

    Raises:
        UnavailableError: If it has no virtual memory management.
    """
    if not info.attributes["vmm"]:
        raise no_vmm(f"cuda:{info.ordinal} ({info.name})", info.driver_model)


def driver_model(tcc: int | None) -> str | None:
    """Return the model of the driver, from whether it is TCC; ``None`` if that is not available.

    WDDM lets Windows page device memory out, so figures taken under it mean something else.
    """
    if sys.platform == "win32":
        return None if tcc is None else "tcc" if tcc else "wddm"
    return "wsl" if in_wsl() else None
