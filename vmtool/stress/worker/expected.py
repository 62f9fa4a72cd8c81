"""What vmtool believes about the four ledgers of its buffers, held against the kernel's.

==============  ==========================================================================
ledger          tolerance
==============  ==========================================================================
address space   none: all of what was reserved, less what is quarantined
charge          none for ``fixed``. ``protect`` keeps the charge of what was ever committed,
                so it lies between that and what is committed. ``advise`` is never charged
                (``MAP_NORESERVE``), unless ``vm.overcommit_memory`` is 2
resident        none once touched; anything less where there is swap. With ``advise`` a huge
                page may form around a smaller granule, and the rest of it stays when the
                granule is released: up to the huge pages around what was ever committed
mappings        at least one area for each run of granules; at most one for each granule
                ever committed, as neighbours committed out of order do not always join. On
                Windows exactly one for each granule and each gap, or one in all (``decommit``)
==============  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.memory.counters import Counters, read_process
from vmtool.memory.cuda.devices import DEVICE_TOLERANCE_BYTES
from vmtool.memory.cuda.driver import CudaError
from vmtool.results.stress import COUNTERS, DEVICE_COUNTERS, CounterReading, CounterSlope
from vmtool.stats import median_slope, slope
from vmtool.units import MIB, align_down, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import Reservation
    from vmtool.memory.blocks import BlockMap, Span
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.checkpoint import CheckedBuffer

_NEVER_OVERCOMMIT: Final = 2
_HEAP_LEDGERS: Final = ("address_space", "charge", "resident")
#: Methods of Windows that put each granule of the backing as a mapping of its own.
_PER_GRANULE: Final = ("view", "private")
_DEFAULT_PMD: Final = 2 * MIB
#: Growth of the whole process below this is the interpreter's, not a leak: its heap takes memory
#: in arenas of 1 MiB, and a few of them while it warms up. Bytes; mappings are counted.
LEAK_FLOORS: Final = {
    "address_space": 6 * MIB,
    "charge": 6 * MIB,
    "resident": 4 * MIB,
    "mappings": 16,
    "device_memory": 8 * MIB,
}
#: What vmtool itself notes about a granule while it is committed, rounded up (some 300 bytes of
#: Python's integers, tuples and tables). It is taken when more are committed than ever before.
NOTES_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class CountingRules:
    """What decides how the kernel counts one method's buffers.

    Attributes:
        populated: Whether what is committed is resident: touched, or faulted in at commit.
        huge_bytes: The huge page that may form around a small one, or 0.
        swap: Whether pages may be swapped out.
        strict: Whether ``MAP_NORESERVE`` is ignored (``vm.overcommit_memory`` is 2).
    """

    method: str
    populated: bool
    huge_bytes: int
    swap: bool
    strict: bool


def make_rules(method: str, settings: StressSettings, facts: MachineFacts) -> CountingRules:
    """Return the rules for *method* under *settings* on a machine."""
    thp = facts.huge_pages.thp_mode
    may_grow = thp == "always" or (thp == "madvise" and settings.huge)
    return CountingRules(
        method=method,
        populated=settings.touch != "none" or settings.prefault or method == "advise",
        # The other methods' areas end where the committed span ends; a huge page cannot cross.
        huge_bytes=(facts.huge_pages.pmd_bytes or _DEFAULT_PMD)
        if may_grow and method == "advise"
        else 0,
        swap=bool(facts.memory.swap_total_bytes),
        strict=facts.commit.mode == _NEVER_OVERCOMMIT,
    )


def believe(
    reservation: Reservation,
    ever: BlockMap,
    granule: int,
    rules: CountingRules,
    *,
    settled: bool = True,
) -> tuple[CounterReading, ...]:
    """Return what the ledgers of one buffer must be; ``observed`` is still unknown.

    Args:
        reservation: The buffer's range and what is committed in it.
        ever: What was ever committed in it.
        granule: The unit of commits, in bytes.
        rules: How the kernel counts.
        settled: False after a failure, when the last commit may not have been touched.
    """
    committed = reservation.blocks.total
    lost = reservation.quarantined.total
    degraded = reservation.degraded.total
    populated = rules.populated and settled and not rules.swap
    if rules.method in _PER_GRANULE:
        charge = (committed, committed, committed + lost)
        exact = (committed + lost) // reservation.granularity
        exact += sum(1 for _ in _free(reservation))
        areas = (exact, exact, exact)
    elif rules.method == "decommit":
        charge = (committed, committed, committed + lost)
        areas = (1, 1, 1)
    elif rules.method == "advise":
        charge = (0, 0, reservation.capacity if rules.strict else 0)
        areas = (1, 1, 1)
    else:
        kept = max(ever.total, committed) if rules.method == "protect" else committed
        charge = (committed, committed, kept + degraded + lost)
        runs = _runs(reservation.blocks, reservation.capacity)
        areas = (runs, runs, runs + 2 * (ever.total // granule) + 1)
    grown = _around(ever, reservation, rules.huge_bytes) if rules.huge_bytes else committed
    return (
        CounterReading(
            "address_space",
            reservation.capacity,
            None,
            reservation.capacity - lost,
            reservation.capacity,
        ),
        CounterReading("charge", charge[0], None, charge[1], charge[2]),
        CounterReading(
            "resident",
            committed if rules.populated else 0,
            None,
            committed if populated else 0,
            grown + lost,
        ),
        CounterReading(
            "mappings",
            areas[0],
            None,
            max(areas[1] - 2 * len(reservation.quarantined), 1),
            areas[2],
        ),
    )


def observe(
    beliefs: Iterable[tuple[CounterReading, ...]], ledgers: Iterable[Counters]
) -> tuple[CounterReading, ...]:
    """Return the beliefs about several buffers, and the kernel's counts, added up by ledger."""
    columns = list(zip(beliefs, ledgers, strict=True))
    readings = []
    for index, name in enumerate(COUNTERS):
        parts = [belief[index] for belief, _ in columns]
        counts = [_count(kernel, name) for _, kernel in columns]
        known = [count for count in counts if count is not None]
        readings.append(
            CounterReading(
                name,
                sum(part.believed for part in parts),
                sum(known) if len(known) == len(counts) else None,
                sum(part.low for part in parts),
                sum(part.high for part in parts),
            )
        )
    return tuple(readings)


