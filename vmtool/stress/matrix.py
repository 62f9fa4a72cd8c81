"""Brief runs of every pattern with every method and granule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from vmtool.compare.changes import DEFAULT_THRESHOLD
from vmtool.compare.confidence_intervals import median_interval
from vmtool.errors import CallError, RefusedError
from vmtool.kv.packing.policies import PerTensor
from vmtool.machine.preflight import check, refuse_unsafe
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.errors import MisalignedError
from vmtool.results.matrix import GranuleChoice, MatrixCell, MatrixResult, MatrixRow
from vmtool.results.stress import HUGE, Outcome, base_method
from vmtool.stress.demand import demand
from vmtool.stress.parent.joined_result import what_ended
from vmtool.stress.parent.run_workers import run_stress
from vmtool.stress.plan import settle, with_huge
from vmtool.stress.recommendation_and_advice import choose_method, cycle_ns
from vmtool.stress.workloads import PATTERNS
from vmtool.units import GIB, KIB, MIB, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vmtool.compare.confidence_intervals import Interval
    from vmtool.kv.sequence_cost import SequenceCost
    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.results.stress import PhaseResult, StressResult, StressSettings
    from vmtool.stress.safe_memory import Room

GRANULES: Final = (4 * KIB, 64 * KIB, 2 * MIB)
#: Chunks of a device, in its granularity: 6 MiB are kvcached's.
_CHUNK_FACTORS: Final = (1, 3, 8)
#: A cell commits at most this many granules at once, so that areas stay few.
_GRANULES_IN_CELL: Final = 4096
_DEFAULT_NS: Final = 15 * 10**9
#: Of the interval of a cycle. Two such intervals that do not overlap are a difference at about 5 %
#: (Payton, Greenstone and Schenker, Journal of Insect Science 3:34, 2003), and four rounds are
#: enough for one.
CELL_CONFIDENCE: Final = 0.84
#: A granule must be this much cheaper to be worth its waste.
_WORTH_IT: Final = 1.05


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """The sequence whose waste is shown beside the cost of each granule.

    Attributes:
        name: Of the model.
        cost: What a sequence of it takes.
        tokens: The length of the sequence.
    """

    name: str
    cost: SequenceCost
    tokens: int

    def waste_share(self, granule: int) -> float:
        """Return the part of what is committed that the sequence does not use."""
        committed = PerTensor(self.cost, granule).committed_bytes(self.tokens)
        used = self.cost.bytes_for(self.tokens)
        return 1 - used / committed if committed else 0.0


def run_matrix(
    settings: StressSettings,
    room: Room,
    facts: MachineFacts,
    *,
    granules: Sequence[int] = (),
    patterns: Sequence[str] = tuple(PATTERNS),
    sequence: SequenceLength | None = None,
    hang_ns: int,
    name_host: bool = True,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    refused: Callable[[RefusedError], None] = lambda _error: None,
) -> MatrixResult:
    """Run *settings* with every pattern and granule; its duration is that of the whole matrix.

    Args:
        settings: What all cells share; its pattern, granule and cycles are not used.
        room: What may be committed.
        facts: About this machine.
        granules: Which granules; empty for 4 KiB, 64 KiB and 2 MiB, or for 1, 3 and 8 times a
            device's granularity. On a device each is one handle, unless the settings have a chunk: the
            best granule is then the smallest chunk that costs hardly more than the cheapest.
        patterns: In which orders to commit and release.
        sequence: Whose waste to show.
        hang_ns: A worker that does not move for this long is killed.
        name_host: Whether the machine's name goes into the result.
        stopping: Called about ten times a second; returns whether to end early.
        progress: Called with the number of runs done and of all.
        refused: Called with why a cell is not run.

    Raises:
        MisalignedError: If a granule is not a multiple of the granularity.
    """
    opened = _open(settings, settings.methods[0])
    granularity, device = opened.granularity, opened.device_name
    del opened  # a device's context takes memory
    for granule in granules:
        if granule % granularity:
            raise MisalignedError("granule", granule, granularity)
    usual = usual_granules(granularity, on_device=device is not None)
    sizes = sorted({align_up(granule, granularity) for granule in granules or usual})
    sweeps_chunks = device is not None and settings.chunk_bytes is None
    plans = [(pattern, granule) for granule in sizes for pattern in patterns]
    each_ns = max((settings.duration_ns or _DEFAULT_NS) // len(plans), 1)
    cells: list[MatrixCell] = []
    last: StressResult | None = None
    complete = True
    for done, (pattern, granule) in enumerate(plans):
        progress(done, len(plans))
        methods = _methods(settings, facts, granule)
        one = replace(
            settings,
            methods=methods,
            pattern=pattern,
            granule_bytes=granule,
            chunk_bytes=granule if sweeps_chunks else settings.chunk_bytes,
            capacity_bytes=_capacity(settings, granule),
            budget_bytes=0,
            cycles=None,
            duration_ns=each_ns,
            runs=1,
        )
        try:
            settled = settle(one, _open(one, base_method(methods[0])), room)
            refuse_unsafe(check(demand(settled, room.device_free_bytes), facts))
        except RefusedError as error:
            refused(error)
            cells += [_refused(pattern, granule, method, str(error)) for method in methods]
            continue
        except CallError as error:  # such as a lost device: what was measured stays
            if last is None:
                raise
            cells += [_ended(pattern, granule, method, str(error)) for method in methods]
            continue
        last = run_stress(settled, facts, hang_ns=hang_ns, name_host=name_host, stopping=stopping)
        cells += [cell_of(last, method) for method in methods]
        if last.outcome is Outcome.INTERRUPTED:
            complete = False
            break
    choices = choose_granules(cells, sequence)
    return MatrixResult(
        settings=settings,
        cells=tuple(cells),
        complete=complete,
        passed=not any(_is_bad(cell) for cell in cells),
        rows=_rows(cells),
        granules=choices,
        best=best_granule(choices),
        model=None if sequence is None else sequence.name,
        context_tokens=None if sequence is None else sequence.tokens,
        device=device,
        conditions=None if last is None else last.conditions,
        machine={} if last is None else last.machine,
    )


def usual_granules(granularity: int, *, on_device: bool) -> tuple[int, ...]:
    """Return the granules that are measured by default."""
    return tuple(f * granularity for f in _CHUNK_FACTORS) if on_device else GRANULES


def fastest(cells: Iterable[MatrixCell]) -> str | None:
    """Return which of one row's *cells* is clearly the fastest, or ``None``.

    Its interval must lie below all others, and its cycle be shorter by what a comparison of two
    runs calls a change. One that failed a check is no winner, but can keep others from being one.
    """
    timed = [(cell.cycle_ns, cell) for cell in cells if cell.cycle_ns is not None]
    timed.sort(key=lambda item: item[0])
    if len(timed) < 2:
        return None
    (least_ns, first), (next_ns, _) = timed[:2]
    if first.failed or first.cycle_high_ns is None or next_ns < least_ns * (1 + DEFAULT_THRESHOLD):
        return None
    lows = [cell.cycle_low_ns for _, cell in timed[1:]]
    clear = all(low is not None and low > first.cycle_high_ns for low in lows)
    return first.method if clear else None


def choose_granules(
    cells: Iterable[MatrixCell], sequence: SequenceLength | None
) -> tuple[GranuleChoice, ...]:
    """Return the method to use with each granule, by the patterns that all methods ran."""
    by_granule: dict[int, dict[str, dict[str, MatrixCell]]] = {}
    for cell in cells:
        if cell.per_gib_ns is not None and not cell.failed:
            of_granule = by_granule.setdefault(cell.granule_bytes, {})
            of_granule.setdefault(cell.method, {})[cell.pattern] = cell
    found = []
    for granule, by_method in by_granule.items():
        shared = set.intersection(*(set(of_method) for of_method in by_method.values()))
        if shared:
            methods = {
                name: [of_method[pattern] for pattern in shared]
                for name, of_method in by_method.items()
            }
            found.append(_choose_method(granule, methods, sequence))
    return tuple(found)


def _choose_method(
    granule: int, methods: dict[str, list[MatrixCell]], sequence: SequenceLength | None
) -> GranuleChoice:
    # Of the patterns the median, so that one cell that was disturbed decides nothing.
    costs = {
        name: round(median(cell.per_gib_ns or 0 for cell in found))
        for name, found in methods.items()
    }

    def least_factor(fastest: str, other: str) -> float | None:
        high = _end_per_gib(methods[fastest], [cell.cycle_high_ns for cell in methods[fastest]])
        low = _end_per_gib(methods[other], [cell.cycle_low_ns for cell in methods[other]])
        return None if high is None or low is None else low / max(high, 1)

    method, fastest, reason = choose_method(costs, least_factor)
    waste = None if sequence is None else sequence.waste_share(granule)
    return GranuleChoice(
        granule_bytes=granule,
        method=method,
        per_gib_ns=costs[method],
        without_huge_ns=costs.get(base_method(method)) if method.endswith(HUGE) else None,
        waste_share=waste,
        per_used_gib_ns=None if waste is None else round(costs[method] / (1 - waste)),
        reason=reason if len(costs) > 1 else None,
        fastest=fastest,
        fastest_per_gib_ns=costs[fastest],
    )


def _end_per_gib(cells: Sequence[MatrixCell], ends: Sequence[int | None]) -> float | None:
    """Return the median end of the cells' intervals, per GiB; ``None`` if one has none."""
    scaled = [
        end * (cell.per_gib_ns or 0) / max(cell.cycle_ns or 1, 1)
        for cell, end in zip(cells, ends, strict=True)
        if end is not None
    ]
    return median(scaled) if len(scaled) == len(cells) else None


