"""What changed between two runs of stress: per phase faster, slower or unchanged; pure.

The figure is the ratio of a percentile after to the same percentile before. Each of the two has an
interval of its own that fails with at most half of the probability allowed
(:mod:`vmtool.compare.intervals`), and the interval of the ratio goes from the lowest possible quotient to
the highest: by Bonferroni's inequality it then holds the true ratio with at least the stated
confidence, without resampling and without assuming a shape.

That holds for independent samples, which neighbouring cycles are not. The medians of the rounds,
between which the machine has time to change, tell by how much: for the median their interval is
joined to that of the samples, and the wider bounds count; for higher percentiles the samples count
as the number of independent ones that they are worth. A percentile that those cannot bound is left
out. What no run can tell is how the next one would differ by chance of its placement in memory,
which is why changes below the threshold are not reported at all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.compare.assertions import Gate, judge_change
from vmtool.compare.differences import Difference, machine_differences, settings_differences
from vmtool.compare.intervals import (
    Interval,
    histogram_interval,
    independent_samples,
    median_interval,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.compare.assertions import Condition
    from vmtool.results.stress import MethodResult, PhaseResult, StressResult

DEFAULT_CONFIDENCE: Final = 0.95
DEFAULT_THRESHOLD: Final = Fraction(5, 100)

#: The percentiles that are compared; the first decides the verdict on a phase.
QUANTILES: Final = {
    "median": Fraction(1, 2),
    "p90": Fraction(9, 10),
    "p99": Fraction(99, 100),
    "p99.9": Fraction(999, 1000),
}


class Direction(enum.Enum):
    """The verdict on one percentile of one phase."""

    FASTER = "faster"
    SLOWER = "slower"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Change:
    """One percentile of one phase, before and after.

    Attributes:
        method: The commit method before.
        method_after: The commit method after: another one if each run had a single method.
        statistic: One of :data:`QUANTILES`.
        before_ns: In the first run.
        after_ns: In the second.
        ratio: After by before.
        low: Lower end of the ratio's interval.
        high: Upper end; ``None`` when the samples give no bound.
        direction: The verdict.
        certain: Whether the interval excludes the other verdicts; an uncertain ``unchanged`` may
            hide a change above the threshold.
    """

    method: str
    method_after: str
    phase: str
    statistic: str
    before_ns: int
    after_ns: int
    before_samples: int
    after_samples: int
    ratio: float
    low: float
    high: float | None
    direction: Direction
    certain: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """Cycles and bytes per second of one method, before and after; they carry no interval."""

    method: str
    method_after: str
    before_cycles_per_s: float
    after_cycles_per_s: float
    before_bytes_per_s: float
    after_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs held against each other.

    Attributes:
        confidence: Of every interval, at least.
        threshold: The part by which a percentile must change to be called faster or slower.
        machine: Facts about the machines that differ.
        settings: Settings of the runs that differ.
        unmatched: Methods and phases that only one run has.
    """

    confidence: float
    threshold: float
    changes: tuple[Change, ...]
    rates: tuple[Rate, ...]
    machine: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    unmatched: tuple[str, ...]
    gates: tuple[Gate, ...]

    @property
    def passed(self) -> bool:
        """Whether no gate failed."""
        return not any(gate.failed for gate in self.gates)


def compare(
    before: StressResult,
    after: StressResult,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    threshold: Fraction = DEFAULT_THRESHOLD,
    fail_on: Sequence[Condition] = (),
) -> Comparison:
    """Return what changed from *before* to *after*.

    Args:
        before: The reference.
        after: What is judged.
        confidence: Of the interval of each ratio, at least.
        threshold: Smaller changes are called unchanged.
        fail_on: Conditions on changes that must not come true.
    """
    pairs, unmatched = _pair_methods(before.methods, after.methods)
    changes: list[Change] = []
    for old, new in pairs:
        found, missing = _compare_phases(old, new, confidence, threshold)
        changes.extend(found)
        unmatched.extend(missing)
    return Comparison(
        confidence=confidence,
        threshold=float(threshold),
        changes=tuple(changes),
        rates=tuple(_rate(old, new) for old, new in pairs),
        machine=tuple(machine_differences(before.machine, after.machine)),
        settings=tuple(settings_differences(before.settings, after.settings)),
        unmatched=tuple(unmatched),
        gates=tuple(judge_change(condition, pairs) for condition in fail_on),
    )


