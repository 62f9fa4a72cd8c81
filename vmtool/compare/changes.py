"""What got faster or slower between two sets of stress runs, or did not change; pure.

One figure of each run, such as its median commit, is one observation: neighbouring cycles share the
state of their process, so more of them say nothing about the next process. The test is that of
:mod:`vmtool.compare.confidence_intervals`. Each figure is tested by itself at the stated confidence; of twenty
figures that did not change one is expected to be called changed at 95 %, unless its change is
smaller than the threshold.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Final

from vmtool.compare.assertions import judge_change
from vmtool.compare.confidence_intervals import (
    DEFAULT_CONFIDENCE,
    RUNS_NEEDED,
    runs_needed,
    shift,
    variation,
)
from vmtool.compare.machines_and_settings import (
    condition_differences,
    machine_differences,
    settings_differences,
)
from vmtool.compare.metrics import measured, parse_metric
from vmtool.compare.run_sets import compared_files, describe_file, describe_set
from vmtool.results.check_outcomes import all_passed
from vmtool.results.compare import (
    Change,
    CompareResult,
    Direction,
    Doubt,
    Rate,
)
from vmtool.results.stress import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vmtool.compare.assertions import Condition
    from vmtool.compare.confidence_intervals import Shift
    from vmtool.compare.metrics import Metric
    from vmtool.compare.run_sets import RunSet, StoredRun
    from vmtool.results.stress import MethodResult

DEFAULT_THRESHOLD: Final = Fraction(5, 100)
#: The change that :attr:`Change.runs_needed` is about.
DETECTED_CHANGE: Final = 0.2
#: Sets that were started further apart than this may differ by the drift of the machine.
_APART_NS: Final = 10 * 60 * 10**9
#: A run of stress keeps one processor busy itself, which of two leaves half of their time idle.
_BUSY_IDLE_SHARE: Final = 0.25
_SAME_SIDE_IN_A_ROW: Final = 2
#: What is compared of a method, the whole first; ``verify`` is the harness's own.
_FIGURES: Final = tuple(
    parse_metric(text)
    for text in (
        "cycle.median",
        *(f"{phase}.{name}" for phase in PHASES if phase != "verify" for name in ("median", "p99")),
    )
)


def compare(
    before: RunSet,
    after: RunSet,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    threshold: Fraction = DEFAULT_THRESHOLD,
    fail_on: Sequence[Condition] = (),
    strict: bool = False,
) -> CompareResult:
    """Return what changed from *before* to *after*.

    Args:
        before: The reference.
        after: What is judged.
        confidence: Of the interval of each ratio, at least.
        threshold: Smaller changes are called unchanged.
        fail_on: Conditions on changes that must not come true.
        strict: Whether a condition that is not proven has failed.
    """
    pairs, alone = _pair_methods(before, after)
    unmatched = [f"method {name} ({side} only)" for name, side in alone.items()]
    changes: list[Change] = []
    for old, new in pairs:
        found, missing = _compare_method(old, new, confidence, float(threshold))
        changes.extend(found)
        unmatched.extend(missing)
    checks = tuple(
        judge_change(condition, pairs, alone=tuple(alone), confidence=confidence, strict=strict)
        for condition in fail_on
    )
    first, second = (compared_files(runs)[0].result for runs in (before, after))
    apart_ns = _apart(before, after)
    return CompareResult(
        before=describe_set(before),
        after=describe_set(after),
        confidence=confidence,
        threshold=float(threshold),
        changes=tuple(changes),
        rates=tuple(_rate(old, new) for old, new in pairs),
        machine=(
            *machine_differences(first.machine, second.machine),
            *condition_differences(first.conditions, second.conditions),
        ),
        settings=tuple(settings_differences(first.settings, second.settings)),
        unmatched=tuple(unmatched),
        apart_ns=apart_ns,
        doubts=() if _alternated(before, after) else tuple(_doubts(before, after, apart_ns)),
        checks=checks,
        passed=all_passed(checks),
    )


_MethodRuns = tuple["MethodResult", ...]


def _pair_methods(
    before: RunSet, after: RunSet
) -> tuple[list[tuple[_MethodRuns, _MethodRuns]], dict[str, str]]:
    """Return methods of the same name, or the only two there are, and of which side others are."""
    old, new = (_by_method(runs) for runs in (before, after))
    if len(old) == len(new) == 1:
        return [(next(iter(old.values())), next(iter(new.values())))], {}
    pairs = [(runs, new[name]) for name, runs in old.items() if name in new]
    alone = {name: "before" for name in old if name not in new}
    alone |= {name: "after" for name in new if name not in old}
    return pairs, alone


def _by_method(runs: RunSet) -> dict[str, _MethodRuns]:
    found: dict[str, list[MethodResult]] = {}
    for methods in runs.runs:
        for method in methods:
            if method.phases:
                found.setdefault(method.method, []).append(method)
    return {name: tuple(methods) for name, methods in found.items()}


def _compare_method(
    old: _MethodRuns, new: _MethodRuns, confidence: float, threshold: float
) -> tuple[list[Change], list[str]]:
    changes = []
    for figure in _FIGURES:
        before, after = _values_of(figure, old), _values_of(figure, new)
        if before and after:
            changes.append(
                _change(old[0].method, new[0].method, figure, before, after, confidence, threshold)
            )
    names_old, names_new = ({p.phase: None for p in method.phases} for method in (old[0], new[0]))
    alone = [f"{old[0].method}: {p} (before only)" for p in names_old if p not in names_new]
    alone += [f"{new[0].method}: {p} (after only)" for p in names_new if p not in names_old]
    return changes, alone


def _values_of(figure: Metric, runs: _MethodRuns) -> list[float]:
    """Return *figure* of each run that has it; 0 is below what a clock can tell from 1."""
    values = (measured(figure, method) for method in runs)
    return [max(float(value), 1.0) for value in values if isinstance(value, Fraction)]


def _change(
    method: str,
    method_after: str,
    figure: Metric,
    before: Sequence[float],
    after: Sequence[float],
    confidence: float,
    threshold: float,
) -> Change:
    found, direction = verdict(before, after, confidence, threshold)
    enough = min(len(before), len(after)) >= RUNS_NEEDED
    variations = [cv for cv in map(variation, (before, after)) if cv is not None]
    cv = max(variations) if len(variations) == 2 else None
    return Change(
        method=method,
        method_after=method_after,
        phase=figure.phase or "",
        statistic=figure.statistic,
        before_ns=round(median(before)),
        after_ns=round(median(after)),
        before_runs_ns=tuple(map(round, before)),
        after_runs_ns=tuple(map(round, after)),
        ratio=found.ratio,
        low=found.low if enough else None,
        high=found.high if enough else None,
        direction=direction,
        variation=cv,
        runs_needed=None if cv is None else runs_needed(cv, DETECTED_CHANGE, confidence=confidence),
    )


def verdict(
    before: Sequence[float], after: Sequence[float], confidence: float, threshold: float
) -> tuple[Shift, Direction]:
    """Return the factor from the figures of some runs to those of others, and what it proves."""
    found = shift(before, after, confidence)
    if min(len(before), len(after)) < RUNS_NEEDED:
        return found, Direction.NOT_PROVEN
    low = 0.0 if found.low is None else found.low
    high = float("inf") if found.high is None else found.high
    if low > 1 and found.ratio >= 1 + threshold:
        return found, Direction.SLOWER
    if high < 1 and found.ratio <= 1 - threshold:
        return found, Direction.FASTER
    if low >= 1 - threshold and high <= 1 + threshold:
        return found, Direction.UNCHANGED
    return found, Direction.NOT_PROVEN


def _rate(old: _MethodRuns, new: _MethodRuns) -> Rate:
    return Rate(
        method=old[0].method,
        method_after=new[0].method,
        before_cycles_per_s=median(run.cycles_per_s for run in old),
        after_cycles_per_s=median(run.cycles_per_s for run in new),
        before_bytes_per_s=median(run.bytes_per_s for run in old),
        after_bytes_per_s=median(run.bytes_per_s for run in new),
    )


def _alternated(before: RunSet, after: RunSet) -> bool:
    """Return whether the results of both sides were made in turn, enough of them for a verdict.

    The runs within one result follow each other, so that they are one turn, however many.
    """
    turns: list[tuple[float, int]] = []
    for side, runs in enumerate((before, after)):
        times = [_started([file]) for file in compared_files(runs)]
        known = [time for time in times if time is not None]
        if len(known) < max(len(times), RUNS_NEEDED):
            return False
        turns += [(time, side) for time in known]
    longest = max(len(list(group)) for _, group in groupby(side for _, side in sorted(turns)))
    return longest <= _SAME_SIDE_IN_A_ROW


def _doubts(before: RunSet, after: RunSet, apart_ns: int | None) -> Iterator[Doubt]:
    idle = [
        share
        for runs in (before, after)
        for file in compared_files(runs)
        if (share := describe_file(file).idle_share) is not None
    ]
    if idle and min(idle) < _BUSY_IDLE_SHARE:
        yield Doubt.BUSY
    if apart_ns is not None and apart_ns > _APART_NS:
        yield Doubt.APART


def _apart(before: RunSet, after: RunSet) -> int | None:
    """Return the time between the two sides, by the medians of when their files were started."""
    starts = [_started(compared_files(runs)) for runs in (before, after)]
    if None in starts:
        return None
    return round(abs((starts[1] or 0) - (starts[0] or 0)) * 1e9)


def _started(files: Sequence[StoredRun]) -> float | None:
    times = []
    for file in files:
        try:
            times.append(datetime.fromisoformat(file.started or "").timestamp())
        except (ValueError, OverflowError, OSError):
            return None
    return median(times)
