"""The errors of a missing CUDA driver and of its failed calls, each with a cause and a hint.

They are found from values only: nothing here calls the driver.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from vmtool.errors import CallError, ExitCode, UnavailableError
from vmtool.memory.errors import Diagnosis, OutOfMemoryError
from vmtool.memory.rlimits_and_privileges import how_to_raise, soft_limit
from vmtool.no_memory import is_no_memory, why_no_memory
from vmtool.units import format_size

INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
DEVICE_UNAVAILABLE: Final = 46
INVALID_DEVICE: Final = 101
NOT_READY: Final = 600
NOT_PERMITTED: Final = 800
NOT_SUPPORTED: Final = 801

# The codes of which cuda.h 13.0 says that every later call returns the same error, or that the process
# (710: the context) has to be given up. The others leave the driver usable.
STICKY_CODES: Final = frozenset(
    {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911},
)
# An uncorrectable error of the device's memory (214) or of NVLink (220): cuda.h does not call them
# sticky, but the Xid catalogue (48, 63, 74, 94, 95) has the process or the device reset after them:
# https://docs.nvidia.com/deploy/xid-errors/
LOST_CODES: Final = STICKY_CODES | {214, 220}

_INSTALL_DRIVER: Final = "install the NVIDIA display driver, or use --backing host"
#: What cuInit returns on machines that look as if they had CUDA: (cause, hint). The meanings are
#: those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
_INIT_CODES: Final[dict[int, tuple[str, str]]] = {
    3: (
        "the kernel module is not usable, or this process was forked from one that uses CUDA",
        "run nvidia-smi; start workers with spawn, not fork",
    ),
    34: (
        "the library found is the toolkit's stub, made for linking only",
        "take the toolkit's lib/stubs folder out of LD_LIBRARY_PATH",
    ),
    46: ("the device is held by another process or in a bad state", "run nvidia-smi"),
    100: ("there is no NVIDIA GPU, or it is hidden from this process", "run nvidia-smi"),
    802: ("the fabric manager of this machine is not running", "start nvidia-fabricmanager"),
    803: (
        "the driver's library and kernel module have different versions",
        "reboot, or reload the kernel module, after an update; in a container, mount the host's libcuda",
    ),
    804: (
        "a forward-compatibility library is used on a GPU that it does not support",
        "take the cuda-compat folder out of LD_LIBRARY_PATH",
    ),
    999: (
        "the kernel module is not loaded, or the container lacks the device nodes",
        "run nvidia-smi; start the container with GPU access (--gpus all)",
    ),
}
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
_LOST_CAUSES: Final = {
    214: "the device's memory has an uncorrectable ECC error",
    220: "NVLink has an uncorrectable error",
    **dict.fromkeys((46, 101, 999), "the device no longer answers, as after falling off the bus"),
}
#: Fewer mappings than this are never the reason: 523,404 were counted on one H100, and the driver
#: documents no limit (docs/platform-facts.md#cuda-oom).
_MANY_MAPPINGS: Final = 10_000
_FEW_DESCRIPTORS: Final = 16


class CudaError(CallError):
    """A CUDA driver call that failed: ``code`` is the CUresult, ``symbol`` its name."""

    def copy(self, found: Diagnosis | None = None) -> Self:
        """Return the same error without its traceback, explained by what was *found* if given."""
        return type(self)(
            self.call,
            self.arguments,
            code=self.code,
            symbol=self.symbol,
            detail=self.detail,
            cause=found.cause if found else self.cause,
            hint=found.remedy if found else self.hint,
        )


class CudaOutOfMemoryError(CudaError, OutOfMemoryError):
    """The device, its address space or one of its tables is full (CUDA_ERROR_OUT_OF_MEMORY).

    ``cause`` says which, where the device's own numbers show it.
    """


class CudaNotSupportedError(CudaError):
    """This device or driver does not support what was requested (CUDA_ERROR_NOT_SUPPORTED)."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNAVAILABLE


class DeviceLostError(CudaError):
    """The driver is unusable until the process ends, so nothing is called any more."""


def error_class(code: int) -> type[CudaError]:
    """Return the class for a non-zero CUresult."""
    if code in LOST_CODES:
        return DeviceLostError
    return {OUT_OF_MEMORY: CudaOutOfMemoryError, NOT_SUPPORTED: CudaNotSupportedError}.get(
        code, CudaError
    )


class BrokenDriverError(UnavailableError):
    """A driver is installed and does not start: ``cuInit`` failed with *code*.

    "No device" (100) is not one: such a machine may have the driver and no GPU on purpose.
    """

    def __init__(self, message: str, code: int, *, cause: str | None, hint: str | None) -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.code = code


def no_bindings(exc: Exception) -> UnavailableError:
    """The ``cuda-bindings`` package is missing or does not import."""
    if sys.platform == "darwin":
        return UnavailableError("CUDA does not exist on macOS", hint="use --backing host")
    if is_no_memory(exc):
        cause, hint = why_no_memory()
        return UnavailableError(
            f"the CUDA bindings cannot be loaded: {exc}",
            cause=cause or "there is not enough memory for them",
            hint=hint,
        )
    if isinstance(exc, RuntimeError):
        return UnavailableError(
            f"the CUDA bindings cannot be loaded: {exc}",
            cause="a system library that they need is missing",
            hint="install the C library's packages, or use --backing host",
        )
    return UnavailableError(
        f"the CUDA bindings cannot be imported: {exc}",
        hint="reinstall vmtool with its dependency: pip install 'cuda-python>=12.9,<14'",
    )


