"""What a failed call of the CUDA driver means: causes and hints, from values only."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from vmtool.memory.errors import Diagnosis
from vmtool.memory.rlimits_and_privileges import how_to_raise, read_resource_limit
from vmtool.units import format_size

#: What a failed call means wherever it happens: code to (cause, hint).
_CALL_CODES: Final[dict[int, tuple[str, str]]] = {
    101: (
        "the device is gone, or CUDA_VISIBLE_DEVICES changed",
        "run nvidia-smi and look for Xid messages in dmesg",
    ),
    304: (
        "the operating system refused something that the driver requested",
        "look at ulimit -a, the container's seccomp profile and free space in /dev/shm",
    ),
    600: ("work that was submitted before has not finished", "synchronise first"),
    800: (
        "the process is not allowed to do this; for fabric handles an IMEX channel is missing",
        (
            "create a channel (nvidia-modprobe -c 0, /dev/nvidia-caps-imex-channels) and start "
            "nvidia-imex, or ask for another handle type"
        ),
    ),
}
#: An out-of-memory error of these is none of what was requested.
_GIVING_BACK: Final = frozenset(
    {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemFree", "cuMemFreeAsync"}
)
_COMPUTE_MODES: Final = {1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}


def explain_code(call: str, code: int, compute_mode: int | None) -> tuple[str | None, str | None]:
    """Return the likely cause of *code* from *call*, and a hint; both ``None`` if unknown.

    Args:
        call: The driver function.
        code: Its CUresult.
        compute_mode: CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of the device; ``None`` if not available.
    """
    if code == 46:
        mode = _COMPUTE_MODES.get(compute_mode or 0)
        if mode is not None:
            default = "have an administrator run nvidia-smi -c DEFAULT"
            if mode == "prohibited":
                return f"the device is in compute mode {mode}: it accepts no process", default
            return (
                f"the device is in compute mode {mode}: it accepts one process at a time",
                f"use --workers 1, or {default}",
            )
        return "the device is held by another process or in a bad state", "run nvidia-smi"
    if code == 2:
        if call == "cuDevicePrimaryCtxRetain":
            return (
                "the device has no room for one more context (a few hundred MiB each)",
                "stop the other programs on the device (nvidia-smi), or use fewer --workers",
            )
        if call in _GIVING_BACK:
            return None, "end the process, which gives everything back; dmesg may show why"
        if not call.startswith("cuMem"):
            return None, "run nvidia-smi: it shows what uses the device"
        return None, "request less, or free device memory (see nvidia-smi)"
    return _CALL_CODES.get(code, (None, None))


_LOST_CAUSES: Final = {
    214: "the device's memory has an uncorrectable ECC error",
    220: "NVLink has an uncorrectable error",
    **dict.fromkeys((46, 101, 999), "the device no longer answers, as after falling off the bus"),
}


def explain_loss(code: int) -> tuple[str, str]:
    """Return the likely cause of losing the device with *code*, and a hint."""
    cause = "this or earlier work on the device failed, which ends its context"
    hint = (
        "the driver is unusable until this process ends: start it again; Xid messages in dmesg and "
        "nvidia-smi show the state of the device"
    )
    return _LOST_CAUSES.get(code, cause), hint


@dataclass(frozen=True, slots=True)
class Situation:
    """What was true when a call answered CUDA_ERROR_OUT_OF_MEMORY, before anything was undone.

    Attributes:
        call: The driver function that failed.
        nbytes: The bytes that the whole operation requested.
        free_bytes: Free memory of the device; ``None`` if not available.
        mappings: Mappings that this process held on the device.
        driver_model: ``wddm``, ``tcc``, ``wsl`` or ``None``.
        limits: Limits below the device's memory that may apply; see :func:`limits_below_free`.
        address_limit_bytes: RLIMIT_AS; ``None`` where there is none.
    """

    call: str
    nbytes: int
    free_bytes: int | None
    mappings: int
    driver_model: str | None
    limits: tuple[str, ...] = ()
    address_limit_bytes: int | None = None


#: Fewer mappings than this are never the reason: 523,404 were counted on one H100, and the driver
#: documents no limit (docs/platform-facts.md#cuda-oom).
_MANY_MAPPINGS: Final = 10_000


def diagnose_device(at: Situation, *, many: int = _MANY_MAPPINGS) -> Diagnosis:
    """Return the likeliest cause of CUDA_ERROR_OUT_OF_MEMORY.

    Args:
        at: What was true then.
        many: The fewest mappings at which mappings may be what ran out.
    """
    free, nbytes = at.free_bytes, at.nbytes
    if at.call == "cuMemAddressReserve":
        if at.address_limit_bytes is not None:
            return Diagnosis(
                "address-space-limit",
                f"RLIMIT_AS limits this process to {format_size(at.address_limit_bytes)} of "
                "addresses, and CUDA reserves device addresses there as well",
                how_to_raise("RLIMIT_AS"),
            )
        return Diagnosis(
            "device-address-range",
            f"no free range of {format_size(nbytes)} is left in the device's address space; "
            "device memory did not run out",
            f"reserve half of it ({format_size(nbytes // 2)}), and halve again until it succeeds",
        )
    if free is None:
        return Diagnosis(
            "device-memory", "the driver does not report how much is free", "run nvidia-smi"
        )
    if free < nbytes:
        return Diagnosis(
            "device-memory",
            f"{format_size(nbytes)} was requested and {format_size(free)} is free on the device",
            "commit less, or stop the other programs on the device (nvidia-smi)",
        )
    if at.driver_model in {"wddm", "wsl"}:
        return Diagnosis(
            "wddm-budget",
            f"{format_size(free)} is reported free, but Windows grants each process a budget "
            "below that and pages the rest",
            "commit at most 90 % of the free memory",
        )
    if at.call in {"cuMemSetAccess", "cuMemMap"} and at.mappings >= many:
        return Diagnosis(
            "mapping-descriptors",
            f"{format_size(free)} is free and this process holds {at.mappings:,} mappings: drivers "
            "have a fixed number of mappings per device (523,404 seen on one H100)",
            "use larger chunks (--chunk), or map fewer handles twice",
        )
    known = "; ".join(at.limits)
    return Diagnosis(
        "limited-below-free",
        f"{format_size(free)} is free on the device, so something limits this process below that"
        + (f": {known}" if known else ""),
        "raise that limit"
        if known
        else "look for an MPS, vGPU or container quota, and for a cap of the integrated device",
    )


def diagnose_pinning(driver_model: str | None) -> Diagnosis:
    """Return why the driver pins no more memory of the host (docs/platform-facts.md#cuda-pinned).

    Args:
        driver_model: ``wddm``, ``tcc``, ``wsl`` or ``None``.
    """
    if driver_model in {"wddm", "wsl"}:
        return Diagnosis(
            "pinned-limit",
            "Windows limits how much memory its devices may pin: users report about half of RAM, "
            "and 1 GiB or less under WSL",
            "pin less, or keep the memory pageable",
        )
    return Diagnosis(
        "unknown",
        "the driver could not pin that many pages, or has no room left to keep track of them; "
        "RLIMIT_MEMLOCK does not limit it",
        "pin less; dmesg shows what the kernel module says",
    )


def limits_below_free(*, mps: bool, integrated: bool) -> tuple[str, ...]:
    """Return what may refuse device memory to this process while the device has some free.

    Args:
        mps: Whether the process runs under MPS.
        integrated: Whether the device shares the host's memory.
    """
    found = []
    pinned = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    if pinned:
        found.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is {pinned}")
    elif mps:
        found.append("the process runs under MPS, whose server may have a memory limit")
    preloaded = os.environ.get("LD_PRELOAD")
    if preloaded:
        found.append(f"LD_PRELOAD is {preloaded}, which may enforce a quota")
    quota = sorted(name for name in os.environ if name.startswith("CUDA_DEVICE_MEMORY_LIMIT"))
    found += [f"{name} is {os.environ[name]}" for name in quota]
    limit = address_limit_bytes()
    if limit is not None:
        found.append(f"RLIMIT_AS is {format_size(limit)}")
    descriptors = _descriptors()
    if descriptors is not None and descriptors[1] - descriptors[0] < _FEW_DESCRIPTORS:
        found.append(f"{descriptors[0]:,} of {descriptors[1]:,} file descriptors are in use")
    if integrated:
        found.append("an integrated device may have a cap below the machine's memory")
    return tuple(found)


_FEW_DESCRIPTORS: Final = 16


def address_limit_bytes() -> int | None:
    """Return RLIMIT_AS in bytes; ``None`` where there is no such limit."""
    limit = read_resource_limit("RLIMIT_AS")
    return None if limit is None else limit.soft


def _descriptors() -> tuple[int, int] | None:
    """Return how many descriptors are open, and how many may be; ``None`` if not available."""
    if sys.platform != "linux":
        return None
    else:
        import resource

        try:
            used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one call, no Path objects
        except OSError:
            return None
        return used, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
