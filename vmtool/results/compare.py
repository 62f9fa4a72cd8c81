"""What ``vmtool compare`` found: two sets of stress runs, and what changed between them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vmtool.results.check_outcomes import Check  # noqa: TC001 - decoding reads the types
from vmtool.results.stress import Outcome  # noqa: TC001 - likewise


class Direction(enum.Enum):
    """The verdict on one figure."""

    FASTER = "faster"
    SLOWER = "slower"
    UNCHANGED = "unchanged"
    #: The interval reaches both below and beyond the threshold, or the runs are too few for one.
    NOT_PROVEN = "not proven"


class Doubt(enum.Enum):
    """Why two sides that were measured one after the other may differ although nothing changed."""

    #: The processors were idle for less than a quarter of some result's time.
    BUSY = "busy"
    #: They were started more than ten minutes apart.
    APART = "apart"


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """A result that was compared.

    Attributes:
        path: The file.
        command: The command line that made it.
        vmtool: The version that made it.
        runs: Runs in it that were compared.
        started: When it was started, in UTC; ``None`` where it does not say.
        host: The name of the machine; ``None`` where it does not say.
        label: What the user called it.
        load: The load average over a minute before it; ``None`` where it does not say.
        idle_share: The part of all processors' time that was idle meanwhile.
    """

    path: str
    command: tuple[str, ...]
    vmtool: str
    runs: int
    started: str | None
    host: str | None
    label: str | None
    load: float | None = None
    idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that was not compared, or that ended early.

    Attributes:
        path: The file.
        run: Which run of it, from 0.
        outcome: How it ended.
        cycles: Cycles that it did.
        compared: Whether what it has was compared all the same, as after an interruption.
    """

    path: str
    run: int
    outcome: Outcome
    cycles: int
    compared: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which two results differ; ``None`` is not available."""

    name: str
    before: str | int | float | bool | None
    after: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class UnlikeFile:
    """A result that differs from the first one of its own side.

    Attributes:
        path: The file.
        differences: What differs in the machine, the settings and the methods; ``before`` is of the first file.
    """

    path: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """One side of a comparison.

    Attributes:
        path: The file or folder.
        runs: Runs that were compared.
        files: Where they are from.
        incomplete: Runs that did not end as they should.
        unlike: Files that differ from the first one, so that their runs are no repetitions of it.
    """

    path: str
    runs: int
    files: tuple[ComparedFile, ...]
    incomplete: tuple[LeftOut, ...]
    unlike: tuple[UnlikeFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one phase, before and after.

    Attributes:
        method: The commit method before.
        method_after: The commit method after: another one if each side had a single method.
        phase: A phase, or ``cycle`` for commit, touch and release together.
        statistic: ``median`` or ``p99``, of the samples of a run.
        before_ns: The median of the runs of the side before.
        after_ns: The median of the runs of the side after.
        before_runs_ns: The figure of each run of the side before.
        after_runs_ns: The figure of each run of the side after.
        ratio: The figure after, divided by that before.
        low: Lower end of the ratio's interval; ``None`` where the runs are too few.
        high: Upper end.
        direction: The verdict.
        variation: The larger coefficient of variation of the two sides; ``None`` for single runs.
        runs_needed: How many runs per side would show a change of 20 %; ``None`` for single runs.
    """

    method: str
    method_after: str
    phase: str
    statistic: str
    before_ns: int
    after_ns: int
    before_runs_ns: tuple[int, ...]
    after_runs_ns: tuple[int, ...]
    ratio: float
    low: float | None
    high: float | None
    direction: Direction
    variation: float | None
    runs_needed: int | None


@dataclass(frozen=True, slots=True)
class Rate:
    """Cycles and bytes per second of one method, the medians of the runs; they carry no verdict."""

    method: str
    method_after: str
    before_cycles_per_s: float
    after_cycles_per_s: float
    before_bytes_per_s: float
    after_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Two sets of runs of ``vmtool stress`` compared.

    Attributes:
        before: The reference.
        after: What is judged.
        confidence: The confidence that every interval has at least.
        threshold: The part by which a figure must change to be called faster or slower.
        changes: The changes by method, that of the whole cycle first.
        machine: Facts about the machines that differ.
        settings: Settings of the runs that differ.
        unmatched: Methods and phases that only one side has.
        apart_ns: The time between the starts of the two sides, the medians of their files; ``None``
            where a file does not say when it was started.
        doubts: Why the sides may differ although nothing changed; none if their runs were alternated.
        checks: One for each ``--fail-on``.
        passed: Whether no check failed.
    """

    before: ComparedSet
    after: ComparedSet
    confidence: float
    threshold: float
    changes: tuple[Change, ...]
    rates: tuple[Rate, ...]
    machine: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    unmatched: tuple[str, ...]
    apart_ns: int | None
    doubts: tuple[Doubt, ...]
    checks: tuple[Check, ...]
    passed: bool
