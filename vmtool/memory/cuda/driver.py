"""The CUDA driver through cuda-python: the checked call, and vmtool's error for each CUresult."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from vmtool.memory.counters import read_process_limits
from vmtool.memory.cuda.errors_and_diagnosis import (
    DEVICE_UNAVAILABLE,
    INVALID_VALUE,
    LOST_CODES,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    CudaError,
    DeviceLostError,
    error_class,
    explain_code,
    explain_loss,
    init_failed,
    no_bindings,
    no_driver,
    no_function,
    too_old,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.errors import UnavailableError


# What calls return once a device fell off the bus (Xid 79), and what a call may return for a reason of its
# own as well: so it is lost when a call of another kind answers the same, or when waiting for the device
# does so twice, with no success in between of a call that reaches the device.
_SUSPICIOUS_CODES: Final = frozenset({46, 101, 999})
_WAITING: Final = frozenset({"cuCtxSynchronize", "cuStreamSynchronize"})
_ON_THE_HOST: Final = frozenset(
    {"cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet", "cuDeviceGetAttribute"}
)
#: Every driver function without which no memory can be mapped, filled and given back. All are looked
#: up at the start: a quota library in front of the driver may export only a part of them.
FUNCTIONS: Final = (
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem",
    "cuGetErrorString",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemGetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoH",
    "cuMemcpyHtoD",
    "cuMemsetD32",
    "cuMemsetD8",
    "cuStreamSynchronize",
)

#: What single measurements need: where one is missing, only that measurement is not available.
OPTIONAL_FUNCTIONS: Final = (
    "cuDeviceCanAccessPeer",
    "cuDeviceGetDefaultMemPool",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemExportToShareableHandle",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoD",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamQuery",
)

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
    "CUmemoryPool",
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
        self._suspect: tuple[str, int] | None = None  # the call and its code
        self._process = os.getpid()
        self._absent: frozenset[str] = frozenset()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver function *name* and return its outputs.

        Returns:
            ``None``, the one output, or a tuple of several. Addresses and handles are ``int``.

        Raises:
            CudaOutOfMemoryError: On CUDA_ERROR_OUT_OF_MEMORY.
            CudaNotSupportedError: On CUDA_ERROR_NOT_SUPPORTED.
            DeviceLostError: Where the device is lost (see ``LOST_CODES``); ever after without a call, and
                with the message of the one that lost it.
            CudaError: On any other error.
            UnavailableError: If this driver or these bindings have no such function.
        """
        try:
            function = self._functions[name]
        except KeyError:
            function = self._bind(name)
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
        """The first error that showed that the driver is unusable, or ``None``."""
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

    def handle_type(self, number: int) -> Any:
        """Return the CUmemAllocationHandleType with this number, for exporting and importing."""
        return self._binding.CUmemAllocationHandleType(number)

    def set_release_threshold(self, pool: int, nbytes: int) -> None:
        """Let a pool of stream-ordered memory keep up to *nbytes* when it is synchronised."""
        binding = self._binding
        attribute = binding.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, attribute, binding.cuuint64_t(nbytes))

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

    def initialise(self) -> None:
        """Call cuInit and look up every function in ``FUNCTIONS`` and ``OPTIONAL_FUNCTIONS``.

        Raises:
            UnavailableError: If the driver does not start, is too old or lacks a function.
        """
        try:
            result = self._binding.cuInit(0)
        except RuntimeError as exc:
            raise no_driver(exc) from exc
        except ValueError as exc:
            code = _unknown_code(exc)
            raise init_failed("unknown CUresult", code, str(exc)) from exc
        if result[0]:
            raise init_failed(*self._describe(int(result[0])))
        self.version = self.call("cuDriverGetVersion")
        if self.version < _OLDEST_DRIVER:
            raise too_old(self.version, self.bindings_version)
        for name in FUNCTIONS:
            if not self.offers(name):
                raise no_function(name, self.version, self.bindings_version)
            self._bind(name)
        self._absent = frozenset(name for name in OPTIONAL_FUNCTIONS if not self.offers(name))

    def require(self, *names: str) -> None:
        """Check that the driver has all of the ``OPTIONAL_FUNCTIONS`` *names*, before one is called.

        Raises:
            UnavailableError: If it lacks one.
        """
        for name in names:
            if name in self._absent:
                raise no_function(name, self.version, self.bindings_version)

    def has(self, *names: str) -> bool:
        """Return whether the driver has all of the ``OPTIONAL_FUNCTIONS`` *names*."""
        return self._absent.isdisjoint(names)

    def has_binding(self, name: str) -> bool:
        """Return whether these bindings have the function *name*; the driver may still lack it."""
        return getattr(self._binding, name, None) is not None

    def offers(self, name: str) -> bool:
        """Return whether bindings and driver have the function *name*."""
        if not self.has_binding(name):
            return False
        # The bindings have every name; whether the driver has it shows at the first call only. The
        # version requested is the oldest supported, as newer drivers may have it under a new ABI.
        query: tuple[Any, ...] = self._binding.cuGetProcAddress(name.encode(), _OLDEST_DRIVER, 0)
        return not query[0] and bool(query[1])

    def _bind(self, name: str) -> Callable[..., tuple[Any, ...]]:
        lost = self._lost
        if lost is not None:  # what is reported is the call that lost it, whichever comes after
            raise lost.copy()
        function: Callable[..., tuple[Any, ...]] | None = getattr(self._binding, name, None)
        if function is None or name in self._absent:
            raise no_function(name, self.version, self.bindings_version)
        if self._suspect is not None:
            return function if name in _ON_THE_HOST else self._clearing_suspicion(function)
        self._functions[name] = function
        return function

    def _clearing_suspicion(
        self, function: Callable[..., tuple[Any, ...]]
    ) -> Callable[..., tuple[Any, ...]]:
        """Return *function*, which by succeeding shows that the device is still there."""

        def watched(*arguments: Any) -> tuple[Any, ...]:
            result = function(*arguments)
            if not result[0]:
                self._suspect = None
            return result

        return watched

    def _describe(self, code: int) -> tuple[str, int, str]:
        """Return the symbol, the number and the driver's own words for *code*."""
        result = self._binding.CUresult(code)
        failed, text = self._binding.cuGetErrorString(result)
        return result.name, code, "" if failed or text is None else text.decode()

    def error_of(self, name: str, arguments: tuple[Any, ...], symbol: str) -> CudaError:
        """Return the error of a call that answered *symbol*, with all that follows from it."""
        return self._failure(name, arguments, int(getattr(self._binding.CUresult, symbol)))

    def _failure(self, name: str, arguments: tuple[Any, ...], code: int) -> CudaError:
        try:
            symbol, code, words = self._describe(code)
        except RuntimeError:  # a driver without cuGetErrorString
            symbol, words = self._binding.CUresult(code).name, ""
        suspect = self._suspect
        gone = (
            suspect is not None and suspect[1] == code and (suspect[0] != name or name in _WAITING)
        )
        cause, hint = self._advice(name, arguments, code, lost=gone or code in LOST_CODES)
        make = DeviceLostError if gone else error_class(code)
        error = make(
            name, _render(arguments), code=code, symbol=symbol, detail=words, cause=cause, hint=hint
        )
        if isinstance(error, DeviceLostError):
            # A copy: the traceback of what is raised would keep what its callers hold from being reclaimed.
            self._lost = self._lost or error.copy()
        elif code in _SUSPICIOUS_CODES:
            self._suspect = name, code
        else:
            return error
        # From now on every call passes through _bind, which refuses it or watches it: a healthy call
        # pays nothing for that.
        self._functions.clear()
        return error

    def _advice(
        self, name: str, arguments: tuple[Any, ...], code: int, *, lost: bool
    ) -> tuple[str | None, str | None]:
        if lost:
            return explain_loss(code)
        if code == NOT_INITIALIZED and os.getpid() != self._process:
            return (
                "CUDA was initialised before this process was forked",
                "start workers with spawn, not fork",
            )
        mode = None
        if code == DEVICE_UNAVAILABLE and name == "cuDevicePrimaryCtxRetain":
            number = self._binding.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
            failed, value = self._binding.cuDeviceGetAttribute(number, arguments[0])
            mode = None if failed else value
        return explain_code(name, code, mode)

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


