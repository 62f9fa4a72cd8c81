"""Wrappers of driver calls: timing, and injected faults."""

from __future__ import annotations

from array import array
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.memory.injected_faults import apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vmtool.memory.cuda.driver import Driver
    from vmtool.memory.injected_faults import FaultyCalls

    #: ``call(name, *arguments)`` as :meth:`vmtool.memory.cuda.driver.Driver.call` has it.
    Caller = Callable[..., Any]

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


def inject(call: Caller, driver: Driver, faults: FaultyCalls) -> Caller:
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
