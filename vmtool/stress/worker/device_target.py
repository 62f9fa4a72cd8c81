"""A CUDA device that a session runs on: its backings and pools, and what unmapping costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.errors import RefusedError, UnavailableError
from vmtool.histograms import Histogram, summarize
from vmtool.machine.device_facts import access_costs, is_fresh_zero
from vmtool.memory.backing_by_name import device_ordinal, open_device
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import TIMED, CallTimes, DeviceContext
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.handles import HandlePool
from vmtool.memory.errors import OutOfMemoryError
from vmtool.memory.governor import Tier
from vmtool.results.stress import (
    CallResult,
    UnmapResult,
)
from vmtool.stress.plan import device_peers, live_limit, worker_budget
from vmtool.stress.worker.device_contents import DeviceContents
from vmtool.stress.worker.device_counters import DeviceObserver
from vmtool.stress.worker.unmap_waits_for_work import measure_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.governor import Governor
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.checkpoint import CheckedBuffer


class DeviceTarget:
    """A CUDA device under a session: written by copies, counted by the driver.

    Args:
        settings: What the worker will do.
        backing: On which device, such as ``cuda:0``.
        governor: Whose ledger is charged.
        faults: Calls that shall fail.
        beat: One word that each timed call counts up, so that thousands of them are no hang.
    """

    def __init__(
        self,
        settings: StressSettings,
        backing: str,
        governor: Governor,
        faults: FaultyCalls | None,
        beat: memoryview,
    ) -> None:
        self._settings = settings
        self._backing = backing
        self._governor = governor
        self._faults = faults
        self._beat = beat
        self.beside_work = False
        self._times = [CallTimes(beat) for _ in settings.methods]
        # All of them now: what grows while it runs looks like a leak.
        self._calls = [{name: Histogram() for name in TIMED} for _ in settings.methods]
        # One of its own for writing and looking: out of the methods' clocks, and without faults.
        self._context = DeviceContext(device_ordinal(backing) or 0)
        self.device = self._context.info.name
        peers = device_peers(settings, backing)
        self._plain = CudaBacking(self._context, chunk=settings.chunk_bytes, peers=peers)
        self.backings = [
            open_device(
                backing,
                method=method,
                chunk=settings.chunk_bytes,
                retain=settings.retain_bytes if method == "pooled" else None,
                clear=settings.clear,
                peers=peers,
                governor=governor,
                times=times,
                faults=faults,
            )
            for method, times in zip(settings.methods, self._times, strict=True)
        ]

    def contents(self, buffer: VirtualBuffer, buffer_id: int) -> DeviceContents:
        settings = self._settings
        return DeviceContents(
            DeviceCopies(self._context),
            buffer.reservation,
            settings.granule_bytes,
            buffer_id=buffer_id,
            touch=settings.touch,
            verify=settings.verify,
            zeroes=buffer.backing.zeroes,
        )

    def observer(self, buffers: Sequence[CheckedBuffer]) -> DeviceObserver:
        settings = self._settings
        return DeviceObserver(
            self._context,
            buffers,
            self.pooled_bytes,
            alone=settings.workers == len(settings.places),
            threads=settings.threads,
            faults=self._faults,
        )

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        # A pool is measured as it works in the long run: filled, by calls that are not timed.
        if last is not None:
            self._keep(last, drop=warm_up)
        if last != coming and last is not None and (pool := self._pool(last)) is not None:
            pool.trim()
            self._keep(last, drop=True)
        if coming is not None and (pool := self._pool(coming)) is not None:
            settings = self._settings
            pool.fill(live_limit(settings) * settings.granule_bytes * settings.threads)
            self._keep(coming, drop=True)

    def calls(self, method_index: int, /) -> tuple[CallResult, ...]:
        found = {name: kept.data() for name, kept in self._calls[method_index].items()}
        return tuple(
            CallResult(name, summarize(data), data) for name, data in found.items() if data.count
        )

    def pooled_bytes(self) -> int:
        pools = (self._pool(index) for index in range(len(self.backings)))
        return sum(pool.snapshot().charged_bytes for pool in pools if pool is not None)

    def measure_unmapping(self) -> UnmapResult:
        for index in range(len(self.backings)):
            if (pool := self._pool(index)) is not None:
                pool.trim()
        # A full device, or a driver without these calls: the run was complete, the rest is measured.
        try:
            result = self._measure_waiting()
        except (OutOfMemoryError, RefusedError, UnavailableError) as error:
            result = UnmapResult(not_measured=str(error))
            self._set_beside_work(False)
        with suppress(OutOfMemoryError, UnavailableError):
            result = replace(result, fresh_zero=is_fresh_zero(self._backing))
        with suppress(OutOfMemoryError, UnavailableError):
            result = replace(result, access_ns=access_costs(self._plain))
        return result

    def _measure_waiting(self) -> UnmapResult:
        used = self._governor.ledger(Tier.DEVICE).used_bytes
        free = worker_budget(self._settings) - used
        found = measure_waiting(
            self._backing,
            chunk=self._settings.chunk_bytes,
            budget_bytes=free,
            beat=self._beat,
            working=self._set_beside_work,
        )
        return UnmapResult(
            waited=found.unmap.waits,
            rounds=len(found.unmap.idle_ns),
            idle_ns=_median(found.unmap.idle_ns),
            busy_ns=_median(found.unmap.busy_ns),
            work_ns=found.work_ns,
            idle_synchronise_ns=_median(found.synchronise_ns),
            left_ns=_median(found.unmap.left_ns),
            release_waited=found.release.waits,
            release_idle_ns=_median(found.release.idle_ns),
            release_busy_ns=_median(found.release.busy_ns),
            release_left_ns=_median(found.release.left_ns),
        )

    def _set_beside_work(self, running: bool) -> None:
        self.beside_work = running

    def _pool(self, index: int) -> HandlePool | None:
        source = self.backings[index].source
        return source if isinstance(source, HandlePool) else None

    def _keep(self, index: int, *, drop: bool) -> None:
        for name, samples in self._times[index].take().items():
            if not drop:
                self._calls[index][name].extend(samples)


def _median(samples: Sequence[int]) -> int | None:
    return sorted(samples)[len(samples) // 2] if samples else None