#: Loading the bindings took 17 MiB of address space. An import that runs out of it may never end:
#: CPython 3.11 was seen to try the same failing allocation again and again.
_BINDINGS_BYTES: Final = 24 << 20


@functools.cache
def load() -> Driver:
    """Import the bindings and initialise the driver, once; no context is created.

    Raises:
        UnavailableError: If the package, the driver or a device is missing, or any is too old.
    """
    process = read_process_limits()
    limit, used = process.address_space_limit_bytes, process.address_space_bytes
    if limit is not None and used is not None and limit - used < _BINDINGS_BYTES:
        words = f"{(limit - used) >> 20} MiB of address space is left"
        raise no_bindings(MemoryError(words))
    if (missing := missing_library()) is not None:
        raise no_driver(missing)
    try:
        from cuda.bindings import __version__, driver
    # RuntimeError: the bindings look for libdl.so.2 while they are imported.
    except (ImportError, RuntimeError, MemoryError) as exc:
        raise no_bindings(exc) from exc
    loaded = Driver(driver, __version__)
    loaded.initialise()
    return loaded


def missing_library() -> OSError | None:
    """Return why the driver's library is not there; ``None`` if it is, or is not looked for here.

    The bindings look for it in the same way (``dlopen``), but are a sixth of what ``doctor`` loads.
    """
    if sys.platform != "linux":
        return None
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        # Another error is the bindings' to report: the library is there.
        return exc if "No such file" in str(exc) else None
    return None


def loss() -> DeviceLostError | None:
    """Return the error that lost a device of this process, if one did; nothing is loaded for it."""
    return load().lost if load.cache_info().currsize else None


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
