"""What a CUDA driver call can answer, and which of vmtool's errors that becomes."""

from __future__ import annotations

from typing import ClassVar, Final

from vmtool.errors import CallError, ExitCode

INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
NOT_SUPPORTED: Final = 801

# The codes of which cuda.h 13.0 says that every later call returns the same error, or that the process
# (710: the context) has to be given up. The others leave the driver usable.
STICKY_CODES: Final = frozenset(
    {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911},
)


class CudaError(CallError):
    """A CUDA driver call that failed: ``code`` is the CUresult, ``symbol`` its name."""


class CudaOutOfMemoryError(CudaError):
    """The device, its address space or one of its tables is full (CUDA_ERROR_OUT_OF_MEMORY)."""


class CudaNotSupportedError(CudaError):
    """This device or driver does not offer what was asked for (CUDA_ERROR_NOT_SUPPORTED)."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNAVAILABLE


class DeviceLostError(CudaError):
    """A sticky error: the driver is unusable until the process ends, so nothing is called any more."""


def error_class(code: int) -> type[CudaError]:
    """Return the class for a non-zero CUresult."""
    if code in STICKY_CODES:
        return DeviceLostError
    return {OUT_OF_MEMORY: CudaOutOfMemoryError, NOT_SUPPORTED: CudaNotSupportedError}.get(
        code, CudaError
    )
