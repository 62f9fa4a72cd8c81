"""One device's context, current only during a call; its calls may be timed, or made to fail.

It is retained while anything needs it.
"""

from __future__ import annotations

import weakref
from array import array
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.memory.cuda import driver
from vmtool.memory.cuda.devices import DeviceInfo, device, require_vmm
from vmtool.memory.cuda.errors_and_diagnosis import (
    CudaError,
    CudaOutOfMemoryError,
    Situation,
    diagnose_device,
    diagnose_pinning,
    limits_below_free,
)
from vmtool.memory.injected_faults import apply
from vmtool.memory.rlimits_and_privileges import soft_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vmtool.memory.injected_faults import FaultyCalls

    #: ``call(name, *arguments)`` as :meth:`vmtool.memory.cuda.driver.Driver.call` has it.
    Caller = Callable[..., Any]

#: Driver models under which free memory is a budget, and no count.
_BUDGETED: Final = ("wddm", "wsl")
#: The calls that change or wait for memory, in the order of a cycle; each is timed apart.
TIMED: Final = (
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemsetD8",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
)
#: Calls with an output, without which nothing can go on: they are made even where one is skipped.
_WITH_OUTPUT: Final = (
    "cuCtxPopCurrent",
    "cuDevicePrimaryCtxRetain",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemGetAccess",
    "cuMemGetInfo",
    "cuStreamCreate",
    "cuStreamQuery",
)
#: Every call that goes through a context, and so can be made to fail.
INJECTABLE: Final = tuple(
    sorted(
        {*TIMED, *_WITH_OUTPUT, "cuCtxPushCurrent", "cuMemcpyDtoH", "cuMemcpyHtoD", "cuMemsetD32"}
    )
)


class DeviceContext:
    """The primary context of one device.

    Backings and reservations refer to it, so that it outlives what is mapped under it.

    Args:
        ordinal: The device.
        times: Where to record how long each call took.
        faults: Calls that shall fail. They come before the clock: what fails was not made.

    Attributes:
        info: The device, as the driver describes it.
        driver: The driver.
        call: How calls are made.

    Raises:
        UnavailableError: If there is no such device, or it cannot map memory.
        CudaError: If its context cannot be had.
    """

    def __init__(
        self,
        ordinal: int,
        *,
        times: CallTimes | None = None,
        faults: FaultyCalls | None = None,
    ) -> None:
        self.driver = driver.load()
        self.info: DeviceInfo = device(ordinal)
        require_vmm(self.info)
        self.call: Caller = self.driver.call
        if times is not None:
            self.call = times.wrap(self.call)
        if faults is not None:
            self.call = _inject(self.call, self.driver, faults)
        self._handle: int = self.call("cuDevicePrimaryCtxRetain", ordinal)
        # Finalizers run at exit in the reverse order of their making: after the reservations'.
        self._finalizer = weakref.finalize(self, _release, self.driver, ordinal)

    def close(self) -> None:
        """Let go of the context, once nothing is mapped under it; a second call is a no-op."""
        self._finalizer()

    @property
    def lost(self) -> bool:
        """Whether an error has made the driver unusable (``errors.LOST_CODES``)."""
        return self.driver.lost is not None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current for this thread; the caller's own comes back afterwards."""
        self.call("cuCtxPushCurrent", self._handle)
        try:
            yield
        finally:
            if not self.lost:
                self.call("cuCtxPopCurrent")

    def synchronise(self) -> None:
        """Wait until the device has finished all work of the context.

        Raises:
            CudaError: If work that was submitted before has failed.
        """
        with self.current():
            self.call("cuCtxSynchronize")

    @contextmanager
    def pinned(self, address: int, nbytes: int) -> Iterator[None]:
        """Fault ``address..address + nbytes`` of this process in and keep it page-locked meanwhile.

        NVIDIA's kernel module pins the pages itself and does not look at RLIMIT_MEMLOCK
        (docs/platform-facts.md#cuda-pinned); Windows and WSL have a limit of their own.

        Raises:
            CudaOutOfMemoryError: If it is too much; ``cause`` says what limits it, as far as is known.
            CudaError: If the driver refuses for another reason.
        """
        with self.current():
            try:
                self.call("cuMemHostRegister", address, nbytes, 0)
            except CudaOutOfMemoryError as error:
                raise error.copy(diagnose_pinning(self.info.driver_model)) from error
            try:
                yield
            finally:
                self.call("cuMemHostUnregister", address)

    def free_and_total_bytes(self) -> tuple[int, int]:
        """Return how much memory of the device is free, and how much it has."""
        with self.current():
            free, total = self.call("cuMemGetInfo")
        return free, total

    def explain(self, error: CudaError, nbytes: int, mappings: int) -> CudaError:
        """Return *error* with its likely cause on this device, if it says that something ran out.

        It queries how much is free on the device: call it before anything is undone.

        Args:
            error: What the driver answered.
            nbytes: The bytes that the whole operation requested.
            mappings: Mappings held in the reservation, those of the operation included.
        """
        if not isinstance(error, CudaOutOfMemoryError):
            return error
        try:
            free: int | None = self.free_and_total_bytes()[0]
        except CudaError:
            free = None
        attributes = self.info.attributes
        found = diagnose_device(
            Situation(
                call=error.call,
                nbytes=nbytes,
                free_bytes=free,
                mappings=mappings,
                driver_model=self.info.driver_model,
                limits=limits_below_free(
                    mps=bool(attributes.get("mps")), integrated=bool(self.info.integrated)
                ),
                address_limit_bytes=soft_limit("RLIMIT_AS"),
            )
        )
        return error.copy(found)

    def used_bytes(self) -> int | None:
        """Return what is in use on the device; ``None`` where free memory is only a budget.

        Raises:
            CudaError: If the driver call fails.
        """
        if self.info.driver_model in _BUDGETED:
            return None
        free, total = self.free_and_total_bytes()
        return total - free


