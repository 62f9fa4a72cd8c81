"""The operations of a replay on real memory: carried out, timed and checked."""

from __future__ import annotations

import mmap
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from vmtool.errors import CheckFailedError, UnavailableError, UsageError
from vmtool.histograms import BatchedHistogram, summarize
from vmtool.machine import read_facts
from vmtool.machine.device_facts import is_fresh_zero, read_device_of
from vmtool.memory.addresses import window
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import BudgetError, Governor, Tier
from vmtool.results.kv_replay import HeldBytes, RealRun, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.handles import HandlePool
    from vmtool.replay.account import Holder, Piece, Place

    #: Reservation, offset, source, offset there, bytes.
    Share: TypeAlias = Callable[[Any, int, Any, int, int], None]

#: One call each, and all calls of an admission, of a step or of an end.
OPERATIONS: Final = (
    *("reserve", "commit", "touch", "share", "unshare", "release", "unreserve"),
    *("admission", "step", "end"),
)

now = perf_counter_ns


class Stopwatch:
    """Durations by operation."""

    def __init__(self) -> None:
        self._histograms = {name: BatchedHistogram() for name in OPERATIONS}

    def add(self, operation: str, elapsed_ns: int) -> None:
        """Add one sample."""
        self._histograms[operation].add(elapsed_ns)

    def timings(self) -> tuple[Timing, ...]:
        """Return what was measured, without operations that did not happen."""
        found = {name: histogram.data() for name, histogram in self._histograms.items()}
        return tuple(
            Timing(name, data.sum_ns, summarize(data), data)
            for name, data in found.items()
            if data.count
        )


