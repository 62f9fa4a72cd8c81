"""The result of ``vmtool fleet``: machines in groups, which differ, and what may explain it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass
from typing import Final

#: Times, sizes and rates are less, and not nearer to 0 than its inverse.
_MOST: Final = 2.0**64


@dataclass(frozen=True, slots=True)
class Problem:
    """A source that gave no result, or one with failed checks.

    Attributes:
        source: The file, the line of it, or the host.
        kind: unreadable, other (not a result with a machine), version (of the document, or of
            vmtool there), lost (its worker died), timeout, failed (its command failed), or checks
            (its result has failed checks, and is judged all the same), ambiguous (results of one
            host name have other hardware, and are judged as one machine), or copy (of another
            result of the host, which is read once).
        problem: What is wrong.
    """

    source: str
    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class Reason:
    """A fact that separates machines from the others of their group.

    Attributes:
        fact: Its path, such as ``huge_pages.thp_mode``.
        value: What it is there.
        usual: What it mostly is on the others.
        separation: How well it separates: the share there that has the value less the share of the
            others that has it; 1 is perfect.
    """

    fact: str
    value: str
    usual: str
    separation: float


@dataclass(frozen=True, slots=True)
class Outlier:
    """One measure of one machine that differs from the group.

    Attributes:
        host: The machine.
        measure: The measure.
        value: The geometric mean of its runs (the mean, where values can be negative).
        usual: What is usual in the group, or in its nearest part where the measure splits it.
        ratio: value / usual, or null where that has no meaning.
        p_value: How probable so large a difference is for a machine like the others.
        reasons: Facts that the machine does not share with the others, the best first.
    """

    host: str
    measure: str
    value: float
    usual: float
    ratio: float | None
    p_value: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Machines of a group that are alike by a measure, and not like the others.

    Attributes:
        usual: What is usual there.
        hosts: The machines.
        reasons: Facts that separate them from the largest part, the best first; none of that itself,
            which is the first of those that are as large.
    """

    usual: float
    hosts: tuple[str, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A measure by which a group falls into parts.

    Attributes:
        measure: The measure.
        parts: Two or more, the lowest first; a machine that belongs to none is judged by the nearest.
    """

    measure: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """One measure over the machines of a group.

    Attributes:
        measure: The measure.
        usual: The biweight location of the machines.
        scale: The biweight scale: of logarithms, and so a ratio, or of the values.
        logarithmic: Whether it is of logarithms.
        runs_scale: How much the runs of one machine vary, or null with one run each.
        tested: Machines that were tested.
        single: Machines with one value of it, which are not judged by it.
        values: One for each machine of the group, in its order; null where it has none.
    """

    measure: str
    usual: float
    scale: float
    logarithmic: bool
    runs_scale: float | None
    tested: int
    single: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FactSpread:
    """A fact that is not the same on all machines of a group.

    Attributes:
        fact: The path of the fact.
        machines: How many machines have each value.
    """

    fact: str
    machines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Group:
    """Machines that should be alike.

    Attributes:
        alike: The facts that they were grouped by.
        hosts: The machines.
        decided: Whether any of them was judged.
        undecided: Why none was: ``few`` (fewer alike machines than that takes), ``single`` (one run
            each), ``baseline`` (the baseline has no such machines) or ``no measures``; else empty.
        judged: Machines that were judged by a measure or more.
        single_runs: Machines with one run of everything, which are not judged.
        unnamed: Machines that may be the same as another: their results do not say which they are,
            and their facts are equal.
        spreads: Every measure.
        outliers: Measures of machines that differ.
        splits: Measures by which it falls into parts.
        facts: Facts that differ within it.
    """

    alike: Mapping[str, str]
    hosts: tuple[str, ...]
    decided: bool
    undecided: str
    judged: int
    single_runs: tuple[str, ...]
    unnamed: tuple[str, ...]
    spreads: tuple[Spread, ...]
    outliers: tuple[Outlier, ...]
    splits: tuple[Split, ...]
    facts: tuple[FactSpread, ...]


@dataclass(frozen=True, slots=True)
class BaselineMeasure:
    """What is usual for a measure, saved for later machines.

    Attributes:
        measure: The measure.
        usual: What is usual among the machines, as in a spread.
        scale: How much the machines vary, as in a spread.
        logarithmic: Whether ratios are compared, as in a spread.
        runs_scale: How much the runs of a machine vary, as in a spread.
        machines: How many machines it is of.
    """

    measure: str
    usual: float
    scale: float
    logarithmic: bool
    runs_scale: float | None
    machines: int

    def problem(self) -> str | None:
        """Return what is wrong with it, if no machines can have such values."""
        if self.logarithmic and not 1 / _MOST <= self.usual < _MOST:
            return (
                "usual must be above 0 where logarithmic is true, at least 2^-64 and less than 2^64"
            )
        if abs(self.usual) >= _MOST**2:
            return "usual must be between -2^128 and 2^128"
        if not 0 <= self.scale < _MOST**2 or not 0 <= (self.runs_scale or 0) < _MOST**2:
            return "scale and runs_scale must be at least 0 and less than 2^128"
        return "machines must be at least 2" if self.machines < 2 else None


@dataclass(frozen=True, slots=True)
class BaselineGroup:
    """What is usual in a group.

    Attributes:
        alike: The facts of its machines.
        measures: What is usual.
        facts: The most frequent value of each fact.
    """

    alike: Mapping[str, str]
    measures: tuple[BaselineMeasure, ...]
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FleetBaseline:
    """The baseline that ``vmtool fleet --save`` writes.

    Attributes:
        groups: The groups.
    """

    groups: tuple[BaselineGroup, ...]


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Results of many machines, judged against each other.

    Attributes:
        complete: Whether everything was gathered; false after an interruption.
        baseline: Whether machines were judged against a saved baseline.
        threshold: The smallest difference that counts, as a part.
        false_discovery_rate: The part of outliers that may be so by chance.
        results: Documents that were read.
        machines: Machines in all groups.
        tests: Measures of machines that were tested.
        groups: The machines.
        problems: Sources that gave no result, and machines with failed checks.
    """

    complete: bool
    baseline: bool
    threshold: float
    false_discovery_rate: float
    results: int
    machines: int
    tests: int
    groups: tuple[Group, ...]
    problems: tuple[Problem, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Machines with failed checks."""
        return tuple(dict.fromkeys(p.source for p in self.problems if p.kind == "checks"))

    @property
    def outliers(self) -> int:
        """Measures of machines that differ, in all groups."""
        return sum(len(group.outliers) for group in self.groups)