def outside(process: Counters, ranges: Iterable[Counters]) -> dict[str, int | None]:
    """Return what the process has beyond the given ranges, by ledger."""
    parts = list(ranges)
    rest: dict[str, int | None] = {}
    for name in COUNTERS:
        counts = [_count(part, name) for part in (process, *parts)]
        known = [count for count in counts if count is not None]
        rest[name] = known[0] - sum(known[1:]) if len(known) == len(counts) else None
    return rest


def assume(reservation: Reservation, rules: CountingRules) -> Counters:
    """Return what macOS, which tells nothing of a range, is believed to count of a buffer.

    ``protect`` and ``advise`` may keep their pages there, so that only ``fixed`` has a footprint
    that follows what is committed.
    """
    populated = reservation.blocks.total if rules.populated else 0
    return Counters(
        address_space_bytes=reservation.capacity,
        resident_bytes=populated if rules.method == "fixed" else None,
    )


def leak_slopes(
    points: Sequence[tuple[int, Mapping[str, int | None]]], worker: int, live: int = 0
) -> tuple[CounterSlope, ...]:
    """Return the growth per cycle of each ledger that *points* of (cycle, counts) tell.

    A leak goes on, while a heap that warms up grows ever less: so growth must also exceed the floor
    at the pace of the later half of the points.

    Args:
        points: In order.
        worker: Whose they are.
        live: Granules that are committed at once at most; notes about them are no leak.
    """
    found = []
    for name in LEAK_FLOORS:
        series = [
            (float(cycle), float(v)) for cycle, at in points if (v := at.get(name)) is not None
        ]
        line = slope(series)
        if line is None:
            continue
        span = series[-1][0] - series[0][0]
        grown = round(line.per_step * span)
        lately = median_slope(series[len(series) // 2 :]) * span
        floor = LEAK_FLOORS[name] + (live * NOTES_BYTES if name in _HEAP_LEDGERS else 0)
        found.append(
            CounterSlope(
                ledger=name,
                worker=worker,
                per_cycle=line.per_step,
                low=line.low,
                high=line.high,
                confidence=line.confidence,
                points=line.points,
                grown=grown,
                floor=floor,
                leaks=line.rises and min(grown, lately) > floor,
            )
        )
    return tuple(found)


def _count(ledgers: Counters, name: str) -> int | None:
    count: int | None = getattr(ledgers, name if name == "mappings" else f"{name}_bytes")
    return count


def _free(reservation: Reservation) -> Iterator[Span]:
    """Yield the gaps between what is committed or quarantined."""
    for start, end in reservation.blocks.gaps(0, reservation.capacity):
        yield from reservation.quarantined.gaps(start, end)


def _runs(blocks: BlockMap, capacity: int) -> int:
    """Return how many runs of committed and of free bytes there are."""
    return len(blocks) + sum(1 for _ in blocks.gaps(0, capacity))


def _around(blocks: BlockMap, reservation: Reservation, huge: int) -> int:
    """Return the bytes of the huge pages around *blocks*, those that reach outside clipped."""
    base, limit = reservation.base, reservation.base + reservation.capacity
    total, end = 0, base
    for start, stop in blocks:
        begin = max(align_down(base + start, huge), end)
        end = min(align_up(base + stop, huge), limit)
        total += max(end - begin, 0)
    return total


#: Asking costs a microsecond for each handle; larger buffers are not counted.
_MOST_CHUNKS: Final = 1 << 16


class DeviceObserver:
    """Implements :class:`vmtool.stress.worker.target.CounterObserver`.

    Args:
        context: The device.
        subjects: The buffers; nothing is committed in them yet.
        pooled_bytes: What is charged to pools now, mapped or not.
        alone: Whether no other worker uses the device.
        threads: Of this worker.
    """

    ledgers = DEVICE_COUNTERS

    def __init__(
        self,
        context: DeviceContext,
        subjects: Sequence[CheckedBuffer],
        pooled_bytes: Callable[[], int],
        *,
        alone: bool,
        threads: int,
    ) -> None:
        self._context = context
        self._subjects = subjects
        self._pooled_bytes = pooled_bytes
        self._alone = alone
        self._threads = threads
        # The location is a part of the description and dangles without it.
        self._access = context.driver.access(context.info.ordinal)
        self._used_before = self._used() or 0

    def look(
        self,
        chosen: Sequence[CheckedBuffer],
        *,
        settled: bool,  # noqa: ARG002 - device memory is there from the commit on
    ) -> tuple[tuple[CounterReading, ...], Mapping[str, int | None]]:
        """Hold the belief about *chosen* against the driver's counts."""
        everything = len(chosen) == len(self._subjects) or self._threads == 1
        believed, used = self._believed(), self._used() if everything else None
        grown = None if used is None else used - self._used_before
        memory = CounterReading(
            "device_memory",
            believed,
            None if grown is None else max(grown, 0),
            max(believed - DEVICE_TOLERANCE_BYTES, 0),
            believed + DEVICE_TOLERANCE_BYTES,
        )
        process = read_process()
        beyond: dict[str, int | None] = {
            name: getattr(process, name if name == "mappings" else f"{name}_bytes")
            for name in COUNTERS
        }
        beyond["device_memory"] = None if grown is None else grown - believed
        return (memory, self._mappings(chosen)), beyond

    def count_mapped(self) -> int:
        """Return how many buffers are not closed, or all if the device has not got back its memory."""
        used = self._used()
        if (
            used is not None
            and used - self._used_before - self._pooled_bytes() > DEVICE_TOLERANCE_BYTES
        ):
            return len(self._subjects)
        return sum(not subject.reservation.closed for subject in self._subjects)

    def _believed(self) -> int:
        """Return what is committed or lost in buffers that no pool is charged for, and pooled."""
        return self._pooled_bytes() + sum(
            subject.reservation.blocks.total + subject.reservation.quarantined.total
            for subject in self._subjects
            if subject.method != "pooled"
        )

    def _mappings(self, chosen: Sequence[CheckedBuffer]) -> CounterReading:
        believed = 0
        observed: int | None = 0
        for subject in chosen:
            reservation = subject.reservation
            chunk = reservation.granularity
            believed += reservation.blocks.total // chunk
            if reservation.blocks.total // chunk > _MOST_CHUNKS or self._context.lost:
                observed = None
            elif observed is not None:
                for start, end in list(reservation.blocks):
                    observed += sum(
                        self._mapped(reservation, at) for at in range(start, end, chunk)
                    )
        return CounterReading("device_mappings", believed, observed, believed, believed)

    def _mapped(self, reservation: Reservation, offset: int) -> bool:
        try:
            access = self._context.call(
                "cuMemGetAccess", self._access.location, reservation.base + offset
            )
        except CudaError:
            return False
        return bool(access)

    def _used(self) -> int | None:
        return self._context.used_bytes_if_available() if self._alone else None
