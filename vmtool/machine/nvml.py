"""NVIDIA's management library: who uses which device, queried without making a context.

It needs the package ``nvidia-ml-py`` (the extra ``nvml``), which is imported on the first call.
Function names are NVML's own: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from vmtool.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.memory.cuda.devices import DeviceInfo

COMPUTE_MODES: Final = {
    0: "default",
    1: "exclusive-thread",
    2: "prohibited",
    3: "exclusive-process",
}
_INSTALL: Final = "pip install 'vmtool[nvml]'"


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
class ManagedDevice:
    """One device as NVML describes it; what is ``None`` is not available.

    Attributes:
        index: NVML's number, in PCI order; CUDA's may differ: match them by ``uuid``.
        uuid: 32 hexadecimal digits in the usual groups, without the prefix ``GPU-``.
        name: The product's name.
        pci: Its PCI address, such as ``00000000:3b:00.0``.
        total_bytes: Its memory.
        used_bytes: What all processes and the driver use of it.
        free_bytes: What is free.
        processes: Who has a context on it; ``None`` if not available.
        ecc: Whether error correction is on.
        mig: Whether it is divided into MIG slices.
        persistence: Whether the driver stays loaded without a client.
        compute_mode: ``default``, ``exclusive-process`` or ``prohibited``.
    """

    index: int
    uuid: str
    name: str
    pci: str | None
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    processes: tuple[DeviceProcess, ...] | None
    ecc: bool | None
    mig: bool | None
    persistence: bool | None
    compute_mode: str | None

    def bytes_of(self, pid: int) -> int | None:
        """Return what process *pid* uses on this device: 0 without a context on it.

        ``None`` if not available.
        """
        if self.processes is None:
            return None
        found = [process.used_bytes for process in self.processes if process.pid == pid]
        known = [used for used in found if used is not None]
        return sum(known) if len(known) == len(found) else None

    def others(self, *pids: int) -> tuple[DeviceProcess, ...]:
        """Return the processes on this device that are none of *pids*."""
        return tuple(each for each in self.processes or () if each.pid not in pids)


class Nvml:
    """The library, initialised until :meth:`close`. Each call queries the driver anew.

    Args:
        library: What has NVML's functions: the module ``pynvml``, or a stand-in.

    Attributes:
        driver_version: The version of the kernel module, such as ``580.65.06``; ``None`` if not
            available. it cannot be derived from CUDA's version.

    Raises:
        UnavailableError: If NVML cannot be initialised.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        if not (hasattr(library, "nvmlInit") and hasattr(library, "NVMLError")):
            raise UnavailableError(
                "NVML is not available: the module pynvml is not that of nvidia-ml-py",
                hint=_INSTALL,
            )
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise UnavailableError(
                f"NVML is not available: {error}", hint="install the NVIDIA display driver"
            ) from error
        self.driver_version = self._text("nvmlSystemGetDriverVersion")

    def devices(self) -> tuple[ManagedDevice, ...]:
        """Return every device that NVML lists and answers for."""
        count = self._ask("nvmlDeviceGetCount") or 0
        found = []
        for index in range(count):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                found.append(self._describe(index, handle))
        return tuple(found)

    def device(self, uuid: str | None) -> ManagedDevice | None:
        """Return the device or MIG slice with CUDA's *uuid*; ``None`` if there is none, or *uuid* is."""
        if uuid is None:
            return None
        for prefix in ("GPU-", "MIG-"):
            handle = self._ask("nvmlDeviceGetHandleByUUID", prefix + uuid)
            if handle is not None:
                index = self._ask("nvmlDeviceGetIndex", handle)
                return self._describe(-1 if index is None else index, handle)
        return None

    def close(self) -> None:
        """Shut the library down."""
        self._ask("nvmlShutdown")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _describe(self, index: int, handle: Any) -> ManagedDevice:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        # A MIG slice does not answer for what its device is: https://docs.nvidia.com/deploy/nvml-api/
        parent = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        whole = handle if parent is None else parent
        ecc = self._ask("nvmlDeviceGetEccMode", whole)
        mig = self._ask("nvmlDeviceGetMigMode", whole)
        persistence = self._ask("nvmlDeviceGetPersistenceMode", whole)
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        mode = self._ask("nvmlDeviceGetComputeMode", handle)
        return ManagedDevice(
            index=index,
            uuid=_plain_uuid(self._text("nvmlDeviceGetUUID", handle) or ""),
            name=self._text("nvmlDeviceGetName", handle) or "",
            pci=None if pci is None else _as_text(pci.busId),
            total_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            free_bytes=None if memory is None else int(memory.free),
            processes=self._processes(handle),
            ecc=None if ecc is None else bool(ecc[0]),  # current, pending
            mig=None if mig is None else bool(mig[0]),
            persistence=None if persistence is None else bool(persistence),
            compute_mode=None if mode is None else COMPUTE_MODES.get(mode),
        )

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...] | None:
        """Return those with compute and with graphics contexts; one with both is listed once."""
        lists = [
            self._ask("nvmlDeviceGetComputeRunningProcesses", handle),
            self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle),
        ]
        if lists[0] is None:
            return None
        found: dict[int, DeviceProcess] = {}
        for process in [each for some in lists if some is not None for each in some]:
            name = self._text("nvmlSystemGetProcessName", process.pid)
            found.setdefault(process.pid, DeviceProcess(process.pid, name, process.usedGpuMemory))
        return tuple(found.values())

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return NVML's answer; ``None`` if this package, device, driver or user gets none.

        Other packages and old releases also provide ``pynvml``. They lack functions, or want bytes.
        """
        call: Callable[..., Any] | None = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except (self._library.NVMLError, TypeError):
            return None

    def _text(self, function: str, *arguments: Any) -> str | None:
        answer = self._ask(function, *arguments)
        return None if answer is None else _as_text(answer)


def open_nvml() -> Nvml:
    """Import ``nvidia-ml-py`` and initialise it.

    Raises:
        UnavailableError: If the package or the library is missing, or the driver call fails; the
            message is the reason, the hint what to do.
    """
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise UnavailableError(
            "NVML is not available: nvidia-ml-py is not installed", hint=_INSTALL
        ) from error
    except (OSError, SyntaxError) as error:
        raise UnavailableError(
            f"NVML is not available: the module pynvml cannot be imported: {error}", hint=_INSTALL
        ) from error
    return Nvml(library)


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """What NVML answers once.

    Attributes:
        driver_version: The version of the kernel module.
        devices: Every device.
        absent: Why nothing is known; ``None`` if something is.
    """

    driver_version: str | None = None
    devices: tuple[ManagedDevice, ...] = ()
    absent: str | None = None

    def device(self, uuid: str | None) -> ManagedDevice | None:
        """Return the device with CUDA's *uuid*."""
        return next((each for each in self.devices if uuid and each.uuid == uuid), None)


