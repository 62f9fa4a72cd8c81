"""A device's memory under a session: its pools, its clocks, and what is written there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory import device_ordinal, open_device
from vmtool.memory.cuda.calls import TIMED, CallTimes
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.pool import HandlePool
from vmtool.memory.cuda.unmapping import measure_unmapping
from vmtool.memory.governor import Tier
from vmtool.results import CallResult, UnmapResult
from vmtool.stats import Histogram, summarize
from vmtool.stress.device_contents import DeviceContents
from vmtool.stress.device_ledgers import DeviceObserver
from vmtool.stress.plan import live_limit, worker_budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.faults import FaultyCalls
    from vmtool.memory.governor import Governor
    from vmtool.results import StressSettings
    from vmtool.stress.checkpoint import Subject


class DeviceGround:
    """Implements :class:`vmtool.stress.ground.Ground`."""

    def __init__(
        self, settings: StressSettings, governor: Governor, faults: FaultyCalls | None
    ) -> None:
        self._settings = settings
        self._governor = governor
        self._times = [CallTimes() for _ in settings.methods]
        # All of them now: what grows while it runs looks like a leak.
        self._calls = [{name: Histogram() for name in TIMED} for _ in settings.methods]
        # One of its own for writing and looking: out of the methods' clocks, and without faults.
        self._context = DeviceContext(device_ordinal(settings.backing) or 0)
        self.device = self._context.info.name
        self.backings = [
            open_device(
                settings.backing,
                method=method,
                chunk=settings.chunk_bytes,
                retain=settings.retain_bytes if method == "pooled" else None,
                governor=governor,
                times=times,
                faults=faults,
            )
            for method, times in zip(settings.methods, self._times, strict=True)
        ]

    def witness(self, buffer: VirtualBuffer, buffer_id: int) -> DeviceContents:
        """Return what fills *buffer* on the device and reads it back."""
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

    def observer(self, subjects: Sequence[Subject]) -> DeviceObserver:
        """Return what asks the driver about *subjects*."""
        settings = self._settings
        return DeviceObserver(
            self._context,
            subjects,
            self.pooled_bytes,
            alone=settings.workers == 1,
            threads=settings.threads,
        )

    def turn(self, last: int | None, coming: int | None, *, warm_up: bool) -> None:
        """Keep the calls of a round, empty its pool, and fill that of the next.

        A pool is measured as it works in the long run: filled, by calls that are not timed.
        """
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
        """Return the latencies of each driver call of a method so far."""
        found = {name: kept.data() for name, kept in self._calls[method_index].items()}
        return tuple(
            CallResult(name, summarize(data), data) for name, data in found.items() if data.count
        )

    def pooled_bytes(self) -> int:
        """Return what is charged to pools, whether it is mapped or not."""
        pools = (self._pool(index) for index in range(len(self.backings)))
        return sum(pool.snapshot().charged_bytes for pool in pools if pool is not None)

    def measure_unmapping(self) -> UnmapResult:
        """Tell whether unmapping waits for running work, within what the budget has left."""
        for index in range(len(self.backings)):
            if (pool := self._pool(index)) is not None:
                pool.trim()
        ledger = self._governor.ledger(Tier.DEVICE)
        free = worker_budget(self._settings) - ledger.used_bytes
        found = measure_unmapping(
            self._settings.backing, chunk=self._settings.chunk_bytes, budget_bytes=free
        )
        return UnmapResult(
            waited=found.waited,
            rounds=len(found.idle_ns),
            idle_ns=_median(found.idle_ns),
            busy_ns=_median(found.busy_ns),
            work_ns=_median(found.work_ns),
            idle_synchronise_ns=_median(found.synchronise_ns),
        )

    def _pool(self, index: int) -> HandlePool | None:
        source = self.backings[index].source
        return source if isinstance(source, HandlePool) else None

    def _keep(self, index: int, *, drop: bool) -> None:
        for name, samples in self._times[index].take().items():
            if not drop:
                self._calls[index][name].extend(samples)


def _median(samples: Sequence[int]) -> int:
    return sorted(samples)[len(samples) // 2] if samples else 0
