"""The facts of a device that results contain, from the driver and NVML, and what its calls cost."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding reads the types
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.machine.nvml import COMPUTE_MODES, DeviceProcess, read_nvml, users_beside_us

if TYPE_CHECKING:
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.devices import DeviceInfo


_BINDING_CALLS: Final = 201
_ACCESS_ROUNDS: Final = 9


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


def read_device_of(backing: str, *, users: bool = False) -> DeviceFacts | None:
    """Return the facts of the device that *backing* names.

    ``None`` for the host, and where the driver answers no more: the result says why.

    Args:
        backing: The name of a backing.
        users: Whether to ask NVML who else uses the device, on which this process has a context.
    """
    from vmtool.memory.backing_by_name import describe_device

    with suppress(VmtoolError):
        info = describe_device(backing)
        if info is not None:
            found = read_device_facts(info)
            return replace(found, used_by=users_beside_us(info)) if users else found
    return None


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
        binding_ns=_binding_ns(),
        attributes=attributes,
    )


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _binding_ns() -> int:
    """Return what Python and the binding add to each driver call: the median of the cheapest one.

    Raises:
        UnavailableError: If there is no usable driver.
    """
    from vmtool.memory.cuda import driver

    call = driver.load().call
    samples = []
    for _ in range(_BINDING_CALLS):
        began = perf_counter_ns()
        call("cuDriverGetVersion")
        samples.append(perf_counter_ns() - began)
    return round(median(samples))


def is_fresh_zero(backing: str) -> bool | None:
    """Return whether the memory of a new handle reads as zero; ``None`` without room for one.

    It is committed after other memory of this process was released, if any was, which is what a
    driver would hand out again.

    Raises:
        CudaError: If the driver fails otherwise.
    """
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.cuda.copies import DeviceCopies
    from vmtool.memory.errors import OutOfMemoryError, Unwinding

    opened = open_device(backing, method="cold")
    nbytes = opened.granularity
    found = bytearray(nbytes)
    try:
        with Unwinding() as stack:
            stack.undo(opened.close)
            reservation = opened.reserve(nbytes)
            stack.undo(opened.unreserve, reservation)
            opened.commit(reservation, 0, nbytes)
            DeviceCopies(opened.context).read(reservation, 0, found)
    except OutOfMemoryError:
        return None
    return found == bytes(nbytes)


def access_costs(backing: CudaBacking) -> tuple[int, ...]:
    """Return what access costs: a median of cuMemSetAccess on one handle, in nanoseconds.

    The first is for the device alone, the next with one peer of the backing, with two, and so on. Each
    is on a new mapping, as the same access once more may cost less.

    Raises:
        CudaError: If the driver fails.
    """
    from vmtool.memory.errors import Unwinding

    call, nbytes = backing.context.call, backing.granularity
    ordinals = (backing.context.info.ordinal, *backing.peers)
    access = [backing.context.driver.access(ordinal) for ordinal in ordinals]
    samples: list[list[int]] = [[] for _ in access]
    with Unwinding() as stack:
        address = call("cuMemAddressReserve", nbytes, 0, 0, 0)
        stack.undo(call, "cuMemAddressFree", address, nbytes)
        handle = call("cuMemCreate", nbytes, backing.properties, 0)
        stack.undo(call, "cuMemRelease", handle)
        for _ in range(_ACCESS_ROUNDS):
            for count, kept in enumerate(samples, 1):
                call("cuMemMap", address, nbytes, 0, handle, 0)
                with Unwinding() as mapped:
                    mapped.undo(call, "cuMemUnmap", address, nbytes)
                    began = perf_counter_ns()
                    call("cuMemSetAccess", address, nbytes, access[:count], count)
                    kept.append(perf_counter_ns() - began)
    return tuple(round(median(each)) for each in samples)
