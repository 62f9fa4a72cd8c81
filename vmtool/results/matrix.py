"""What ``vmtool matrix`` found: the cost of every pattern with every method and granule."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any

from vmtool.histograms import Summary  # noqa: TC001 - likewise
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise
from vmtool.results.stress import MethodReason, Outcome, StressSettings  # noqa: TC001 - likewise


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One pattern with one granule and one method.

    Attributes:
        method: Its name; ``+huge`` at the end asks for huge pages.
        cycles: Commits.
        cycle_ns: The medians of commit, touch and release together; ``None`` without samples.
        per_gib_ns: What cycles over 1 GiB cost at that rate.
        commit: A summary of the phase; *touch* and *release* are the same for theirs.
        failed: Checks that failed.
        refused: Why the preflight refused it, or ``None``.
        error: The call that failed, or how the worker ended; ``None`` if neither.
        cycle_low_ns: What *cycle_ns* is at least, by the medians of the rounds, with a confidence
            of 84 %; ``None`` where the rounds are too few for an interval.
        cycle_high_ns: What *cycle_ns* is at most, with the same confidence.
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
    per_gib_ns: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """All methods with one pattern and granule.

    Attributes:
        fastest: The method that is clearly the fastest; ``None`` where none is.
    """

    pattern: str
    granule_bytes: int
    fastest: str | None


@dataclass(frozen=True, slots=True)
class GranuleChoice:
    """One granule with the method that serves it best.

    Attributes:
        method: The one to use, by the median over the patterns that all methods ran.
        per_gib_ns: The median over the patterns.
        without_huge_ns: What that method costs without huge pages, where both were measured.
        waste_share: The part of what is committed that a sequence of the model does not use.
        per_used_gib_ns: *per_gib_ns* divided by the part that is used.
        reason: Why this method; ``None`` where only one was measured.
        fastest: The cheapest method.
        fastest_per_gib_ns: What that one costs.
    """

    granule_bytes: int
    method: str
    per_gib_ns: int
    without_huge_ns: int | None = None
    waste_share: float | None = None
    per_used_gib_ns: int | None = None
    reason: MethodReason | None = None
    fastest: str | None = None
    fastest_per_gib_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """The result of ``vmtool matrix``.

    Attributes:
        settings: What all cells share.
        complete: Whether every cell was run; an interrupt leaves the rest out.
        passed: Whether every cell that ran did so to its end, without a failed check.
        rows: Which method is clearly the fastest, by pattern and granule.
        granules: Each granule with its best method.
        best: That of *granules* to use here: the cheapest, and within 5 % the smallest.
        model: Whose waste *granules* have; ``None`` without ``--model``.
        context_tokens: The length of its sequence.
        device: The driver's own name of the device; ``None`` for the host.
        machine: Facts about the machine, as ``vmtool doctor`` shows them.
    """

    settings: StressSettings
    cells: tuple[MatrixCell, ...]
    complete: bool
    passed: bool
    rows: tuple[MatrixRow, ...]
    granules: tuple[GranuleChoice, ...]
    best: GranuleChoice | None
    model: str | None = None
    context_tokens: int | None = None
    device: str | None = None
    conditions: RunConditions | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
