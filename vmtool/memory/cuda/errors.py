"""The errors of CUDA driver calls, and which of their codes mean that a device is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Self

from vmtool.errors import CallError, ExitCode, UnavailableError
from vmtool.memory.errors import OutOfMemoryError

if TYPE_CHECKING:
    from vmtool.memory.errors import Diagnosis

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
