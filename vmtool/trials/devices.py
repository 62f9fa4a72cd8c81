"""What the CUDA devices of this machine would do to such memory, as far as their driver tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.machine.checkup.check import Check, note, ok, problem
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.cuda.devices import DeviceInfo


def examine_devices() -> tuple[Check, ...]:
    """Return a rating of each device, or the reason why there is none."""
    from vmtool.memory.cuda.devices import devices, free_bytes

    try:
        found = devices()
    except UnavailableError as error:
        return (note("no-cuda", error.cause or str(error), error.hint or "use --backing host"),)
    except VmtoolError as error:
        return (problem("cuda", str(error), error.hint or "nvidia-smi"),)
    checks: list[Check] = []
    for info in found:
        try:
            checks += check_device(info, free_bytes(info.ordinal))
        except VmtoolError as error:  # such as no room for a context: the others are rated still
            words = f"cuda:{info.ordinal}, {info.name}: {error}"
            checks.append(problem("cuda", words, error.hint or "nvidia-smi"))
    return tuple(checks)


def examine_device(ordinal: int) -> tuple[Check, ...]:
    """Return a rating of one device.

    Raises:
        UnavailableError: If there is no such device.
        CudaError: If the driver does not answer.
    """
    from vmtool.memory.cuda.devices import device, free_bytes

    return check_device(device(ordinal), free_bytes(ordinal))


def check_device(info: DeviceInfo, free: int) -> tuple[Check, ...]:
    """Return what *info* and the *free* bytes say about one device."""
    name = f"cuda:{info.ordinal}"
    words = f"{name}, {info.name}, {format_size(free)} of {format_size(info.total_bytes)} free"
    if not info.attributes.get("vmm"):
        return (
            problem(
                "no-vmm",
                f"{words}: no virtual memory management, so nothing can be committed on it",
                "use another device; under WDDM or a vGPU the driver may withhold it",
            ),
        )
    if free < info.total_bytes // 20:
        checks = [problem("device-memory", words, "nvidia-smi shows which processes hold it")]
    else:
        checks = [ok("device", f"{words}; it has virtual memory management")]
    if info.driver_model == "wddm":
        checks.append(
            note(
                "wddm",
                f"{name} runs under WDDM: commits may be paged to host memory, and unmapping takes "
                "milliseconds",
                "nvidia-smi -dm TCC (where the card has it), or keep below the free memory",
            )
        )
    elif info.driver_model == "tcc":
        checks.append(ok("tcc", f"{name} runs under TCC: Windows does not page its memory"))
    elif info.driver_model == "wsl":
        checks.append(
            note(
                "wsl-device",
                f"{name} is used through the driver of Windows: sharing memory by file descriptor "
                "does not work",
                "use the device from Linux itself, where that is needed",
            )
        )
    if info.integrated:
        checks.append(
            note(
                "integrated",
                f"{name} shares the RAM of the host: what it commits is missing there",
                "keep both budgets together below the RAM",
            )
        )
    return tuple(checks)
