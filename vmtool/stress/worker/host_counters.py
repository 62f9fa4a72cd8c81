"""The kernel's counters for a host buffer: what vmtool's own totals predict, and what they are.

==============  ==========================================================================
counter         tolerance
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

from vmtool.memory.counters import Counters, read_node_bytes, read_split
from vmtool.results.stress import COUNTERS, CounterReading, base_method
from vmtool.units import MIB, align_down, align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.reservation import Reservation
    from vmtool.memory.span_map import Span, SpanMap
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import StressSettings
    from vmtool.stress.worker.checkpoint import CheckedBuffer

_NEVER_OVERCOMMIT: Final = 2
#: Methods of Windows that put each granule of the backing as a mapping of its own.
_PER_GRANULE: Final = ("view", "private")
_DEFAULT_PMD: Final = 2 * MIB


@dataclass(frozen=True, slots=True)
class CountingRules:
    """What decides how the kernel counts one method's buffers.

    Attributes:
        populated: Whether what is committed is resident: touched, or faulted in at commit.
        huge_bytes: The huge page that may form around a small one, or 0.
        swap: Whether pages may be swapped out.
        strict: Whether ``MAP_NORESERVE`` is ignored (``vm.overcommit_memory`` is 2).
        reserved_huge: Whether its pages are reserved huge pages, which are not charged.
    """

    method: str
    populated: bool
    huge_bytes: int
    swap: bool
    strict: bool
    reserved_huge: bool = False


def counting_rules(method: str, settings: StressSettings, facts: MachineFacts) -> CountingRules:
    """Return the rules for *method* under *settings* on a machine."""
    thp = facts.huge_pages.thp_mode
    may_grow = thp == "always" or (thp == "madvise" and settings.uses_huge(method))
    method = base_method(method)
    return CountingRules(
        method=method,
        populated=settings.touch != "none"
        or settings.prefault
        or settings.huge_page_bytes is not None
        or method == "advise",
        # The other methods' areas end where the committed span ends; a huge page cannot cross.
        huge_bytes=(facts.huge_pages.pmd_bytes or _DEFAULT_PMD)
        if may_grow and method == "advise"
        else 0,
        # Reserved huge pages are never swapped out.
        swap=bool(facts.memory.swap_total_bytes) and settings.huge_page_bytes is None,
        strict=facts.commit.mode == _NEVER_OVERCOMMIT,
        reserved_huge=settings.huge_page_bytes is not None,
    )


def expect(
    reservation: Reservation,
    ever_committed: SpanMap,
    granule: int,
    rules: CountingRules,
    *,
    settled: bool = True,
) -> tuple[CounterReading, ...]:
    """Return what the counters of one buffer must be; ``observed`` is still unknown.

    Args:
        reservation: The buffer's range and what is committed in it.
        ever_committed: Every span that was ever committed in it.
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
        kept = max(ever_committed.total, committed) if rules.method == "protect" else committed
        charge = (committed, committed, kept + degraded + lost)
        runs = _runs(reservation.blocks, reservation.capacity)
        areas = (runs, runs, runs + 2 * (ever_committed.total // granule) + 1)
    if rules.reserved_huge:
        charge = (0, 0, 0)
    grown = (
        _around(ever_committed, reservation, rules.huge_bytes) if rules.huge_bytes else committed
    )
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


def compare(
    expectations: Iterable[tuple[CounterReading, ...]], counts: Iterable[Counters]
) -> tuple[CounterReading, ...]:
    """Return what is expected of several buffers, and what is counted, added up by counter."""
    columns = list(zip(expectations, counts, strict=True))
    readings = []
    for index, name in enumerate(COUNTERS):
        parts = [expected[index] for expected, _ in columns]
        found = [_count(kernel, name) for _, kernel in columns]
        known = [count for count in found if count is not None]
        readings.append(
            CounterReading(
                name,
                sum(part.expected for part in parts),
                sum(known) if len(known) == len(found) else None,
                sum(part.low for part in parts),
                sum(part.high for part in parts),
            )
        )
    return tuple(readings)


def process_rest(process: Counters, ranges: Iterable[Counters]) -> dict[str, int | None]:
    """Return what the process has beyond the given ranges, by counter."""
    parts = list(ranges)
    rest: dict[str, int | None] = {}
    for name in COUNTERS:
        counts = [_count(part, name) for part in (process, *parts)]
        known = [count for count in counts if count is not None]
        rest[name] = known[0] - sum(known[1:]) if len(known) == len(counts) else None
    return rest


def _expect_on_macos(reservation: Reservation, rules: CountingRules) -> Counters:
    """Return what macOS, which counts nothing by range, is expected to count of a buffer.

    ``protect`` and ``advise`` may keep their pages there, so that only ``fixed`` has a footprint
    that follows what is committed.
    """
    populated = reservation.blocks.total if rules.populated else 0
    return Counters(
        address_space_bytes=reservation.capacity,
        resident_bytes=populated if rules.method == "fixed" else None,
    )


def _count(counters: Counters, name: str) -> int | None:
    count: int | None = getattr(counters, name if name == "mappings" else f"{name}_bytes")
    return count


def _free(reservation: Reservation) -> Iterator[Span]:
    """Yield the gaps between what is committed or quarantined."""
    for start, end in reservation.blocks.gaps(0, reservation.capacity):
        yield from reservation.quarantined.gaps(start, end)


def _runs(blocks: SpanMap, capacity: int) -> int:
    """Return how many runs of committed and of free bytes there are."""
    return len(blocks) + sum(1 for _ in blocks.gaps(0, capacity))


def _around(blocks: SpanMap, reservation: Reservation, huge: int) -> int:
    """Return the bytes of the huge pages around *blocks*, those that reach outside clipped."""
    base, limit = reservation.base, reservation.base + reservation.capacity
    total, end = 0, base
    for start, stop in blocks:
        begin = max(align_down(base + start, huge), end)
        end = min(align_up(base + stop, huge), limit)
        total += max(end - begin, 0)
    return total


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
                _expect_on_macos(b.reservation, self._rules[b.method]) for b in self._buffers
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
