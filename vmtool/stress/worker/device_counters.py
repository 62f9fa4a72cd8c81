"""A worker's buffers, compared with what the driver of their device counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.device_memory import DeviceMemoryUse, shared_device
from vmtool.memory.counters import read_process
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.results.stress import (
    COUNTERS,
    DEVICE_COUNTERS,
    DEVICE_IN_USE,
    CounterReading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.memory.reservation import Reservation
    from vmtool.results.check_outcomes import Value
    from vmtool.stress.worker.checkpoint import CheckedBuffer

#: Asking costs a microsecond for each handle; larger buffers are not counted.
_MOST_CHUNKS: Final = 1 << 16


class DeviceObserver:
    """Compares buffers with what the driver counts.

    Args:
        context: The device.
        buffers: The buffers; nothing is committed in them yet.
        pooled_bytes: What is charged to pools now, mapped or not.
        alone: Whether no other worker uses the device.
        threads: Of this worker.
        faults: Calls that fail on request. What the driver counts then is ours whatever it says:
            a call that was skipped has succeeded for vmtool only.

    Attributes:
        doubts: By counter, why a difference of it is not ours.
    """

    counters = DEVICE_COUNTERS

    def __init__(
        self,
        context: DeviceContext,
        buffers: Sequence[CheckedBuffer],
        pooled_bytes: Callable[[], int],
        *,
        alone: bool,
        threads: int,
        faults: FaultyCalls | None = None,
    ) -> None:
        self.doubts: dict[str, dict[str, Value]] = {}
        self._context = context
        self._use = DeviceMemoryUse(context)
        self._faults = faults
        self._buffers = buffers
        self._pooled_bytes = pooled_bytes
        self._alone = alone
        self._threads = threads
        # The location is a part of the description and dangles without it.
        self._access = context.driver.access(context.info.ordinal)
        self._used_before = self._used() or 0

    def compare_counters(
        self,
        chosen: Sequence[CheckedBuffer],
        *,
        settled: bool,  # noqa: ARG002 - device memory is there from the commit on
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        everything = len(chosen) == len(self._buffers) or self._threads == 1
        expected, used = self._expected(), self._used() if everything else None
        grown = None if used is None else used - self._used_before
        mappings = self._mappings(chosen)
        accounted = mappings.observed is None or mappings.agrees
        observed = None if grown is None else max(grown, 0)
        if grown is not None and accounted and self._is_others(grown - expected):
            self.doubts["device_memory"] = shared_device(others_bytes=grown - expected)
            observed = None
        memory = CounterReading(
            "device_memory",
            expected,
            observed,
            max(expected - DEVICE_TOLERANCE_BYTES, 0),
            expected + DEVICE_TOLERANCE_BYTES,
        )
        process = read_process()
        beyond: dict[str, int | None] = {
            name: getattr(process, name if name == "mappings" else f"{name}_bytes")
            for name in COUNTERS
        }
        ours = self._use.ours or self._faults is not None
        name = "device_memory" if ours else DEVICE_IN_USE
        beyond[name] = None if grown is None else grown - expected
        return (memory, mappings), beyond

    def count_mapped(self) -> int:
        used = self._used()
        if used is not None:
            grown = used - self._used_before - self._pooled_bytes()
            if grown > DEVICE_TOLERANCE_BYTES and not self._is_others(grown):
                return len(self._buffers)
        return sum(not buffer.reservation.closed for buffer in self._buffers)

    def _expected(self) -> int:
        """Return what is committed or lost in buffers that no pool is charged for, and pooled."""
        return self._pooled_bytes() + sum(
            buffer.reservation.blocks.total + buffer.reservation.quarantined.total
            for buffer in self._buffers
            if buffer.method != "pooled"
        )

    def _mappings(self, chosen: Sequence[CheckedBuffer]) -> CounterReading:
        expected = 0
        observed: int | None = 0
        for buffer in chosen:
            reservation = buffer.reservation
            chunk = reservation.granularity
            expected += reservation.blocks.total // chunk
            if reservation.blocks.total // chunk > _MOST_CHUNKS or self._context.lost:
                observed = None
            elif observed is not None:
                for start, end in list(reservation.blocks):
                    observed += sum(
                        self._mapped(reservation, at) for at in range(start, end, chunk)
                    )
        return CounterReading("device_mappings", expected, observed, expected, expected)

    def _mapped(self, reservation: Reservation, offset: int) -> bool:
        try:
            access = self._context.call(
                "cuMemGetAccess", self._access.location, reservation.base + offset
            )
        except CudaError:
            if self._context.lost:
                raise
            return False
        return bool(access)

    def _used(self) -> int | None:
        if self._context.lost or not (self._alone or self._use.ours):
            return None
        return self._use.read()

    def _is_others(self, change: int) -> bool:
        """Return whether a *change* is another process's, because every call of ours succeeded."""
        faulty = self._faults is not None and bool(self._faults.applied)
        return not faulty and self._use.others_grew(change, DEVICE_TOLERANCE_BYTES)