def best_granule(choices: Sequence[GranuleChoice]) -> GranuleChoice | None:
    """Return the cheapest of *choices*; of those within 5 % of it, that of the smallest granule."""

    def price(choice: GranuleChoice) -> int:
        return choice.per_gib_ns if choice.per_used_gib_ns is None else choice.per_used_gib_ns

    if not choices:
        return None
    least = min(map(price, choices))
    near = [choice for choice in choices if price(choice) <= least * _WORTH_IT]
    return min(near, key=lambda choice: choice.granule_bytes)


def _open(settings: StressSettings, method: str) -> VirtualBacking:
    return open_backing(
        settings.backing,
        method=method,
        chunk=settings.chunk_bytes,
        huge_page_bytes=settings.huge_page_bytes,
    )


def _methods(settings: StressSettings, facts: MachineFacts, granule: int) -> tuple[str, ...]:
    """Return the methods of a cell: with huge pages too, where the granule is a whole number of them."""
    pmd = facts.huge_pages.pmd_bytes
    if not pmd or granule % pmd:
        return settings.methods
    return with_huge(settings.methods, settings, facts.huge_pages.thp_mode)


def _rows(cells: Iterable[MatrixCell]) -> tuple[MatrixRow, ...]:
    rows: dict[tuple[str, int], list[MatrixCell]] = {}
    for cell in cells:
        rows.setdefault((cell.pattern, cell.granule_bytes), []).append(cell)
    return tuple(MatrixRow(*key, fastest(found)) for key, found in rows.items())