class RealMemory:
    """Carries out a replay's operations; implements :class:`vmtool.replay.account.Memory`.

    Args:
        backing: Where the memory comes from.
        governor: With the budget of the replay.
        pool: What keeps released handles, or ``None``.
        touch: Whether each page is written to after its commit, so that its fault counts too. Not
            on a device: its memory is there once committed, and the CPU cannot write to it.
        share: How a span is mapped into another reservation as well, or ``None`` if it cannot be.
        retains: Whether the pool keeps what is released; else it only counts the users of handles.
    """

    def __init__(
        self,
        backing: VirtualBacking,
        governor: Governor,
        pool: HandlePool | None = None,
        *,
        touch: bool = False,
        share: Share | None = None,
        retains: bool = False,
    ) -> None:
        self._backing = backing
        self._share = share
        self._retains = retains
        self._governor = governor
        self._pool = pool
        self._touch = touch and backing.tier is not Tier.DEVICE
        self._bytes: dict[int, memoryview] = {}  # of what is touched, by arena
        self._buffers: dict[int, VirtualBuffer] = {}
        self._expected: dict[int, int] = {}  # bytes committed, by arena
        self._shared: dict[int, list[Piece]] = {}  # and those that others have too
        self._holders: dict[int, Holder] = {}
        self._held: dict[str, int] = {}  # bytes committed, by holder
        self._most_held: tuple[HeldBytes, ...] = ()  # at the peak
        self._peak = 0
        self._watch = Stopwatch()
        self._stepping = self._stalled = self._stall_ns = self._checks = 0

    def reserve(self, arena: int, nbytes: int, holder: Holder) -> None:
        start = now()
        buffer = VirtualBuffer(self._backing, nbytes, governor=self._governor, holder="kv-replay")
        self._watch.add("reserve", now() - start)
        self._buffers[arena] = buffer
        if self._touch:
            self._bytes[arena] = window(buffer.base, nbytes)
        self._expected[arena] = 0
        self._holders[arena] = holder

    def map_shared(self, arena: int, source: int, places: Sequence[Place]) -> None:
        if self._share is None:
            return
        reservation = self._buffers[arena].reservation
        shared = self._shared.setdefault(arena, [])
        for offset, source_offset, nbytes in places:
            start = now()
            self._share(
                reservation, offset, self._buffers[source].reservation, source_offset, nbytes
            )
            self._watch.add("share", now() - start)
            shared.append((offset, nbytes))
            self._expected[arena] += nbytes
        self._check_buffer(arena)

    def unmap_shared(self, arena: int) -> None:
        for offset, nbytes in self._shared.pop(arena, ()):
            start = now()
            self._buffers[arena].release(offset, nbytes)
            self._watch.add("unshare", now() - start)
            self._expected[arena] -= nbytes
        self._check_buffer(arena)

    def commit(self, arena: int, spans: Sequence[Piece], slack_ns: int | None) -> None:
        buffer, watch = self._buffers[arena], self._watch
        together = 0
        for offset, nbytes in spans:
            start = now()
            try:
                buffer.commit(offset, nbytes)
            except BudgetError as error:
                raise CheckFailedError(
                    f"refused, although the simulation allows it: {error}"
                ) from error
            elapsed = now() - start
            watch.add("commit", elapsed)
            together += elapsed
            self._change(arena, nbytes)
            if self._touch:
                together += self._touch_pages(arena, offset, nbytes)
        self._check_buffer(arena)
        if slack_ns is None:
            watch.add("admission", together)
            return
        watch.add("step", together)
        self._stepping += 1
        if together > slack_ns:
            self._stalled += 1
            self._stall_ns += together - slack_ns

    def release(self, arena: int, spans: Sequence[Piece]) -> None:
        buffer = self._buffers[arena]
        together = 0
        for offset, nbytes in spans:
            start = now()
            buffer.release(offset, nbytes)
            elapsed = now() - start
            self._watch.add("release", elapsed)
            together += elapsed
            self._change(arena, -nbytes)
        self._check_buffer(arena)
        self._watch.add("end", together)

    def unreserve(self, arena: int) -> None:
        if self._expected[arena]:
            raise CheckFailedError(f"{self._expected[arena]} bytes are committed where none should")
        self._bytes.pop(arena, None)
        start = now()
        self._buffers[arena].close()
        self._watch.add("unreserve", now() - start)
        del self._buffers[arena], self._expected[arena], self._holders[arena]

    def trim(self) -> None:
        if self._pool is not None:
            self._pool.trim()

    def check(self, committed: int, pooled: int) -> None:
        self._checks += 1
        charged = self._governor.ledger(self._backing.tier).used_bytes
        kept = 0
        if self._pool is not None:
            kept = self._pool.snapshot().pooled * self._pool.nbytes
        if (charged, kept) != (committed + pooled, pooled):
            raise CheckFailedError(
                f"{charged} bytes are leased and {kept} pooled; the simulation has {committed} "
                f"committed and {pooled} pooled"
            )

        if charged > self._peak:
            self._peak = charged
            held = {**self._held, "the pool": kept}
            self._most_held = tuple(HeldBytes(*item) for item in held.items() if item[1])

    def result(self) -> RealRun:
        """Return what was measured.

        Raises:
            CudaError: If a device fails when its fresh memory is read.
        """
        machine = replace(read_facts(), device=read_device_of(self._backing.name))
        if machine.device is not None:
            zero = is_fresh_zero(self._backing.name)
            machine = replace(machine, device=replace(machine.device, fresh_zero=zero))
        return RealRun(
            backing=self._backing.name,
            method="cold" if self._pool is not None and not self._retains else self._backing.method,
            granule_bytes=self._backing.granularity,
            touched=self._touch,
            populated=self._backing.populates,
            timings=self._watch.timings(),
            stepping_commits=self._stepping,
            stalled_steps=self._stalled,
            stall_ns=self._stall_ns,
            checks=self._checks,
            ledger_peak_bytes=self._governor.ledger(self._backing.tier).peak_bytes,
            held=self._most_held,
            machine=machine,
        )

    def close(self) -> None:
        """Give back whatever is left, as after an error; a second call is a no-op."""
        self._bytes.clear()
        while self._buffers:
            self._buffers.popitem()[1].close()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(self, arena: int, nbytes: int) -> None:
        holder = self._holders[arena]
        self._expected[arena] += nbytes
        self._held[holder] = self._held.get(holder, 0) + nbytes

    def _touch_pages(self, arena: int, offset: int, nbytes: int) -> int:
        """Write to each page, as an engine does that fills it; how long it took."""
        zeros = bytes(-(-nbytes // mmap.PAGESIZE))
        start = now()
        self._bytes[arena][offset : offset + nbytes : mmap.PAGESIZE] = zeros
        elapsed = now() - start
        self._watch.add("touch", elapsed)
        return elapsed

    def _check_buffer(self, arena: int) -> None:
        self._checks += 1
        found, expected = self._buffers[arena].committed, self._expected[arena]
        if found != expected:
            raise CheckFailedError(f"{found} bytes are committed instead of {expected}")


def open_memory(
    backing: VirtualBacking, granule: int, budget: int, retain: int = 0, *, touch: bool = True
) -> RealMemory:
    """Return real memory for a replay.

    Args:
        backing: The host's or a device's, as :func:`vmtool.open_backing` gives it.
        granule: The granule of the replay: a multiple of the backing's on the host, the size of a
            handle on a device.
        budget: Bytes that may be committed and kept.
        retain: Bytes of released memory that may be kept.
        touch: Whether each page is written to after its commit, where the CPU can.

    Raises:
        UsageError: If the granule is not legal there.
        UnavailableError: If released memory cannot be kept there.
    """
    governor = Governor({backing.tier: budget})
    if backing.tier is not Tier.DEVICE:
        if granule % backing.granularity:
            legal = -(-granule // backing.granularity) * backing.granularity
            raise UsageError(
                f"a granule of {granule} bytes is not a multiple of the granularity of {backing.name},"
                f" {backing.granularity} bytes",
                hint=f"use --granule {legal}",
            )
        if retain:
            raise UnavailableError(
                "the host cannot keep released memory for another range",
                hint="leave out --retain, simulate, or use --backing cuda",
            )
        return RealMemory(backing, governor, touch=touch)
    return _on_device(backing, governor, granule, retain)


def _on_device(
    backing: VirtualBacking, governor: Governor, granule: int, retain: int
) -> RealMemory:
    from vmtool.memory.cuda.backing import CudaBacking  # noqa: PLC0415 - only where there is one
    from vmtool.memory.cuda.handles import HandlePool  # noqa: PLC0415

    assert isinstance(backing, CudaBacking)  # noqa: S101 - the only one of its tier
    # Without *retain* it keeps nothing, but lets several sequences map the handles of a prefix; what
    # it maps is then always new, and not cleared.
    pool = HandlePool(
        backing.context,
        granule,
        backing.properties,
        governor=governor,
        retain_bytes=retain,
        clear=bool(retain),
    )
    pooled = CudaBacking(backing.context, chunk=granule, source=pool)
    return RealMemory(pooled, governor, pool, share=pooled.share, retains=bool(retain))
