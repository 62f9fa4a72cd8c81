"""Buffers compared with what the kernel counts of the process and of their ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory.counters import read_node_bytes, read_split
from vmtool.results.stress import COUNTERS
from vmtool.stress.worker.expected_counters import compare, expect, expect_on_macos, process_rest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import CounterReading
    from vmtool.stress.worker.expected_counters import CountingRules
    from vmtool.stress.worker.target import CheckedBuffer


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
