"""The granularity of every kind of allocation that a device offers, asked without a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.memory.cuda import driver
from vmtool.memory.cuda.errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.memory.cuda.devices import DeviceInfo


@dataclass(frozen=True, slots=True)
class AllocationGranularity:
    """One kind of physical memory.

    Attributes:
        location: ``device``, or ``host NUMA node N``.
        handle: What its handles can be exported as: ``none``, ``posix-fd`` or ``fabric``.
        flag: ``compressible``, ``rdma`` or ``None``.
        supported: What the device's attributes say; ``None`` if they do not.
        minimum_bytes: What sizes and addresses must be a multiple of; ``None`` if not told.
        recommended_bytes: What performs best; ``None`` if not told.
        refusal: What the driver answered instead of a granularity.
    """

    location: str
    handle: str
    flag: str | None
    supported: bool | None
    minimum_bytes: int | None
    recommended_bytes: int | None
    refusal: str | None = None


_HANDLES: Final = {
    "posix-fd": ("posix_fd", driver.HANDLE_POSIX_FD),
    "fabric": ("fabric", driver.HANDLE_FABRIC),
}


def allocations(info: DeviceInfo) -> tuple[AllocationGranularity, ...]:
    """Ask the driver for the granularity of each kind of allocation on one device.

    Raises:
        UnavailableError: If there is no usable driver.
        DeviceLostError: If the device is lost meanwhile.
    """
    return tuple(_ask(*kind) for kind in _kinds(info, driver.load()))


def _kinds(
    info: DeviceInfo, loaded: driver.Driver
) -> Iterator[tuple[str, str, str | None, bool | None, Any]]:
    def supported(attribute: str) -> bool | None:
        value = info.attributes[attribute]
        return None if value is None else bool(value)

    properties = loaded.allocation_properties
    ordinal = info.ordinal
    yield "device", "none", None, supported("vmm"), properties(ordinal)
    for handle, (attribute, handle_type) in _HANDLES.items():
        made = properties(ordinal, handle_types=handle_type)
        yield "device", handle, None, supported(attribute), made
    made = properties(ordinal, compressible=True)
    yield "device", "none", "compressible", supported("compression"), made
    yield "device", "none", "rdma", supported("rdma"), properties(ordinal, rdma=True)
    node = info.attributes["host_numa_id"]
    if node is not None and node >= 0:  # -1: the system has no NUMA
        made = properties(node, location_type=driver.LOCATION_HOST_NUMA)
        yield f"host NUMA node {node}", "none", None, supported("host_numa"), made


def _ask(
    location: str, handle: str, flag: str | None, supported: bool | None, properties: Any
) -> AllocationGranularity:
    """Ask for both granularities of a kind, unless the device says that it does not have it."""
    if supported is False:
        return AllocationGranularity(location, handle, flag, supported, None, None)
    loaded = driver.load()
    try:
        minimum = loaded.granularity(properties, driver.GRANULARITY_MINIMUM)
        recommended = loaded.granularity(properties, driver.GRANULARITY_RECOMMENDED)
    except CudaError as error:
        if loaded.lost is not None:
            raise
        return AllocationGranularity(location, handle, flag, supported, None, None, error.symbol)
    return AllocationGranularity(location, handle, flag, supported, minimum, recommended)
