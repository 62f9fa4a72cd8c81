"""The figures of a stress run, such as ``commit.p99``: their names, units and values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.histograms import P999_SAMPLES
from vmtool.results.stress import HUGE, METHODS, PHASES, base_method
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results.stress import MethodResult


#: Statistics of a phase, by the names that a condition may use.
STATISTICS: Final = ("min", "median", "p50", "p90", "p99", "p99.9", "p999", "max", "mean")
#: Rates of a whole method.
RATES: Final = ("cycles_per_s", "bytes_per_s")
#: The whole of commit, touch and release: of its statistics those that add up are known.
CYCLE: Final = "cycle"
_PARTS: Final = ("commit", "touch", "release")
_ADD_UP: Final = ("median", "mean")
_ALIASES: Final = {"p50": "median", "p999": "p99.9"}
_METRIC: Final = re.compile(
    rf"(?:(?P<method>[a-z][a-z0-9_-]*(?:{re.escape(HUGE)})?)\.)??"
    rf"(?:(?P<phase>{'|'.join((*PHASES, CYCLE))})\.(?P<statistic>{'|'.join(map(re.escape, STATISTICS))})"
    rf"|(?P<rate>{'|'.join(RATES)}))"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run.

    Attributes:
        method: Only this commit method; ``None`` is every method of the run.
        phase: The phase; ``None`` for a rate.
        statistic: One of :data:`STATISTICS` without its aliases, or of :data:`RATES`.
    """

    method: str | None
    phase: str | None
    statistic: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.method, self.phase, self.statistic) if part)

    @property
    def unit(self) -> str:
        """``ns``, ``bytes/s`` or ``cycles/s``."""
        if self.phase is not None:
            return "ns"
        return "bytes/s" if self.statistic == "bytes_per_s" else "cycles/s"

    def show(self, value: Fraction | float) -> str:
        """Return *value* with the metric's unit."""
        if self.phase is not None:
            return format_duration(float(value))
        if self.statistic == "bytes_per_s":
            return f"{format_size(round(value))}/s"
        return f"{float(value):,.0f}/s"


def named_by(method: str | None, names: Sequence[str]) -> str | None:
    """Return which of *names* a condition on *method* is about; without huge pages if both ran."""
    if method is None or method in names or method + HUGE not in names:
        return method
    return method + HUGE


def measured(metric: Metric, method: MethodResult) -> Fraction | str:
    """Return what *method* measured for *metric*, or why it cannot be decided."""
    if metric.phase is None:
        return Fraction(getattr(method, metric.statistic))
    if metric.phase == CYCLE:
        whole = Fraction(0)
        for name in _PARTS:
            part = measured(Metric(None, name, metric.statistic), method)
            if isinstance(part, str):
                return part
            whole += part
        return whole
    phase = method.phase(metric.phase)
    if phase is None or not phase.summary.samples:
        return f"{method.method}: no {metric.phase} was measured{_instead(metric, method)}"
    attribute = "p999" if metric.statistic == "p99.9" else metric.statistic
    value = getattr(phase.summary, f"{attribute}_ns")
    if value is None:
        return (
            f"{method.method}: {phase.summary.samples:,} samples are too few for "
            f"{metric.statistic}, which needs {P999_SAMPLES:,}"
        )
    return Fraction(value)


def _instead(metric: Metric, method: MethodResult) -> str:
    """Return why a phase may have no samples, and what to name in its place."""
    why = " (--touch none)" if metric.phase == "touch" else ""
    known = [p.phase for p in method.phases if p.phase in _PARTS and p.summary.samples]
    names = " or ".join(f"{phase}.{metric.statistic}" for phase in known)
    return f"{why}; use {names}" if names else why


def parse_metric(name: str) -> Metric:
    """Return the figure called *name*, such as ``commit.p99`` or ``protect.cycle.median``.

    Raises:
        UsageError: If there is no such figure, or no such method on any system.
    """
    match = _METRIC.fullmatch(name)
    if match is None:
        known = [f"{phase}.{statistic}" for phase in PHASES for statistic in STATISTICS]
        known += [f"{CYCLE}.{statistic}" for statistic in _ADD_UP]
        near = get_close_matches(name, [*known, *RATES], n=3)
        raise UsageError(
            f"{name!r} is not a figure of a run",
            hint=f"did you mean {' or '.join(near)}?"
            if near
            else f"PHASE.STATISTIC, with {', '.join(PHASES)} and {', '.join(STATISTICS)}; "
            f"or {' or '.join(RATES)}; a method's name may stand in front",
        )
    method = match["method"]
    if method is not None and base_method(method) not in METHODS:
        near = get_close_matches(method, METHODS, n=1)
        raise UsageError(
            f"{name!r}: {method!r} is not a method",
            hint=f"did you mean {near[0]}?" if near else f"the methods are {', '.join(METHODS)}",
        )
    named = match["rate"] or match["statistic"]
    statistic = _ALIASES.get(named, named)
    if match["phase"] == CYCLE and statistic not in _ADD_UP:
        raise UsageError(
            f"{name!r}: a whole cycle has no {named}",
            hint=f"use {' or '.join(f'{CYCLE}.{known}' for known in _ADD_UP)}",
        )
    return Metric(method, match["phase"], statistic)
