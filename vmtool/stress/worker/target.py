"""What a session needs from the kind of memory that it runs on; one implementation for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.reservation import Reservation
    from vmtool.memory.span_map import SpanMap
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import CallResult, CounterReading, UnmapResult
    from vmtool.stress.worker.contents import Contents


class CheckedBuffer:
    """One buffer as the checkpoints see it.

    Attributes:
        reservation: Its range, and what is committed in it.
        ever_committed: Every span that was ever committed in it.
        method: How.
    """

    __slots__ = ("ever_committed", "method", "reservation")

    def __init__(self, reservation: Reservation, ever_committed: SpanMap, method: str) -> None:
        self.reservation = reservation
        self.ever_committed = ever_committed
        self.method = method


class CounterObserver(Protocol):
    """Asks the kernel or driver what the buffers hold."""

    @property
    def counters(self) -> Sequence[str]:
        """What it counts, in the order of its readings."""

    @property
    def doubts(self) -> Mapping[str, Mapping[str, Value]]:
        """By counter, why a difference of it may not be this process's: the values of its check."""

    def compare_counters(
        self, chosen: Sequence[CheckedBuffer], *, settled: bool
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        """Compare what vmtool expects of *chosen* with what is counted.

        Args:
            chosen: The buffers that nobody changes meanwhile.
            settled: False after a failure, when the last commit may not have been touched.

        Returns:
            The readings, and what the process has beyond its buffers, by counter.
        """

    def count_mapped(self) -> int | None:
        """Return how many buffers' ranges are still mapped; ``None`` if that is not available."""


class Target(Protocol):
    """The memory under one worker."""

    @property
    def backings(self) -> Sequence[VirtualBacking]:
        """One for each method."""

    @property
    def device(self) -> str | None:
        """The driver's own name of the device; ``None`` for the host."""

    @property
    def beside_work(self) -> bool:
        """Whether :meth:`measure_unmapping` is, or failed, where other work ran beside its calls."""

    def contents(self, buffer: VirtualBuffer, buffer_id: int) -> Contents:
        """Return what writes to *buffer* and checks it."""

    def observer(self, buffers: Sequence[CheckedBuffer]) -> CounterObserver:
        """Return what counts the memory of *buffers*, before anything is committed."""

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
        """Measure whether unmapping waits for running work; ``None`` where there is no such thing.

        Raises:
            VmtoolError: If a call fails other than for lack of memory.
        """
