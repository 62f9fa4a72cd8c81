"""What vmtool believes its buffers hold of a device, against what the driver counts.

===============  =========================================================================
ledger           tolerance
===============  =========================================================================
device memory    what is in use beyond the start, 64 MiB up or down: the driver keeps tables
                 of its own, and counts whoever else uses the device. Not told with several
                 workers or under WDDM, whose free memory is a budget; nor of one thread
                 while others run
device mappings  none: every handle that is committed is asked for its access. The driver is
                 not asked about gaps: what it answers there is not documented
===============  =========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.memory.counters import read_process
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.cuda.errors import CudaError
from vmtool.results import DEVICE_LEDGERS, LEDGERS, LedgerReading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vmtool.memory.backing import Reservation
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.stress.checkpoint import Subject

#: Asking costs a microsecond for each handle; larger buffers are not counted.
_MOST_CHUNKS: Final = 1 << 16


class DeviceObserver:
    """Implements :class:`vmtool.stress.ground.Observer`.

    Args:
        context: The device.
        subjects: The buffers; nothing is committed in them yet.
        pooled_bytes: What is charged to pools now, mapped or not.
        alone: Whether no other worker uses the device.
        threads: Of this worker.
    """

    ledgers = DEVICE_LEDGERS

    def __init__(
        self,
        context: DeviceContext,
        subjects: Sequence[Subject],
        pooled_bytes: Callable[[], int],
        *,
        alone: bool,
        threads: int,
    ) -> None:
        self._context = context
        self._subjects = subjects
        self._pooled_bytes = pooled_bytes
        self._alone = alone
        self._threads = threads
        # The location is a part of the description and dangles without it.
        self._access = context.driver.access(context.info.ordinal)
        self._used_before = self._used() or 0

    def look(
        self,
        chosen: Sequence[Subject],
        *,
        settled: bool,  # noqa: ARG002 - device memory is there from the commit on
    ) -> tuple[tuple[LedgerReading, ...], Mapping[str, int | None]]:
        """Hold the belief about *chosen* against the driver's counts."""
        everything = len(chosen) == len(self._subjects) or self._threads == 1
        believed, used = self._believed(), self._used() if everything else None
        grown = None if used is None else used - self._used_before
        memory = LedgerReading(
            "device_memory",
            believed,
            None if grown is None else max(grown, 0),
            max(believed - DEVICE_TOLERANCE_BYTES, 0),
            believed + DEVICE_TOLERANCE_BYTES,
        )
        process = read_process()
        beyond: dict[str, int | None] = {
            name: getattr(process, name if name == "mappings" else f"{name}_bytes")
            for name in LEDGERS
        }
        beyond["device_memory"] = None if grown is None else grown - believed
        return (memory, self._mappings(chosen)), beyond

    def still_held(self) -> int:
        """Return how many buffers are not closed, or all if the device has not got back its memory."""
        used = self._used()
        if (
            used is not None
            and used - self._used_before - self._pooled_bytes() > DEVICE_TOLERANCE_BYTES
        ):
            return len(self._subjects)
        return sum(not subject.reservation.closed for subject in self._subjects)

    def _believed(self) -> int:
        """Return what is committed or lost in buffers that no pool is charged for, and pooled."""
        return self._pooled_bytes() + sum(
            subject.reservation.blocks.total + subject.reservation.quarantined.total
            for subject in self._subjects
            if subject.method != "pooled"
        )

    def _mappings(self, chosen: Sequence[Subject]) -> LedgerReading:
        believed = 0
        observed: int | None = 0
        for subject in chosen:
            reservation = subject.reservation
            chunk = reservation.granularity
            believed += reservation.blocks.total // chunk
            if reservation.blocks.total // chunk > _MOST_CHUNKS or self._context.lost:
                observed = None
            elif observed is not None:
                for start, end in list(reservation.blocks):
                    observed += sum(
                        self._mapped(reservation, at) for at in range(start, end, chunk)
                    )
        return LedgerReading("device_mappings", believed, observed, believed, believed)

    def _mapped(self, reservation: Reservation, offset: int) -> bool:
        try:
            access = self._context.call(
                "cuMemGetAccess", self._access.location, reservation.base + offset
            )
        except CudaError:
            return False
        return bool(access)

    def _used(self) -> int | None:
        return self._context.used_bytes_if_told() if self._alone else None
