"""The host's memory that a session runs on: written by address, counted by the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine import read_facts
from vmtool.memory.counters import read_node_bytes, read_split
from vmtool.memory.open_backing import open_backing
from vmtool.results.stress import COUNTERS, base_method
from vmtool.stress.worker.contents import FillData, HostContents
from vmtool.stress.worker.expected_counters import (
    compare,
    counting_rules,
    expect,
    expect_on_macos,
    process_rest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import CounterReading, StressSettings
    from vmtool.stress.worker.expected_counters import CountingRules
    from vmtool.stress.worker.target import CheckedBuffer


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


class HostObserver:
    """The counters that the kernel keeps of a process and of a range of addresses.

    Attributes:
        elsewhere_bytes: The most that was on another NUMA node than the chosen one; ``None`` if the
            kernel does not count pages by node.
    """

    counters = COUNTERS

    def __init__(
        self,
        buffers: Sequence[CheckedBuffer],
        rules: Mapping[str, CountingRules],
        granule: int,
        *,
        node: int | None = None,
    ) -> None:
        self.doubts: dict[str, dict[str, Value]] = {}  # the kernel counts this process alone
        self.elsewhere_bytes: int | None = None
        self._node = node
        self._buffers = buffers
        self._rules = rules
        self._granule = granule
        self._ranges = [
            (b.reservation.base, b.reservation.base + b.reservation.capacity) for b in buffers
        ]

    def compare_counters(
        self, chosen: Sequence[CheckedBuffer], *, settled: bool
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        process, parts = read_split(self._ranges)
        counts = [parts[self._buffers.index(buffer)] for buffer in chosen]
        if self._node is not None:
            self._count_elsewhere(self._node, chosen)
        expectations = [
            expect(
                b.reservation,
                b.ever_committed,
                self._granule,
                self._rules[b.method],
                settled=settled,
            )
            for b in chosen
        ]
        if not any(part.address_space_bytes for part in parts):
            # macOS counts nothing by range: the ranges' part of the process is what is expected.
            parts = tuple(
                expect_on_macos(b.reservation, self._rules[b.method]) for b in self._buffers
            )
        return compare(expectations, counts), process_rest(process, parts)

    def _count_elsewhere(self, node: int, chosen: Sequence[CheckedBuffer]) -> None:
        for buffer in chosen:
            found = read_node_bytes(buffer.reservation.base, buffer.reservation.capacity)
            if found is not None:
                elsewhere = sum(nbytes for number, nbytes in found.items() if number != node)
                self.elsewhere_bytes = max(self.elsewhere_bytes or 0, elsewhere)

    def count_mapped(self) -> int | None:
        _, parts = read_split(self._ranges)
        if any(part.address_space_bytes is None for part in parts):
            return None
        # Something else may have been mapped into a freed range since; a whole one is still there.
        return sum(
            part.address_space_bytes == end - start
            for part, (start, end) in zip(parts, self._ranges, strict=True)
        )
