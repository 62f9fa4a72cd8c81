"""The first lines of a report about a process: what it does, what is filling up, and how it ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from vmtool.errors import printable
from vmtool.report.inspect_findings import describe, shown_count, shown_size
from vmtool.results.inspect import (
    FindingRating,
    WatchEnding,
)
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results.inspect import InspectResult, LimitUse, ProgramStart, Trend


_UNITS: Final = {
    "areas": "memory areas",
    "descriptors": "descriptors",
    "user_tasks": "tasks of the user",
    "group_tasks": "tasks of the control group",
    "address_space_bytes": "of address space",
    "charge_bytes": "of private writable memory",
    "locked_bytes": "of locked memory",
    "group_used_bytes": "charged to the control group, not counting its file cache",
}


def describe_ending(result: InspectResult) -> str | None:
    """Return how the watch ended, if it ended early."""
    if not result.samples:
        return None  # the first line says it
    if result.ending is WatchEnding.INTERRUPTED:
        return "interrupted: the figures cover what was watched until then"
    if result.ending is WatchEnding.PROCESS_ENDED:
        return (
            f"the process ended{_exit_words(result.process.exit_code)}: the figures are the last ones "
            "that could be read"
        )
    return None


def _exit_words(code: int | None) -> str:
    if code is None:
        return ""
    names = {128 + number: number.name for number in signal.Signals}
    return f" with exit code {code}" + (f" ({names[code]})" if code in names else "")


def headline(result: InspectResult) -> str:
    """Return the answer: what stops the process, or what comes nearest to it."""
    who = f"{printable(result.process.name)} ({result.process.pid})"
    if not result.samples:
        end = _exit_words(result.process.exit_code)
        return f"{who}: nothing was measured: it ended before the first sample{end and f',{end}'}"
    first = next(iter(result.findings), None)  # the worst
    problems = [f for f in result.findings if f.rating is FindingRating.PROBLEM]
    if first is not None and problems:
        also = _more(len(problems) - 1, "problem")
        filling = [t for t in result.trends if t.limit and t.limit == first.values.get("limit")]
        growth = _growth(result, but=filling)
        return f"{who}: {describe(first)[0].partition(';')[0]}{_full_in(filling)}{also}{growth}"
    filling = [trend for trend in result.trends if trend.full_in_s is not None]
    if filling:
        filling.sort(key=lambda trend: trend.full_in_s or 0.0)
        limit = next(limit for limit in result.limits if limit.name == filling[0].limit)
        growth = _growth(result, but=filling[:1])
        return f"{who}: no problem yet; {_use(limit)}{_full_in(filling)}{growth}"
    warnings = [f for f in result.findings if f.rating is FindingRating.WARNING]
    if first is not None and warnings:
        also = _more(len(warnings) - 1, "warning")
        return f"{who}: {describe(first)[0].partition(';')[0]}{also}"
    nearest = max(
        (limit for limit in result.limits if limit.soft and limit.used is not None),
        key=lambda limit: (limit.used or 0) / (limit.soft or 1),
        default=None,
    )
    if nearest is None:
        return f"{who}: no problem found; no limit is {'set' if result.limits else 'known'}"
    return f"{who}: no problem found; nearest limit: {_use(nearest)}"


def _growth(result: InspectResult, *, but: Sequence[Trend]) -> str:
    """Return what grows, unless it is said already, as one of the trends *but*."""
    growth = next((finding for finding in result.findings if finding.name == "growth"), None)
    if growth is None or growth.values["counter"] in {trend.counter for trend in but}:
        return ""
    return f"; {describe(growth)[0].partition(';')[0]}"


def describe_programs(programs: Sequence[ProgramStart]) -> str:
    """Return which programs the process ran, one after the other."""
    first, *others = programs
    words = [f"{printable(each.name)} after {format_duration(each.at_ns)}" for each in others]
    return (
        f"exec: {printable(first.name)}, then {', then '.join(words)}; trends and reservations "
        "cover only the last program"
    )


def _full_in(filling: Sequence[Trend]) -> str:
    return f", full in {time_left(filling[0])} at this rate" if filling else ""


def time_left(trend: Trend) -> str:
    """Return how long a trend takes to its limit."""
    return format_duration((trend.full_in_s or 0) * 1e9)


def _more(count: int, what: str) -> str:
    return f", and {count} more {what}{'s'[: count > 1]}" if count else ""


def _use(limit: LimitUse) -> str:
    form = shown_size if limit.counter.endswith("_bytes") else shown_count
    unit = _UNITS.get(limit.counter, limit.counter)
    return f"{form(limit.used)} of {form(limit.soft)} {unit} ({limit.name})"
