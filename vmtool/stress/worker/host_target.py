"""The memory of the host that a session runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import open_backing
from vmtool.results.stress import base_method
from vmtool.stress.worker.expected_counters import counting_rules
from vmtool.stress.worker.host_contents import FillData, HostContents
from vmtool.stress.worker.host_counters import HostObserver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.stress import StressSettings
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
