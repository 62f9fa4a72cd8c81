"""What a session asks of the kind of memory it runs on; one implementation each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vmtool.memory import device_ordinal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.faults import FaultyCalls
    from vmtool.memory.governor import Governor
    from vmtool.results.stress import (
        CallResult,
        CounterReading,
        StressSettings,
        UnmapResult,
    )
    from vmtool.stress.worker.checkpoint import CheckedBuffer


class Contents(Protocol):
    """Writes what belongs in each granule of one buffer, and checks that it is there."""

    def write_and_time(self, first: int, count: int, generation: int) -> int:
        """Touch *count* freshly committed granules; return the nanoseconds that took.

        Raises:
            CorruptionError: If fresh memory is not as promised.
        """

    def check(self, first: int, count: int) -> int:
        """Check granules about to be released; return the nanoseconds that took.

        Raises:
            CorruptionError: If one does not hold what was written.
        """


class CounterObserver(Protocol):
    """Counts, outside of vmtool, what its buffers hold."""

    @property
    def ledgers(self) -> Sequence[str]:
        """What it counts, in the order of its readings."""

    def look(
        self, chosen: Sequence[CheckedBuffer], *, settled: bool
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        """Hold vmtool's belief about *chosen* against the counts.

        Args:
            chosen: The buffers that nobody changes meanwhile.
            settled: False after a failure, when the last commit may not have been touched.

        Returns:
            The readings, and what the process has beyond its buffers, by ledger.
        """

    def count_mapped(self) -> int | None:
        """Return how many buffers' ranges are still there after closing; ``None`` if not told."""


class Target(Protocol):
    """The memory under one worker."""

    @property
    def backings(self) -> Sequence[VirtualBacking]:
        """One for each method."""

    @property
    def device(self) -> str | None:
        """The driver's own name of the device; ``None`` for the host."""

    def contents(self, buffer: VirtualBuffer, buffer_id: int) -> Contents:
        """Return what writes to *buffer* and checks it."""

    def observer(self, subjects: Sequence[CheckedBuffer]) -> CounterObserver:
        """Return what counts the memory of *subjects*, before anything is committed."""

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        """Do what has to be done between a round of method *last* and one of *coming*.

        Args:
            last: The method that ran; ``None`` before the first.
            coming: The method that runs next; ``None`` after the last.
            warm_up: Whether *last* was only a warm-up.

        Raises:
            VmtoolError: If memory cannot be kept ready for *coming*.
        """

    def calls(self, method_index: int, /) -> tuple[CallResult, ...]:
        """Return the latencies of each driver call of a method so far."""

    def pooled_bytes(self) -> int:
        """Return what is charged to pools, whether it is mapped or not."""

    def measure_unmapping(self) -> UnmapResult | None:
        """Tell whether unmapping waits for running work; ``None`` where there is no such thing.

        Raises:
            VmtoolError: If the memory for it cannot be had.
        """


def open_target(
    settings: StressSettings, seed: int, governor: Governor, faults: FaultyCalls
) -> Target:
    """Open the memory that *settings* name.

    Args:
        settings: What the worker will do.
        seed: Decides what is written.
        governor: Whose ledger is charged.
        faults: Calls that shall fail.

    Raises:
        VmtoolError: If this machine has no such memory, or a fault names a call that is not made.
    """
    injected = faults if settings.inject else None
    if device_ordinal(settings.backing) is None:
        from vmtool.stress.worker.host import HostTarget  # noqa: PLC0415 - the other is not loaded

        return HostTarget(settings, seed, injected)
    from vmtool.stress.worker.device import DeviceTarget  # noqa: PLC0415 - it needs the bindings

    return DeviceTarget(settings, governor, injected)