def no_driver(exc: RuntimeError | OSError) -> UnavailableError:
    """The driver's library, or a function in it, could not be found."""
    text = str(exc)
    if "cuGetProcAddress_v2" in text:
        return UnavailableError(
            f"the NVIDIA driver is too old or not a real one: {text}",
            cause="libcuda has no cuGetProcAddress_v2, which came with CUDA 12.0",
            hint="install NVIDIA driver 525.60 or newer, or take stub folders out of LD_LIBRARY_PATH",
        )
    if "not found" in text and "unction" in text:
        return UnavailableError(
            f"the NVIDIA driver is not usable: {text}",
            cause="libcuda was found but does not offer the driver's functions",
            hint="take stub folders out of LD_LIBRARY_PATH and reinstall the display driver",
        )
    return UnavailableError(
        f"no NVIDIA driver was found on this machine: {text}", cause=_wsl(), hint=_INSTALL_DRIVER
    )


def init_failed(symbol: str, code: int, words: str) -> UnavailableError:
    """``cuInit`` returned *code*: any non-zero code means that there is nothing to use."""
    cause, hint = _INIT_CODES.get(code, (None, "run nvidia-smi: it shows whether the driver works"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and code == 100:
        cause, hint = f"CUDA_VISIBLE_DEVICES is {visible!r}", "unset CUDA_VISIBLE_DEVICES"
    message = (
        f"CUDA is not usable here: cuInit(0) failed: {symbol} ({code}){words and ': ' + words}"
    )
    cause = _wsl() or cause
    if code == 100:
        return UnavailableError(message, cause=cause, hint=hint)
    return BrokenDriverError(message, code, cause=cause, hint=hint)


def too_old(version: int, bindings_version: str) -> UnavailableError:
    """The driver initialises, but lacks what vmtool and its bindings need."""
    return UnavailableError(
        f"the NVIDIA driver is too old: it supports CUDA {dotted(version)}, "
        f"cuda-bindings {bindings_version} needs 12.0 or newer",
        hint="update the NVIDIA driver to 525.60 or newer (580.65 for cuda-bindings 13)",
    )


def no_function(name: str, version: int, bindings_version: str) -> UnavailableError:
    """The driver or the bindings do not offer one function."""
    known = f" (CUDA {dotted(version)})" if version else ""  # unknown until the driver was asked
    return UnavailableError(
        f"{name} is not offered by this driver{known} with cuda-bindings {bindings_version}",
        hint="update the NVIDIA driver, or install the cuda-python of its major version; "
        "a quota library loaded in front of it (LD_PRELOAD) may also hide functions",
    )


def no_vmm(name: str, driver_model: str | None) -> UnavailableError:
    """The device has no virtual memory management, without which there is nothing to commit."""
    model = f" under the {driver_model} driver model" if driver_model else ""
    return UnavailableError(
        f"{name} does not support CUDA virtual memory management{model}",
        cause=_wsl(),
        hint="use another device (vmtool granularity lists them), or --backing host",
    )


def dotted(version: int) -> str:
    """Return a CUDA version such as 12040 as ``12.4``."""
    return f"{version // 1000}.{version % 1000 // 10}"


def in_wsl() -> bool:
    """Whether this is Linux under Windows (WSL), where the driver is the Windows one."""
    return sys.platform == "linux" and "microsoft" in platform.release().lower()


def _wsl() -> str | None:
    if not in_wsl():
        return None
    return "under WSL the driver is the Windows one, in /usr/lib/wsl/lib; install none inside Linux"


def explain_code(call: str, code: int, compute_mode: int | None) -> tuple[str | None, str | None]:
    """Return the likely cause of *code* from *call*, and a hint; both ``None`` if unknown.

    Args:
        call: The driver function.
        code: Its CUresult.
        compute_mode: CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of the device; ``None`` if not available.
    """
    if code == DEVICE_UNAVAILABLE:
        mode = _COMPUTE_MODES.get(compute_mode or 0)
        if mode is not None:
            default = "have an administrator run nvidia-smi -c DEFAULT"
            if mode == "prohibited":
                return f"the device is in compute mode {mode}: it accepts no process", default
            return (
                f"the device is in compute mode {mode}: it accepts one process at a time",
                f"use --workers 1, or {default}",
            )
        return _INIT_CODES[code]
    if code == OUT_OF_MEMORY:
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
    limit = soft_limit("RLIMIT_AS")
    if limit is not None:
        found.append(f"RLIMIT_AS is {format_size(limit)}")
    descriptors = _descriptors()
    if descriptors is not None and descriptors[1] - descriptors[0] < _FEW_DESCRIPTORS:
        found.append(f"{descriptors[0]:,} of {descriptors[1]:,} file descriptors are in use")
    if integrated:
        found.append("an integrated device may have a cap below the machine's memory")
    return tuple(found)


def _descriptors() -> tuple[int, int] | None:
    """Return how many descriptors are open, and how many may be; ``None`` if not available."""
    limit = soft_limit("RLIMIT_NOFILE")
    if sys.platform != "linux" or limit is None:
        return None
    try:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one call, no Path objects
    except OSError:
        return None
    return used, limit
