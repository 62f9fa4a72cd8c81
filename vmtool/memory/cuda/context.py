"""One device's context: retained while anything needs it, current only during a call."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vmtool.memory.cuda import call_wrappers, diagnosis, driver
from vmtool.memory.cuda.devices import DeviceInfo, device, require_vmm
from vmtool.memory.cuda.errors import CudaError, CudaOutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.memory.injected_faults import FaultyCalls

#: Driver models under which free memory is a budget, and no count.
_BUDGETED: Final = ("wddm", "wsl")


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
        times: call_wrappers.CallTimes | None = None,
        faults: FaultyCalls | None = None,
    ) -> None:
        self.driver = driver.load()
        self.info: DeviceInfo = device(ordinal)
        require_vmm(self.info)
        self.call: call_wrappers.Caller = self.driver.call
        if times is not None:
            self.call = times.wrap(self.call)
        if faults is not None:
            self.call = call_wrappers.inject(self.call, self.driver, faults)
        self._handle: int = self.call("cuDevicePrimaryCtxRetain", ordinal)
        # Finalizers run at exit in the reverse order of their making: after the reservations'.
        self._finalizer = weakref.finalize(self, _release, self.driver, ordinal)

    def close(self) -> None:
        """Let go of the context, once nothing is mapped under it; a second call is a no-op."""
        self._finalizer()

    @property
    def lost(self) -> bool:
        """Whether an error has made the driver unusable (see :data:`errors.LOST_CODES`)."""
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
        found = diagnosis.diagnose_device(
            diagnosis.Situation(
                call=error.call,
                nbytes=nbytes,
                free_bytes=free,
                mappings=mappings,
                driver_model=self.info.driver_model,
                limits=diagnosis.limits_below_free(
                    mps=bool(attributes.get("mps")), integrated=bool(self.info.integrated)
                ),
                address_limit_bytes=diagnosis.address_limit_bytes(),
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
