"""Conditions on a run or a change, such as ``commit.p99<5ms``, and whether they hold."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, Final

from vmtool.compare.condition_syntax import holds, split_condition
from vmtool.compare.confidence_intervals import RUNS_NEEDED, location, shift
from vmtool.compare.metrics import Metric, measured, named_by, parse_metric
from vmtool.errors import UsageError
from vmtool.results.check_outcomes import NOT_PROVEN, Check, CheckOutcome
from vmtool.units import parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import MethodResult, StressResult


_PERCENT: Final = re.compile(r"([+-]?)([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """A metric, an operator and a limit.

    Attributes:
        text: As it was written.
        operator: ``<``, ``<=``, ``>`` or ``>=``.
        limit: Nanoseconds, bytes or cycles per second; for a change the part of the old value,
            so that ``+20%`` is 1/5.
    """

    text: str
    metric: Metric
    operator: str
    limit: Fraction

    def holds(self, value: Fraction | float) -> bool:
        """Return whether *value* is on the side of the limit that the condition names."""
        return holds(value, self.operator, self.limit)


def parse_assertion(text: str) -> Condition:
    """Return the condition that one run must meet: ``commit.p99<5ms``, ``cycles_per_s>10000``.

    Durations need a unit, because a bare number would have to be guessed. ``bytes_per_s`` takes
    a size. A method's name in front (``protect.commit.p99<5ms``) restricts it to that method.

    Raises:
        UsageError: If *text* is not such a condition.
    """
    name, operator, value = split_condition(text, "commit.p99<5ms")
    metric = parse_metric(name)
    try:
        limit = _parse_limit(metric, value)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error
    return Condition(text, metric, operator, limit)


def parse_change(text: str) -> Condition:
    """Return the condition on a change from one run to another: ``commit.p99>+20%``.

    Raises:
        UsageError: If *text* is not such a condition.
    """
    name, operator, value = split_condition(text, "commit.p99>+20%")
    metric = parse_metric(name)
    match = _PERCENT.fullmatch(value)
    if match is None:
        raise UsageError(
            f"{text!r}: {value!r} is not a change in percent",
            hint="write the change from the first run to the second, such as +20% or -5%",
        )
    sign = -1 if match[1] == "-" else 1
    return Condition(text, metric, operator, sign * Fraction(match[2]) / 100)


def evaluate(
    condition: Condition, result: StressResult, *, confidence: float, strict: bool = False
) -> Check:
    """Return whether *result* meets *condition*, by the interval of the figure over its runs.

    It has passed if the whole interval meets it, and failed if none of it does; else it is not
    proven, which has failed too where *strict* is set. What was not measured in enough runs has
    failed: a gate that passes because there was nothing to measure would pass for ever.

    Args:
        condition: On a figure of a run.
        result: Of at least four runs.
        confidence: Of the interval.
        strict: Whether what is not proven has failed.
    """
    metric = condition.metric
    values: dict[str, Value] = {"condition": condition.text, "unit": metric.unit}
    full = {m.method: result.settings.full_name(m.method) for m in result.methods}
    chosen = named_by(metric.method, [name for pair in full.items() for name in pair])
    names = [name for name, whole in full.items() if chosen is None or chosen in (name, whole)]
    found = _Outcomes(reason=None if names else "method did not run")
    for name in names:
        figures = [measured(metric, method) for run in result.runs if (method := run.method(name))]
        known = [max(float(value), 1.0) for value in figures if isinstance(value, Fraction)]
        values[f"{name}.runs"] = len(known)
        if len(known) < RUNS_NEEDED:
            found.reason = "not measured"
            continue
        low, high = location(known, confidence)
        values |= {f"{name}.value": median(known), f"{name}.low": low, f"{name}.high": high}
        found.add(*(not condition.holds(Fraction(end)) for end in (low, high)))
    return found.check(f"assert.{''.join(condition.text.split())}", values, strict=strict)


@dataclass(slots=True)
class _Outcomes:
    """What the intervals of all methods say about one condition that must not come true.

    Attributes:
        reason: Why nothing can be said about some method.
    """

    reason: str | None
    failed: bool = False
    unproven: bool = False

    def add(self, *ends: bool) -> None:
        """Note for each end of an interval whether the condition comes true there."""
        self.failed |= all(ends)
        self.unproven |= any(ends) and not all(ends)

    def check(self, name: str, values: dict[str, Value], *, strict: bool) -> Check:
        if self.reason is not None:
            values["reason"] = self.reason
        elif self.unproven and not self.failed:
            values["reason"] = NOT_PROVEN
        if self.failed or self.reason is not None or (self.unproven and strict):
            return Check(name, CheckOutcome.FAILED, values)
        outcome = CheckOutcome.NOT_DONE if self.unproven else CheckOutcome.PASSED
        return Check(name, outcome, values)


def judge_change(
    condition: Condition,
    pairs: Sequence[tuple[Sequence[MethodResult], Sequence[MethodResult]]],
    *,
    alone: Sequence[str] = (),
    confidence: float,
    strict: bool = False,
) -> Check:
    """Return whether the interval of the change meets *condition*, which makes the check fail.

    It has failed if the whole interval is where the condition holds, and passed if none of it is;
    else it is not proven, which has failed too where *strict* is set. What was not measured, before
    and after, has failed.

    Args:
        condition: On a change.
        pairs: The runs of each method before and after, at least four each.
        alone: Methods that ran on one side only.
        confidence: Of the interval.
        strict: Whether what is not proven has failed.
    """
    metric = condition.metric
    values: dict[str, Value] = {"condition": condition.text, "limit": float(condition.limit)}
    names = [runs[0].method for pair in pairs for runs in pair]
    name = named_by(metric.method, [*names, *alone])
    chosen = [pair for pair in pairs if name in (None, pair[0][0].method, pair[1][0].method)]
    outcomes = _Outcomes(reason=None if chosen else "method did not run")
    missing = [other for other in alone if name in (None, other)]
    if missing:
        outcomes.reason = f"not measured on both sides: {', '.join(missing)}"
    for old, new in chosen:
        which = " -> ".join(dict.fromkeys((old[0].method, new[0].method)))
        before, after = ([measured(metric, run) for run in runs] for runs in (old, new))
        known = [
            [max(float(value), 1.0) for value in found if isinstance(value, Fraction)]
            for found in (before, after)
        ]
        if min(map(len, known)) < RUNS_NEEDED:
            lacking = [text for text in (*before, *after) if isinstance(text, str)]
            outcomes.reason = "; ".join(["not measured", *dict.fromkeys(lacking)])
            continue
        found = shift(known[0], known[1], confidence)
        low, high = (None if end is None else end - 1 for end in (found.low, found.high))
        values |= {f"{which}.change": found.ratio - 1, f"{which}.low": low, f"{which}.high": high}
        outcomes.add(
            condition.holds(-math.inf if low is None else Fraction(low)),
            condition.holds(math.inf if high is None else Fraction(high)),
        )
    return outcomes.check(f"fail-on.{''.join(condition.text.split())}", values, strict=strict)


def _parse_limit(metric: Metric, value: str) -> Fraction:
    if metric.phase is not None:
        if value[-1:].isdigit():
            raise ValueError(f"{value!r} has no unit; write ns, us, ms or s")
        return Fraction(parse_duration(value))
    if metric.statistic == "bytes_per_s":
        return Fraction(parse_size(value.removesuffix("/s")))
    if _NUMBER.fullmatch(value.removesuffix("/s")) is None:
        raise ValueError(f"{value!r} is not a number of cycles per second")
    return Fraction(value.removesuffix("/s"))