def read_nvml(uuid: str | None = None) -> NvmlReading:
    """Ask NVML once for everything; never raises where it is missing.

    Args:
        uuid: Of a device that may be a MIG slice: NVML's list has only whole devices.
    """
    try:
        with open_nvml() as nvml:
            found = NvmlReading(nvml.driver_version, nvml.devices())
            if uuid is not None and found.device(uuid) is None:
                piece = nvml.device(uuid)
                found = replace(found, devices=(*found.devices, *([piece] if piece else [])))
            return found
    except UnavailableError as error:
        return NvmlReading(absent=str(error))


def users_of(info: DeviceInfo) -> tuple[DeviceProcess, ...] | None:
    """Return the other processes on a device; ``None`` if not available. No context is made for it."""
    return other_users(read_nvml(info.uuid).device(info.uuid))


def users_beside_us(info: DeviceInfo) -> tuple[DeviceProcess, ...] | None:
    """Return the other processes on a device on which this one has a context.

    ``None`` if not available, or where this process is not listed: in a container NVML may list it
    under another number, as one of the others.
    """
    managed = read_nvml(info.uuid).device(info.uuid)
    listed = () if managed is None else managed.processes or ()
    return other_users(managed) if any(each.pid == os.getpid() for each in listed) else None


def other_users(managed: ManagedDevice | None) -> tuple[DeviceProcess, ...] | None:
    """Return the other processes on *managed*; ``None`` if not available."""
    if managed is None or managed.processes is None:
        return None
    return managed.others(os.getpid())


def _plain_uuid(text: str) -> str:
    for prefix in ("GPU-", "MIG-"):
        text = text.removeprefix(prefix)
    return text.lower()


def _as_text(value: str | bytes) -> str:
    """Older versions of the package answer ``bytes``."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