_Pair = tuple["MethodResult", "MethodResult"]


def _pair_methods(
    before: Sequence[MethodResult], after: Sequence[MethodResult]
) -> tuple[list[_Pair], list[str]]:
    """Return methods of the same name, or the only two there are, and what stays alone."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], []
    old, new = ({method.method: method for method in run} for run in (before, after))
    pairs = [(method, new[name]) for name, method in old.items() if name in new]
    alone = [f"method {name} (first run only)" for name in old if name not in new]
    alone += [f"method {name} (second run only)" for name in new if name not in old]
    return pairs, alone


def _compare_phases(
    old: MethodResult, new: MethodResult, confidence: float, threshold: Fraction
) -> tuple[list[Change], list[str]]:
    changes: list[Change] = []
    for phase in old.phases:
        other = new.phase(phase.phase)
        if other is None:
            continue
        for statistic in QUANTILES:
            change = _change(old.method, new.method, phase, other, statistic, confidence, threshold)
            if change is not None:
                changes.append(change)
    names_old, names_new = ({p.phase: None for p in method.phases} for method in (old, new))
    alone = [f"{old.method}: {p} (first run only)" for p in names_old if p not in names_new]
    alone += [f"{new.method}: {p} (second run only)" for p in names_new if p not in names_old]
    return changes, alone


def _change(
    method: str,
    method_after: str,
    before: PhaseResult,
    after: PhaseResult,
    statistic: str,
    confidence: float,
    threshold: Fraction,
) -> Change | None:
    """Return the change of one percentile; ``None`` when the samples cannot bound it.

    The median is always given, because it carries the verdict.
    """
    each = (1 + confidence) / 2  # half of the error for each side of the quotient
    known = [_interval(phase, statistic, each) for phase in (before, after)]
    values = [
        phase.histogram.percentile(float(QUANTILES[statistic] * 100)) for phase in (before, after)
    ]
    if values[0] is None or values[1] is None:
        return None
    if statistic != "median" and (known[0].high is None or known[1].high is None):
        return None
    # Zero is below what any clock here can tell from one nanosecond, and no divisor.
    old, new = (max(value or 0, 1) for value in values)
    ratio = new / old
    low, high = _quotient(known[0], known[1])
    direction, certain = _judge(ratio, low, high, float(threshold))
    return Change(
        method=method,
        method_after=method_after,
        phase=before.phase,
        statistic=statistic,
        before_ns=values[0],
        after_ns=values[1],
        before_samples=before.histogram.count,
        after_samples=after.histogram.count,
        ratio=ratio,
        low=low,
        high=high,
        direction=direction,
        certain=certain,
    )


def _interval(phase: PhaseResult, statistic: str, confidence: float) -> Interval:
    data, rounds = phase.histogram, phase.round_medians_ns
    if statistic == "median":
        interval = histogram_interval(data, QUANTILES[statistic], confidence)
        between = median_interval(rounds, confidence)
        return interval if between is None else interval.hull(between)
    worth = independent_samples(data, rounds, confidence)
    return histogram_interval(data, QUANTILES[statistic], confidence, worth=worth)


def _quotient(before: Interval, after: Interval) -> tuple[float, float | None]:
    low = 0.0 if before.high is None else after.low / max(before.high, 1)
    high = None if after.high is None else after.high / max(before.low, 1)
    return low, high


def _judge(
    ratio: float, low: float, high: float | None, threshold: float
) -> tuple[Direction, bool]:
    if low > 1 and ratio >= 1 + threshold:
        return Direction.SLOWER, True
    if high is not None and high < 1 and ratio <= 1 - threshold:
        return Direction.FASTER, True
    certain = low >= 1 - threshold and high is not None and high <= 1 + threshold
    return Direction.UNCHANGED, certain


def _rate(old: MethodResult, new: MethodResult) -> Rate:
    return Rate(
        method=old.method,
        method_after=new.method,
        before_cycles_per_s=old.cycles_per_s,
        after_cycles_per_s=new.cycles_per_s,
        before_bytes_per_s=old.bytes_per_s,
        after_bytes_per_s=new.bytes_per_s,
    )
