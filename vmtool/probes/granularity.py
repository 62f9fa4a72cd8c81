"""The granularity of every kind of allocation that a device offers, asked without a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.memory import describe_device, open_backing
from vmtool.memory.cuda import driver
from vmtool.memory.cuda.driver import CudaError
from vmtool.memory.governor import Tier
from vmtool.probes.guards.calls import Proof, prove_granularity
from vmtool.probes.limits import Ceiling, largest_reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vmtool.memory.backing import Granularity, VirtualBacking
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


#: Enough for the exact answer where addresses have 48 bits and the granule is 4 KiB.
_TRIES: Final = 64
#: Drivers may take hundreds of milliseconds to give a large range back: within 1 % is enough.
_DEVICE_TRIES: Final = 24


@dataclass(frozen=True, slots=True)
class BackingSurvey:
    """One backing.

    Attributes:
        name: What the user calls it: ``host``, ``cuda:0``.
        absent: Why it can't be used; all below but ``hint`` and ``device`` is then unknown.
        hint: What to do about that.
        method: How it commits.
        granularity: Its units.
        ceiling: The largest single reservation.
        proofs: What was tried to prove the granularity, if asked for.
        device: What the driver says of the device, also where it can't be used; ``None`` for the host.
        free_bytes: The device's free memory, beside this process's own context.
        allocations: The granularity of each kind of allocation on the device.
    """

    name: str
    absent: str | None = None
    hint: str | None = None
    method: str | None = None
    granularity: Granularity | None = None
    ceiling: Ceiling | None = None
    proofs: tuple[Proof, ...] = ()
    device: DeviceInfo | None = None
    free_bytes: int | None = None
    allocations: tuple[AllocationGranularity, ...] = ()


def survey_all(
    *, prove: bool = False, announce: Callable[[str], None] = lambda _name: None
) -> tuple[BackingSurvey, ...]:
    """Survey the host and every CUDA device; without devices, one entry says why.

    A device that fails is reported as absent and does not hide the others.

    Args:
        prove: Also try the granularity.
        announce: Called with the name of each device before it is opened, which takes a while.
    """
    found = [survey("host", prove=prove)]
    try:
        from vmtool.memory.cuda.devices import devices

        names = [f"cuda:{info.ordinal}" for info in devices()]
    except VmtoolError as error:
        return (*found, BackingSurvey("cuda", absent=str(error), hint=error.hint))
    for name in names:
        announce(name)
        try:
            found.append(survey(name, prove=prove))
        except VmtoolError as error:
            found.append(_absent(name, error))
    return tuple(found)


def survey(name: str, *, prove: bool = False) -> BackingSurvey:
    """Survey one backing; one that this machine lacks is reported as absent.

    Args:
        name: ``host``, ``cuda`` or ``cuda:N``.
        prove: Also try the granularity.

    Raises:
        UsageError: If *name* is unknown.
        CallError: If the platform fails.
    """
    try:
        backing = open_backing(name)
    except UnavailableError as error:
        return _absent(name, error)
    return BackingSurvey(
        name=backing.name,
        method=backing.method,
        granularity=backing.units,
        ceiling=largest_reservation(
            backing, tries=_TRIES if backing.tier is Tier.HOST else _DEVICE_TRIES
        ),
        proofs=prove_granularity(backing) if prove else (),
        **_device(backing),
    )


def _absent(name: str, error: VmtoolError) -> BackingSurvey:
    """Return the survey of what cannot be used, with what its driver says: that takes no context."""
    try:
        info = describe_device(name)
    except VmtoolError:  # the driver itself is missing or fails: *error* says so
        info = None
    return BackingSurvey(name, absent=str(error), hint=error.hint, device=info)


def _device(backing: VirtualBacking) -> dict[str, Any]:
    """Return the fields that only a device has."""
    if backing.tier is not Tier.DEVICE:
        return {}
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import device

    info = device(int(backing.name.partition(":")[2]))
    return {
        "device": info,
        "free_bytes": read_device_memory(info).free_bytes,
        "allocations": allocations(info),
    }
