"""Why CUDA is not available: causes and hints, from values only."""

from __future__ import annotations

import os
import platform
import sys
from typing import Final

from vmtool.errors import UnavailableError
from vmtool.memory.cuda.errors import BrokenDriverError
from vmtool.no_memory import is_no_memory, why_no_memory

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
