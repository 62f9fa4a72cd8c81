"""The memory that a session runs on: the interface that every kind has, and the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import open_backing
from vmtool.results.stress import base_method
from vmtool.stress.worker.host_contents import FillData, HostContents
from vmtool.stress.worker.host_counters import HostObserver, counting_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.stress import CallResult, StressSettings, UnmapResult
    from vmtool.stress.worker.checkpoint import CheckedBuffer, CounterObserver
    from vmtool.stress.worker.host_contents import Contents


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


class HostTarget:
    """The host's memory under a session."""

    device = None
    beside_work = False

    def __init__(self, settings: StressSettings, seed: int, faults: FaultyCalls | None) -> None:
        self.backings = [
            open_backing(
                settings.backing,
                method=base_method(method),
                prefault=settings.prefault,
                huge=settings.uses_huge(method),
                huge_page_bytes=settings.huge_page_bytes,
                node=settings.node,
                faults=faults,
            )
            for method in settings.methods
        ]
        self._settings = settings
        self._seed = seed
        self._fill_data: dict[int, FillData] = {}

    def contents(self, buffer: VirtualBuffer, buffer_id: int) -> HostContents:
        """Return what writes to *buffer* and checks it; one thread's buffers share a fill."""
        settings = self._settings
        thread = buffer_id // len(self.backings)
        if thread not in self._fill_data:
            self._fill_data[thread] = FillData(settings.granule_bytes, self._seed)
        return HostContents(
            buffer.base,
            settings.capacity_bytes,
            settings.granule_bytes,
            self._fill_data[thread],
            buffer_id=buffer_id,
            touch=settings.touch,
            verify=settings.verify,
            zeroes=buffer.backing.zeroes,
        )

    def observer(self, buffers: Sequence[CheckedBuffer]) -> HostObserver:
        facts = read_facts()
        rules = {
            method: counting_rules(method, self._settings, facts)
            for method in self._settings.methods
        }
        return HostObserver(buffers, rules, self._settings.granule_bytes, node=self._settings.node)

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        del last, coming, warm_up  # nothing is kept between rounds

    def calls(self, _method_index: int, /) -> tuple[()]:
        return ()  # system calls are not timed apart: a phase is one or two of them

    def pooled_bytes(self) -> int:
        return 0

    def measure_unmapping(self) -> None:
        return  # no work runs on memory behind the CPU's back
