"""What a CUDA driver call can answer, and which of vmtool's errors that becomes."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from vmtool.errors import CallError, ExitCode, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

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


_INSTALL_DRIVER: Final = "install the NVIDIA display driver, or use --backing host"

# What cuInit answers on machines that look as if they had CUDA: (cause, hint).
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


def no_bindings(exc: ImportError) -> UnavailableError:
    """The ``cuda-bindings`` package is missing or does not import."""
    if sys.platform == "darwin":
        return UnavailableError("CUDA does not exist on macOS", hint="use --backing host")
    return UnavailableError(
        f"the CUDA bindings cannot be imported: {exc}",
        hint="reinstall vmtool with its dependency: pip install 'cuda-python>=12.9,<14'",
    )


def no_driver(exc: RuntimeError) -> UnavailableError:
    """The bindings could not find the driver's library, or a function in it."""
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
    """``cuInit`` answered *code*: any non-zero answer means that there is nothing to use."""
    cause, hint = _INIT_CODES.get(code, (None, "run nvidia-smi: it shows whether the driver works"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and code == 100:
        cause, hint = f"CUDA_VISIBLE_DEVICES is {visible!r}", "unset CUDA_VISIBLE_DEVICES"
    return UnavailableError(
        f"CUDA is not usable here: cuInit(0) failed: {symbol} ({code}){words and ': ' + words}",
        cause=_wsl() or cause,
        hint=hint,
    )


def too_old(version: int, bindings_version: str) -> UnavailableError:
    """The driver initialises, but lacks what vmtool and its bindings need."""
    return UnavailableError(
        f"the NVIDIA driver is too old: it supports CUDA {dotted(version)}, "
        f"cuda-bindings {bindings_version} needs 12.0 or newer",
        hint="update the NVIDIA driver to 525.60 or newer (580.65 for cuda-bindings 13)",
    )


def no_function(name: str, version: int, bindings_version: str) -> UnavailableError:
    """The driver or the bindings do not offer one function."""
    return UnavailableError(
        f"{name} is not offered by this driver (CUDA {dotted(version)}) "
        f"with cuda-bindings {bindings_version}",
        hint="update the NVIDIA driver, or install the cuda-python of its major version",
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


# cuGetProcAddress_v2, through which the bindings find every other function, came with CUDA 12.0.
_OLDEST_DRIVER: Final = 12000

ACCESS_READ: Final = 1
ACCESS_READWRITE: Final = 3
HANDLE_NONE: Final = 0
HANDLE_POSIX_FD: Final = 1
HANDLE_FABRIC: Final = 8
LOCATION_DEVICE: Final = 1
LOCATION_HOST_NUMA: Final = 3
GRANULARITY_MINIMUM: Final = 0
GRANULARITY_RECOMMENDED: Final = 1
STREAM_NON_BLOCKING: Final = 1

# Handles and addresses arrive as objects that are not equal to others of the same value.
_INTEGER_TYPES: Final = (
    "CUcontext",
    "CUdevice",
    "CUdeviceptr",
    "CUevent",
    "CUmemGenericAllocationHandle",
    "CUstream",
)
_UNKNOWN_CODE: Final = re.compile(r"(\d+) is not a valid CUresult")


class Driver:
    """An initialised driver. Its calls may come from any thread.

    Attributes:
        version: The newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
        bindings_version: The version of the ``cuda-bindings`` package.
    """

    def __init__(self, binding: Any, bindings_version: str) -> None:
        self.bindings_version = bindings_version
        self.version = 0
        self._binding = binding
        self._functions: dict[str, Callable[..., tuple[Any, ...]]] = {}
        self._integer_types = frozenset(getattr(binding, name) for name in _INTEGER_TYPES)
        self._lost: DeviceLostError | None = None
        self._process = os.getpid()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver function *name* and return its outputs.

        Returns:
            ``None``, the one output, or a tuple of several. Addresses and handles are ``int``.

        Raises:
            CudaOutOfMemoryError: On CUDA_ERROR_OUT_OF_MEMORY.
            CudaNotSupportedError: On CUDA_ERROR_NOT_SUPPORTED.
            DeviceLostError: On a sticky error, and without a call ever after.
            CudaError: On any other error.
            UnavailableError: If this driver or these bindings have no such function.
        """
        try:
            function = self._functions[name]
        except KeyError:
            function = self._bind(name, arguments)
        try:
            result = function(*arguments)
        except (RuntimeError, ValueError) as exc:
            raise self._refused(name, arguments, exc) from exc
        if result[0]:
            raise self._failure(name, arguments, int(result[0]))
        if len(result) == 1:
            return None
        if len(result) == 2:
            value = result[1]
            return int(value) if type(value) in self._integer_types else value
        return result[1:]  # no call with several outputs has a handle among them

    @property
    def lost(self) -> DeviceLostError | None:
        """The error that made the driver unusable, or ``None``."""
        return self._lost

    def allocation_properties(
        self,
        location: int,
        *,
        location_type: int = LOCATION_DEVICE,
        handle_types: int = HANDLE_NONE,
        compressible: bool = False,
        rdma: bool = False,
    ) -> Any:
        """Return a CUmemAllocationProp for pinned memory; build it once, it costs 0.6 us.

        Args:
            location: The device's ordinal, or the NUMA node.
            location_type: ``LOCATION_DEVICE`` or ``LOCATION_HOST_NUMA``.
            handle_types: What the memory may be exported as; ``HANDLE_NONE`` is the fastest.
            compressible: Ask for compressible memory.
            rdma: Ask for memory that GPUDirect RDMA can reach.
        """
        binding = self._binding
        properties = binding.CUmemAllocationProp()
        properties.type = binding.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = binding.CUmemLocationType(location_type)
        properties.location.id = location
        properties.requestedHandleTypes = binding.CUmemAllocationHandleType(handle_types)
        properties.allocFlags.compressionType = int(compressible)
        properties.allocFlags.gpuDirectRDMACapable = int(rdma)
        return properties

    def access(self, ordinal: int, flags: int = ACCESS_READWRITE) -> Any:
        """Return a CUmemAccessDesc that gives device *ordinal* this access; build it once."""
        binding = self._binding
        description = binding.CUmemAccessDesc()
        description.location.type = binding.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.location.id = ordinal
        description.flags = binding.CUmemAccess_flags(flags)
        return description

    def granularity(self, properties: Any, option: int) -> int:
        """Return the granularity in bytes for *properties*: ``GRANULARITY_MINIMUM`` or the other."""
        flag = self._binding.CUmemAllocationGranularity_flags(option)
        nbytes: int = self.call("cuMemGetAllocationGranularity", properties, flag)
        return nbytes

    def attribute(self, name: str, ordinal: int) -> int | None:
        """Return CU_DEVICE_ATTRIBUTE_*name*, or ``None`` if bindings or driver do not know it."""
        number = getattr(self._binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if number is None:
            return None
        try:
            value: int = self.call("cuDeviceGetAttribute", number, ordinal)
        except CudaError as exc:
            if exc.code not in {INVALID_VALUE, NOT_SUPPORTED}:  # else newer than this driver
                raise
            return None
        return value

    def _initialise(self) -> None:
        try:
            result = self._binding.cuInit(0)
        except RuntimeError as exc:
            raise no_driver(exc) from exc
        except ValueError as exc:
            raise init_failed("unknown CUresult", _unknown_code(exc), str(exc)) from exc
        if result[0]:
            raise init_failed(*self._describe(int(result[0])))
        self.version = self.call("cuDriverGetVersion")
        if self.version < _OLDEST_DRIVER:
            raise too_old(self.version, self.bindings_version)

    def _bind(self, name: str, arguments: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        lost = self._lost
        if lost is not None:
            raise DeviceLostError(
                name,
                _render(arguments),
                code=lost.code,
                symbol=lost.symbol,
                detail=f"not called, because the device was lost before: {lost}",
                hint=lost.hint,
            )
        function: Callable[..., tuple[Any, ...]] | None = getattr(self._binding, name, None)
        if function is None:
            raise no_function(name, self.version, self.bindings_version)
        self._functions[name] = function
        return function

    def _describe(self, code: int) -> tuple[str, int, str]:
        """Return the symbol, the number and the driver's own words for *code*."""
        result = self._binding.CUresult(code)
        failed, text = self._binding.cuGetErrorString(result)
        return result.name, code, "" if failed or text is None else text.decode()

    def pretend(self, name: str, arguments: tuple[Any, ...], symbol: str) -> CudaError:
        """Return the error of a call that answered *symbol*, with all that follows from it."""
        return self._failure(name, arguments, int(getattr(self._binding.CUresult, symbol)))

    def _failure(self, name: str, arguments: tuple[Any, ...], code: int) -> CudaError:
        try:
            symbol, code, words = self._describe(code)
        except RuntimeError:  # a driver without cuGetErrorString
            symbol, words = self._binding.CUresult(code).name, ""
        cause, hint = self._advice(code)
        error = error_class(code)(
            name, _render(arguments), code=code, symbol=symbol, detail=words, cause=cause, hint=hint
        )
        if isinstance(error, DeviceLostError):
            self._lost = self._lost or error
            # From now on every call passes through _bind, which raises: a healthy call pays nothing for it.
            self._functions.clear()
        return error

    def _advice(self, code: int) -> tuple[str | None, str | None]:
        if code in STICKY_CODES:
            return None, "the driver is unusable until this process ends: start it again"
        if code == NOT_INITIALIZED and os.getpid() != self._process:
            return (
                "CUDA was initialised before this process was forked",
                "start workers with spawn, not fork",
            )
        if code == OUT_OF_MEMORY:
            return None, "ask for less, or free device memory (see nvidia-smi)"
        return None, None

    def _refused(
        self, name: str, arguments: tuple[Any, ...], exc: Exception
    ) -> UnavailableError | CudaError | Exception:
        """Turn what the bindings raised into vmtool's error; a mistake of the caller stays as it is."""
        if _UNKNOWN_CODE.search(str(exc)):
            symbol = "a code unknown to these bindings"
            return CudaError(name, _render(arguments), code=_unknown_code(exc), symbol=symbol)
        if isinstance(exc, RuntimeError) and "not found" in str(exc):
            return no_function(name, self.version, self.bindings_version)
        return exc


def _unknown_code(exc: Exception) -> int:
    found = _UNKNOWN_CODE.search(str(exc))
    return int(found[1]) if found else -1


def _render(arguments: tuple[Any, ...]) -> str:
    """Return *arguments* as text that is short and says nothing of their contents."""

    def one(value: Any) -> str:
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"<{memoryview(value).nbytes} bytes>"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(one, value))}]"
        return f"<{type(value).__name__}>"

    return ", ".join(map(one, arguments))


@functools.cache
def load() -> Driver:
    """Import the bindings and initialise the driver, once; no context is created.

    Raises:
        UnavailableError: If the package, the driver or a device is missing, or any is too old.
    """
    try:
        from cuda.bindings import __version__, driver
    except ImportError as exc:
        raise no_bindings(exc) from exc
    loaded = Driver(driver, __version__)
    loaded._initialise()  # noqa: SLF001  # this module's own class
    return loaded


def result_name(effect: str) -> str | None:
    """Return the name of the CUresult that *effect* names or numbers; ``None`` if it is no error.

    Raises:
        UnavailableError: If the bindings, which know the names, are missing.
    """
    try:
        from cuda.bindings.driver import CUresult
    except ImportError as exc:
        raise no_bindings(exc) from exc
    for result in CUresult:
        if int(result) and effect in {result.name, str(int(result))}:
            return str(result.name)
    return None


def forget() -> None:
    """Make the next ``load()`` start anew; for tests that change the driver under it."""
    load.cache_clear()
