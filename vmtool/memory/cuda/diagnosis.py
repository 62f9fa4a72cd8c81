"""What ran out when a CUDA call says "out of memory": memory, addresses or mappings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory.backing import OutOfMemoryError
from vmtool.memory.cuda.driver import CudaError, CudaOutOfMemoryError
from vmtool.memory.diagnosis import Diagnosis
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.cuda.context import DeviceContext


class DeviceOutOfMemoryError(CudaOutOfMemoryError, OutOfMemoryError):
    """The device ran out of memory, addresses or mappings; ``cause`` says which."""


def diagnose_device(
    call: str, nbytes: int, free: int | None, mappings: int, driver_model: str | None
) -> Diagnosis:
    """Return the likeliest cause of CUDA_ERROR_OUT_OF_MEMORY.

    Args:
        call: The driver function that failed.
        nbytes: What the whole operation asked for.
        free: Free memory of the device then, in bytes; ``None`` if it did not say.
        mappings: Mappings that this reservation held then.
        driver_model: ``wddm``, ``tcc``, ``wsl`` or ``None``.
    """
    if call == "cuMemAddressReserve":
        return Diagnosis(
            "device-address-range",
            f"no free range of {format_size(nbytes)} is left in the device's address space; "
            "device memory did not run out",
            f"reserve half of it ({format_size(nbytes // 2)}), and halve again until it succeeds",
        )
    if free is None:
        return Diagnosis(
            "device-memory", "the device did not say how much is free", "run nvidia-smi"
        )
    if call == "cuMemSetAccess" and free >= nbytes:
        if driver_model in {"wddm", "wsl"}:
            return Diagnosis(
                "wddm-budget",
                f"{format_size(free)} is reported free, but Windows grants each process a budget "
                "below that and pages the rest",
                "commit at most 90 % of the free memory",
            )
        return Diagnosis(
            "mapping-descriptors",
            f"{format_size(free)} is free and this reservation holds {mappings} mappings: drivers "
            "have a fixed number of mappings per device (523,404 seen on one H100)",
            "use larger chunks (--chunk), or map fewer handles twice",
        )
    return Diagnosis(
        "device-memory",
        f"{format_size(nbytes)} was asked for and {format_size(free)} is free on the device",
        "commit less, or end what else uses the device (nvidia-smi)",
    )


def explain(error: CudaError, context: DeviceContext, nbytes: int, mappings: int) -> CudaError:
    """Return *error* with the likely cause on this device, if it says that something ran out."""
    if not isinstance(error, CudaOutOfMemoryError):
        return error
    try:
        free: int | None = context.free_and_total_bytes()[0]
    except CudaError:
        free = None
    model = context.info.driver_model
    diagnosis = diagnose_device(error.call, nbytes, free, mappings, model)
    return DeviceOutOfMemoryError(
        error.call,
        error.arguments,
        code=error.code,
        symbol=error.symbol,
        detail=error.detail,
        cause=diagnosis.cause,
        hint=diagnosis.remedy,
    )