def _is_bad(cell: MatrixCell) -> bool:
    good = {None, Outcome.COMPLETE, Outcome.INTERRUPTED}
    return bool(cell.failed) or cell.outcome not in good


def _capacity(settings: StressSettings, granule: int) -> int:
    most = granule * _GRANULES_IN_CELL
    wanted = settings.capacity_bytes or 128 * MIB
    return max(min(most, wanted) // granule, 1) * granule


def _refused(pattern: str, granule: int, method: str, why: str) -> MatrixCell:
    return MatrixCell(pattern, granule, method, 0, None, None, None, None, None, (), why)


def _ended(pattern: str, granule: int, method: str, error: str) -> MatrixCell:
    nothing = _refused(pattern, granule, method, error)
    return replace(nothing, refused=None, outcome=Outcome.CALL_FAILED, error=error)


def cell_of(result: StressResult, name: str) -> MatrixCell:
    """Return what the method called *name* cost in *result*."""
    settings = result.settings
    method = result.method(name)
    found = {
        phase.phase: phase
        for phase in (method.phases if method else ())
        if phase.phase != "verify" and phase.summary.median_ns is not None
    }
    summaries = {name: phase.summary for name, phase in found.items()}
    interval = _cycle_interval(tuple(found.values()))
    cost = None if method is None else cycle_ns(method)
    commit = found.get("commit")
    # One commit of the last pattern takes several granules.
    each = commit.total_bytes / commit.summary.samples if commit else settings.granule_bytes
    return MatrixCell(
        pattern=settings.pattern,
        granule_bytes=settings.granule_bytes,
        method=name,
        cycles=method.cycles if method else 0,
        cycle_ns=cost,
        commit=summaries.get("commit"),
        touch=summaries.get("touch"),
        release=summaries.get("release"),
        outcome=result.outcome,
        failed=tuple(check.name for check in result.checks if check.failed),
        refused=None,
        cycle_low_ns=None if interval is None else interval.low,
        cycle_high_ns=None if interval is None else interval.high,
        per_gib_ns=None if cost is None else round(cost * GIB / each),
        error=what_ended(result),
    )


def _cycle_interval(phases: Sequence[PhaseResult]) -> Interval | None:
    """Return where one cycle lies; each round is one observation, as its samples are not apart."""
    rounds = [phase.round_medians_ns for phase in phases]
    if len(rounds) < 2 or len(set(map(len, rounds))) > 1:
        return None  # a phase without samples in some round: they cannot be added up
    return median_interval([sum(medians) for medians in zip(*rounds, strict=True)], CELL_CONFIDENCE)
