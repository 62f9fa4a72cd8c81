"""The units of each backing: its granules, its largest reservation, and a device's allocations."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import CallError, UnavailableError, VmtoolError
from vmtool.machine.device_facts import is_fresh_zero, read_device_facts
from vmtool.machine.nvml import read_nvml
from vmtool.memory.backing import Granularity
from vmtool.memory.backing_by_name import describe_device, open_backing
from vmtool.memory.cuda import driver
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.memory.governor import Tier
from vmtool.probes.granule_checks.prove import prove_granularity
from vmtool.probes.limits import largest_reservation
from vmtool.results.granularity import (
    AllocationGranularity,
    BackingGranularity,
    GranularityResult,
    LargestReservation,
    TokensPerGranule,
)
from vmtool.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.devices import DeviceInfo
    from vmtool.results.granularity import PeerTrial


#: Enough for the exact answer where addresses have 48 bits and the granule is 4 KiB.
_TRIES: Final = 64
#: Drivers may take hundreds of milliseconds to give a large range back: within 1 % is enough.
_DEVICE_TRIES: Final = 24
#: Granules in common use, worth knowing even where this machine has others.
_COMMON_GRANULES: Final = (4 * KIB, 64 * KIB, 2 * MIB)
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


def make_result(
    facts: MachineFacts,
    backings: tuple[BackingGranularity, ...],
    tensors: Iterable[tuple[str, int]] = (),
    peers: tuple[PeerTrial, ...] = (),
) -> GranularityResult:
    """Return the command's result.

    Args:
        facts: The machine.
        backings: What was found of each backing.
        tensors: Name and bytes per token of the KV tensors of the model.
        peers: What was found of each pair of devices.
    """
    here = {each.granularity.commit_bytes for each in backings if each.granularity is not None}
    on_devices = [
        each.granularity.commit_bytes
        for each in backings
        if each.device is not None and each.granularity is not None
    ]
    return GranularityResult(
        machine=facts,
        available_bytes=facts.available_bytes,
        safe_bytes=facts.safe_bytes,
        limiting_bound=facts.limiting_bound,
        commit_headroom_bytes=facts.commit.headroom_bytes,
        backings=backings,
        tokens_per_granule=tuple(
            TokensPerGranule(name, size, granule, *divmod(granule, size))
            for name, size in tensors
            for granule in sorted(here.union(_COMMON_GRANULES))
        ),
        peers=peers,
        shared_granularity_bytes=max(on_devices) if len(on_devices) > 1 else None,
    )


def probe_all(
    *,
    host: bool = True,
    prove: bool = False,
    announce: Callable[[str], None] = lambda _name: None,
    failures: list[CallError] | None = None,
) -> tuple[BackingGranularity, ...]:
    """Probe the host and every CUDA device; without devices, one entry says why.

    A device that fails is reported as absent and does not hide the others. On one that NVML shows
    in use by others no context is made: it takes some hundred MiB.

    Args:
        host: Whether to probe the host as well.
        prove: Also prove the granularity by attempts.
        announce: Called with the name of each device before it is opened, which takes a while.
        failures: The calls that failed are added to it.
    """
    found = [probe("host", prove=prove)] if host else []
    try:
        from vmtool.memory.cuda.devices import devices

        infos = devices()
    except VmtoolError as error:
        return (*found, BackingGranularity("cuda", absent=str(error), hint=error.hint))
    for info in infos:
        name = f"cuda:{info.ordinal}"
        try:
            busy = _probe_busy(info)
            if busy is None:
                announce(name)
            found.append(busy or probe(name, prove=prove, failures=failures))
        except VmtoolError as error:
            found.append(_absent(name, error))
            if isinstance(error, CallError) and failures is not None:
                failures.append(error)
    return tuple(found)


def probe(
    name: str, *, prove: bool = False, failures: list[CallError] | None = None
) -> BackingGranularity:
    """Probe one backing; one that this machine lacks is reported as absent.

    Args:
        name: ``host``, ``cuda`` or ``cuda:N``.
        prove: Also prove the granularity by attempts.
        failures: A call that fails once the backing is open is added to it, and what was found until
            then is returned; without, it is raised.

    Raises:
        UsageError: If *name* is unknown.
        CallError: If the platform fails.
    """
    try:
        backing = open_backing(name)
    except UnavailableError as error:
        return _absent(name, error)
    found = BackingGranularity(name=backing.name, method=backing.method, granularity=backing.units)
    try:
        for fields in _fields(backing, prove=prove):
            found = replace(found, **fields)
    except CallError as error:
        if failures is None:
            raise
        failures.append(error)
        return replace(found, error=str(error))
    return found


def _probe_busy(info: DeviceInfo) -> BackingGranularity | None:
    """Return what is known without a context of a device that others use; ``None`` if nobody does."""
    from vmtool.machine.device_memory import read_device_memory

    managed = read_nvml(info.uuid).device(info.uuid)
    used_by = None if managed is None else managed.others(os.getpid())
    if not used_by or not info.attributes["vmm"]:
        return None
    kinds = allocations(info)
    plain = kinds[0]
    units = None
    if plain.minimum_bytes is not None and plain.recommended_bytes is not None:
        units = Granularity(None, plain.minimum_bytes, plain.recommended_bytes)
    return BackingGranularity(
        name=f"cuda:{info.ordinal}",
        method="cold",
        granularity=units,
        device=read_device_facts(info),
        free_bytes=read_device_memory(info).free_bytes,
        allocations=kinds,
        used_by=used_by,
    )


def _largest(backing: VirtualBacking) -> LargestReservation:
    tries = _TRIES if backing.tier is Tier.HOST else _DEVICE_TRIES
    found = largest_reservation(backing, tries=tries)
    return LargestReservation(found.works_bytes, found.refused_bytes, found.tries, found.error)


def _absent(name: str, error: VmtoolError) -> BackingGranularity:
    """Return a backing that cannot be used, with its device: describing that takes no context."""
    facts = None
    with suppress(VmtoolError):  # the driver itself is missing or fails: *error* says so
        info = describe_device(name)
        facts = None if info is None else read_device_facts(info)
    return BackingGranularity(name, absent=str(error), hint=error.hint, device=facts)


def _fields(backing: VirtualBacking, *, prove: bool) -> Iterator[dict[str, Any]]:
    """Yield what is found of *backing*, a part at a time."""
    info = describe_device(backing.name)
    if info is not None:
        yield {"device": read_device_facts(info)}
    yield {"largest_reservation": _largest(backing)}
    if prove:
        yield {"checks": prove_granularity(backing)}
    if info is None:
        return
    if prove:
        from vmtool.memory.cuda.backing import CudaBacking
        from vmtool.probes.sharing import share_between_processes, try_handles

        assert isinstance(backing, CudaBacking)
        handles = try_handles(backing)
        yield {"handles": handles}
        if any(each.exported for each in handles if each.handle == "posix-fd"):
            yield {"sharing": share_between_processes(info.ordinal)}
        yield {"device": replace(read_device_facts(info), fresh_zero=is_fresh_zero(backing.name))}
    from vmtool.machine.device_memory import read_device_memory

    yield {"free_bytes": read_device_memory(info).free_bytes}
    yield {"allocations": allocations(info)}