def _release(loaded: driver.Driver, ordinal: int) -> None:
    if loaded.lost is None:
        try:
            loaded.call("cuDevicePrimaryCtxRelease", ordinal)
        except CudaError:
            return  # the process ends, or the driver has shut down before us


class CallTimes:
    """Nanoseconds of each timed call, in the order they were made. Safe to use from threads.

    Args:
        beat: One word that is counted up with each call, for whoever watches from outside.
    """

    def __init__(self, beat: memoryview | None = None) -> None:
        self._beat = memoryview(array("Q", (0,))) if beat is None else beat
        self._samples: dict[str, array[int]] = {name: array("Q") for name in TIMED}

    def wrap(self, call: Caller) -> Caller:
        """Return *call* with a clock around it; a call that fails is not recorded."""
        samples, beat = self._samples, self._beat

        def timed(name: str, *arguments: Any) -> Any:
            kept = samples.get(name)
            if kept is None:
                return call(name, *arguments)
            began = perf_counter_ns()
            result = call(name, *arguments)
            kept.append(perf_counter_ns() - began)
            beat[0] += 1  # threads may lose a count: that it changes is all that matters
            return result

        return timed

    def take(self) -> Mapping[str, array[int]]:
        """Return what was recorded since the last time, while no thread makes a call."""
        taken = {name: kept[:] for name, kept in self._samples.items() if kept}
        for name in taken:
            del self._samples[name][:]
        return taken


def _inject(call: Caller, driver: driver.Driver, faults: FaultyCalls) -> Caller:
    """Return *call* with the calls that *faults* name failing as if the driver had answered so.

    Raises:
        UsageError: If a fault names a call that is not made on a device.
    """
    faults.check(INJECTABLE)

    def faulty(name: str, *arguments: Any) -> Any:
        fault = faults.next_fault(name)
        if fault is None:
            return call(name, *arguments)
        apply(fault)
        if fault.effect.startswith("SIG") or (fault.effect == "SKIP" and name in _WITH_OUTPUT):
            return call(name, *arguments)
        if fault.effect == "SKIP":
            return None
        raise driver.error_of(name, arguments, fault.effect)

    return faulty
