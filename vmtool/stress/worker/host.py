"""The host's memory under a session: written by address, counted by the kernel."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vmtool.machine import read_facts
from vmtool.memory import open_backing
from vmtool.memory.counters import read_split
from vmtool.results.stress import COUNTERS
from vmtool.stress.worker.contents import FillData, HostContents
from vmtool.stress.worker.expected import (
    assume,
    believe,
    make_rules,
    observe,
    outside,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.faults import FaultyCalls
    from vmtool.results.stress import CounterReading, StressSettings
    from vmtool.stress.worker.checkpoint import CheckedBuffer
    from vmtool.stress.worker.expected import CountingRules


class HostTarget:
    """Implements :class:`vmtool.stress.worker.target.Target`."""

    device = None

    def __init__(self, settings: StressSettings, seed: int, faults: FaultyCalls | None) -> None:
        self.backings = [
            open_backing(
                settings.backing,
                method=method,
                prefault=settings.prefault,
                huge=settings.huge,
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

    def observer(self, subjects: Sequence[CheckedBuffer]) -> HostObserver:
        """Return what asks the kernel about *subjects*."""
        facts = read_facts()
        rules = {
            method: make_rules(method, self._settings, facts) for method in self._settings.methods
        }
        return HostObserver(subjects, rules, self._settings.granule_bytes)

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        """Nothing is kept between rounds."""

    def calls(self, _method_index: int, /) -> tuple[()]:
        """System calls are not timed apart: the phases are made of one or two of them."""
        return ()

    def pooled_bytes(self) -> int:
        """There is no pool."""
        return 0

    def measure_unmapping(self) -> None:
        """No work runs on memory behind the CPU's back."""
        return


class HostObserver:
    """The four ledgers that the kernel keeps of a process and of a range of addresses."""

    ledgers = COUNTERS

    def __init__(
        self, subjects: Sequence[CheckedBuffer], rules: Mapping[str, CountingRules], granule: int
    ) -> None:
        self._subjects = subjects
        self._rules = rules
        self._granule = granule
        self._ranges = [
            (s.reservation.base, s.reservation.base + s.reservation.capacity) for s in subjects
        ]

    def look(
        self, chosen: Sequence[CheckedBuffer], *, settled: bool
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        """Hold the belief about *chosen* against the kernel's counts."""
        process, parts = read_split(self._ranges)
        counts = [parts[self._subjects.index(subject)] for subject in chosen]
        beliefs = [
            believe(s.reservation, s.ever, self._granule, self._rules[s.method], settled=settled)
            for s in chosen
        ]
        if sys.platform == "darwin":  # then the process must do without the ranges
            parts = tuple(assume(s.reservation, self._rules[s.method]) for s in self._subjects)
        return observe(beliefs, counts), outside(process, parts)

    def count_mapped(self) -> int | None:
        """Return how many whole ranges are still mapped; ``None`` if that is not told."""
        _, parts = read_split(self._ranges)
        if any(part.address_space_bytes is None for part in parts):
            return None
        # Something else may have been mapped into a freed range since; a whole one is still there.
        return sum(
            part.address_space_bytes == end - start
            for part, (start, end) in zip(parts, self._ranges, strict=True)
        )
