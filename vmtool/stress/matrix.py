"""Every pattern with every method and granule, each for a moment, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.compare.intervals import median_interval
from vmtool.compare.runs import DEFAULT_THRESHOLD
from vmtool.errors import RefusedError
from vmtool.machine.preflight import check, refuse_unsafe
from vmtool.memory import open_backing
from vmtool.results.stress import Outcome, StressSettings
from vmtool.stats import Summary  # noqa: TC001 - the schema is made from the types
from vmtool.stress.parent.run import run_stress
from vmtool.stress.plan import Request, demand, make_settings
from vmtool.stress.worker.workloads import PATTERNS
from vmtool.units import KIB, MIB, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vmtool.compare.intervals import Interval
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.stress import PhaseResult, StressResult

MATRIX_SCHEMA: Final = "vmtool.stress-matrix"
MATRIX_VERSION: Final = 1
GRANULES: Final = (4 * KIB, 64 * KIB, 2 * MIB)
#: A cell commits at most this many granules at once, so that areas stay few.
_GRANULES_IN_CELL: Final = 4096
_DEFAULT_NS: Final = 15 * 10**9
#: Of the interval of a cycle. Two such intervals that do not overlap are a difference at about 5 %
#: (Payton, Greenstone and Schenker, Journal of Insect Science 3:34, 2003), and four rounds are
#: enough for one.
_CONFIDENCE: Final = 0.84


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One pattern with one granule and one method.

    Attributes:
        cycles: Commits.
        cycle_ns: The medians of commit, touch and release together; ``None`` without samples.
        commit: Summary of the phase, likewise *touch* and *release*.
        failed: Checks that failed.
        refused: Why the preflight refused it, or ``None``.
        cycle_low_ns: What *cycle_ns* is at least, by the medians of the rounds, with a confidence
            of 84 %; ``None`` where the rounds are too few to tell.
        cycle_high_ns: What it is at most, likewise.
    """

    pattern: str
    granule_bytes: int
    method: str
    cycles: int
    cycle_ns: int | None
    commit: Summary | None
    touch: Summary | None
    release: Summary | None
    outcome: Outcome | None
    failed: tuple[str, ...]
    refused: str | None
    cycle_low_ns: int | None = None
    cycle_high_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """Every cell that was run.

    Attributes:
        complete: Whether all were; an interrupt leaves the rest out.
        device: The driver's own name of the device; ``None`` for the host.
    """

    cells: tuple[MatrixCell, ...]
    seed: int
    complete: bool
    device: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every cell that ran did so to its end, without a failed check."""
        return not any(
            cell.failed or cell.outcome not in {None, Outcome.COMPLETE, Outcome.INTERRUPTED}
            for cell in self.cells
        )


def run_matrix(
    request: Request,
    facts: MachineFacts,
    *,
    hang_ns: int,
    stopping: Callable[[], bool],
    progress: Callable[[int, int], None],
) -> MatrixReport:
    """Run *request* with every pattern and granule; its duration is that of the whole matrix.

    Args:
        request: What all cells share; its pattern, granule and cycles are not used.
        facts: About this machine.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked about ten times a second whether to end early.
        progress: Called with the number of runs done and of all.
    """
    opened = open_backing(request.backing, method=request.methods[0], chunk=request.chunk_bytes)
    granularity, device = opened.granularity, opened.device_name
    del opened  # a device's context takes memory
    granules = sorted({align_up(granule, granularity) for granule in GRANULES})
    runs = [(pattern, granule) for granule in granules for pattern in PATTERNS]
    each_ns = max((request.duration_ns or _DEFAULT_NS) // len(runs), 1)
    cells: list[MatrixCell] = []
    for done, (pattern, granule) in enumerate(runs):
        progress(done, len(runs))
        one = replace(
            request,
            pattern=pattern,
            granule_bytes=granule,
            capacity_bytes=_capacity(request, granule),
            budget_bytes=None,
            cycles=None,
            duration_ns=each_ns,
        )
        try:
            backing = open_backing(
                request.backing, method=one.methods[0], chunk=request.chunk_bytes
            )
            settings = make_settings(one, backing)
            refuse_unsafe(check(demand(settings, request.device_free_bytes), facts))
        except RefusedError as error:
            cells += [_refused(pattern, granule, method, str(error)) for method in one.methods]
            continue
        result = run_stress(settings, facts, hang_ns=hang_ns, stopping=stopping)
        cells += [_cell(settings, result, method) for method in settings.methods]
        if result.outcome is Outcome.INTERRUPTED:
            return MatrixReport(tuple(cells), request.seed, complete=False, device=device)
    return MatrixReport(tuple(cells), request.seed, complete=True, device=device)


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


def _capacity(request: Request, granule: int) -> int:
    most = granule * _GRANULES_IN_CELL
    wanted = request.capacity_bytes or 128 * MIB
    return max(min(most, wanted) // granule, 1) * granule


def _refused(pattern: str, granule: int, method: str, why: str) -> MatrixCell:
    return MatrixCell(pattern, granule, method, 0, None, None, None, None, None, (), why)


def _cell(settings: StressSettings, result: StressResult, name: str) -> MatrixCell:
    method = result.method(name)
    found = {
        phase.phase: phase
        for phase in (method.phases if method else ())
        if phase.phase != "verify" and phase.summary.median_ns is not None
    }
    summaries = {name: phase.summary for name, phase in found.items()}
    medians = [summary.median_ns or 0 for summary in summaries.values()]
    interval = _cycle_interval(tuple(found.values()))
    return MatrixCell(
        pattern=settings.pattern,
        granule_bytes=settings.granule_bytes,
        method=name,
        cycles=method.cycles if method else 0,
        cycle_ns=sum(medians) if len(medians) > 1 else None,
        commit=summaries.get("commit"),
        touch=summaries.get("touch"),
        release=summaries.get("release"),
        outcome=result.outcome,
        failed=tuple(v.check for v in result.verdicts if v.passed is False),
        refused=None,
        cycle_low_ns=None if interval is None else interval.low,
        cycle_high_ns=None if interval is None else interval.high,
    )


def _cycle_interval(phases: Sequence[PhaseResult]) -> Interval | None:
    """Return where one cycle lies; each round is one observation, as its samples are not apart."""
    rounds = [phase.round_medians_ns for phase in phases]
    if len(rounds) < 2 or len(set(map(len, rounds))) > 1:
        return None  # a phase without samples in some round: they cannot be added up
    return median_interval([sum(medians) for medians in zip(*rounds, strict=True)], _CONFIDENCE)
