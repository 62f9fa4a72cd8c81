"""What the doctor finds about CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.machine.doctor.findings import Finding
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.device_memory import DeviceMemory
    from vmtool.memory.cuda.devices import DeviceInfo


def examine_devices() -> tuple[Finding, ...]:
    """Return a rating of each device, or why there is none."""
    from vmtool.memory.cuda.devices import devices
    from vmtool.memory.cuda.errors_and_diagnosis import BrokenDriverError

    try:
        found = devices()
    except BrokenDriverError as error:
        words = f"{error}{(error.cause and ': ' + error.cause) or ''}"
        return (Finding.problem("cuda", words, error.hint or "nvidia-smi"),)
    except UnavailableError as error:
        hint = error.hint or "use --backing host"
        return (Finding.note("no-cuda", error.cause or str(error), hint),)
    except VmtoolError as error:
        return (Finding.problem("cuda", str(error), error.hint or "nvidia-smi"),)
    from vmtool.machine.device_memory import read_device_memory

    rated: list[Finding] = []
    for info in found:
        try:
            rated += _rate(info, read_device_memory(info))
        except VmtoolError as error:  # such as no room for a context: the others are still rated
            words = f"cuda:{info.ordinal}, {info.name}: {error}"
            rated.append(Finding.problem("cuda", words, error.hint or "nvidia-smi"))
    return tuple(rated)


def examine_device(ordinal: int) -> tuple[Finding, ...]:
    """Return a rating of one device.

    Raises:
        UnavailableError: If there is no such device.
        CudaError: If a call of the driver fails.
    """
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.memory.cuda.devices import device

    info = device(ordinal)
    return _rate(info, read_device_memory(info))


def _rate(info: DeviceInfo, memory: DeviceMemory) -> tuple[Finding, ...]:
    found = check_device(info, memory.free_bytes)
    if not memory.others:
        return found
    names = ", ".join(
        f"{each.name or 'a process'} ({each.pid})"
        + (f" with {format_size(each.used_bytes)}" if each.used_bytes is not None else "")
        for each in memory.others
    )
    return (
        *found,
        Finding.note(
            "device-shared",
            f"cuda:{info.ordinal} is in use by {names}",
            "stop it before you measure: what it allocates meanwhile changes the results",
        ),
    )


def check_device(info: DeviceInfo, free: int) -> tuple[Finding, ...]:
    """Return what *info* and the *free* bytes say about one device."""
    name = f"cuda:{info.ordinal}"
    words = f"{name}, {info.name}, {format_size(free)} of {format_size(info.total_bytes)} free"
    if not info.attributes.get("vmm"):
        return (
            Finding.problem(
                "no-vmm",
                f"{words}: no virtual memory management, so nothing can be committed on it",
                "use another device; under WDDM or a vGPU the driver may withhold it",
            ),
        )
    from vmtool.machine.nvml import COMPUTE_MODES

    mode = COMPUTE_MODES.get(info.attributes.get("compute_mode") or 0)
    if mode == "prohibited":  # where NVML answers, no context was made that would show it
        checks = [
            Finding.problem(
                "compute-mode",
                f"{words}, in compute mode prohibited: it accepts no process",
                "have an administrator run nvidia-smi -c DEFAULT",
            )
        ]
    elif free < info.total_bytes // 20:
        checks = [
            Finding.problem("device-memory", words, "nvidia-smi shows the processes that use it")
        ]
    else:
        checks = [Finding.ok("device", f"{words}; it has virtual memory management")]
    if info.driver_model == "wddm":
        checks.append(
            Finding.note(
                "wddm",
                f"{name} runs under WDDM: commits may be paged to host memory, and unmapping takes "
                "milliseconds",
                "nvidia-smi -dm TCC (if the card has it), or stay below the free memory",
            )
        )
    elif info.driver_model == "tcc":
        checks.append(Finding.ok("tcc", f"{name} runs under TCC: Windows does not page its memory"))
    elif info.driver_model == "wsl":
        checks.append(
            Finding.note(
                "wsl-device",
                f"{name} is used through the Windows driver: sharing memory by file descriptor "
                "does not work",
                "use the device from Linux itself if you need that",
            )
        )
    if info.integrated:
        checks.append(
            Finding.note(
                "integrated",
                f"{name} shares the RAM of the host: what it commits is taken from there",
                "keep the sum of both budgets below RAM",
            )
        )
    return tuple(checks)
