"""How counters change while a process is watched: slopes, time to a limit, conditions; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.results.check import NOT_PROVEN, Check, CheckOutcome
from vmtool.results.inspect import Sample, Trend
from vmtool.stats import slope
from vmtool.units import MIB, parse_count, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vmtool.results.inspect import LimitUse

#: The counters that can grow without end, by the name that reports and conditions use.
COUNTERS: Final = {
    field.name.removesuffix("_bytes").removesuffix("_ns").replace("_", "-"): field.name
    for field in fields(Sample)
    if field.name != "at_ns"
}
_NOT_TRENDS: Final = frozenset({"minor_faults", "major_faults", "cpu_ns"})
#: Growth below this over the whole watch is not called growth, however steady it is.
_LEAST: Final = {True: MIB, False: 8}
_LEAST_SHARE: Final = 0.01


def trends(samples: Sequence[Sample], limits: Iterable[LimitUse]) -> tuple[Trend, ...]:
    """Return the trend of every counter that has at least six samples and changed.

    The slope is Theil and Sen's with a 99 % interval (see ``vmtool.stats.slope``). Growth counts
    when that interval is above zero and what it makes of the whole watch is at least 1 MiB (8 of
    what is counted) and 1 % of the counter.
    """
    found = []
    bounds = {limit.counter: limit for limit in limits if limit.soft is not None}
    for field in fields(Sample):
        counter = field.name
        if counter == "at_ns" or counter in _NOT_TRENDS:
            continue
        trend = _trend(counter, samples, bounds.get(counter))
        if trend is not None:
            found.append(trend)
    return tuple(found)


def _trend(counter: str, samples: Sequence[Sample], limit: LimitUse | None) -> Trend | None:
    points = [
        (sample.at_ns / 1e9, float(value))
        for sample in samples
        if (value := getattr(sample, counter)) is not None
    ]
    if len({value for _, value in points}) < 2:
        return None
    found = slope(points)
    if found is None:
        return None
    watched_s = points[-1][0] - points[0][0]
    least = max(_LEAST[counter.endswith("_bytes")], points[-1][1] * _LEAST_SHARE)
    grows = found.rises and found.low * watched_s > 0 and found.per_step * watched_s >= least
    full_in_s = None
    if grows and limit is not None and limit.soft is not None and found.per_step > 0:
        used = limit.used if limit.used is not None else points[-1][1]
        full_in_s = max(limit.soft - used, 0) / found.per_step
    return Trend(
        counter,
        per_second=found.per_step,
        low=found.low,
        high=found.high,
        samples=found.points,
        grows=grows,
        limit=limit.name if full_in_s is not None and limit is not None else None,
        full_in_s=full_in_s,
    )


_PER_S: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}
_CONDITION: Final = re.compile(
    r"\s*([a-z-]+)(?:\.(last|max|slope))?\s*(<=?|>=?)\s*([^/\s]+(?: [^/\s]+)?)(?:/(s|min|h))?\s*"
)


@dataclass(frozen=True, slots=True)
class CounterCondition:
    """A condition on a counter, such as ``resident.slope<1MiB/min``.

    Attributes:
        text: As it was written.
        counter: A field of ``Sample``.
        figure: ``last``, ``max`` or ``slope``.
        operator: ``<``, ``<=``, ``>`` or ``>=``.
        value: In the unit of the counter, per second for a slope.
    """

    text: str
    counter: str
    figure: str
    operator: str
    value: float


def parse_condition(text: str) -> CounterCondition:
    """Return the condition in *text*.

    Raises:
        UsageError: If it is none; the message says what would be.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--assert {text!r}: not a condition",
            hint="write COUNTER<VALUE or COUNTER.slope<VALUE/min, such as resident.slope<1MiB/min",
        )
    name, figure, operator, value, per = match.groups()
    counter = COUNTERS.get(name)
    if counter is None:
        raise UsageError(
            f"--assert {text!r}: there is no counter {name!r}",
            hint=f"use one of {', '.join(COUNTERS)}",
        )
    if (figure == "slope") != (per is not None):
        raise UsageError(
            f"--assert {text!r}: a slope needs a rate, and only a slope has one",
            hint="write resident.slope<1MiB/min or resident.max<2GiB",
        )
    number = parse_size(value) if counter.endswith("_bytes") else parse_count(value)
    return CounterCondition(
        text, counter, figure or "last", operator, number / _PER_S[per] if per else number
    )


def evaluate(
    condition: CounterCondition, samples: Sequence[Sample], found: Iterable[Trend]
) -> Check:
    """Return whether *condition* holds.

    A slope is judged by its interval: the condition fails only where the whole interval breaks it,
    and is not proven where the interval is on both sides. What was not measured is not done.
    """
    values = [v for s in samples if (v := getattr(s, condition.counter)) is not None]
    name = f"assert {condition.text}"
    unit = ("bytes" if condition.counter.endswith("_bytes") else "") + (
        "/s" if condition.figure == "slope" else ""
    )
    limit: dict[str, int | float | str | bool | None] = {"limit": condition.value, "unit": unit}
    if not values:
        return Check(name, CheckOutcome.NOT_DONE, {"reason": "not measured"})
    if condition.figure != "slope":
        value = max(values) if condition.figure == "max" else values[-1]
        outcome = CheckOutcome.of(_holds(value, condition))
        return Check(name, outcome, {"value": value, **limit})
    trend = next((t for t in found if t.counter == condition.counter), None)
    if trend is None:
        # Six samples that never changed have no slope; fewer say nothing.
        if len(values) < 6:
            return Check(name, CheckOutcome.NOT_DONE, {"reason": "too few samples"})
        return Check(name, CheckOutcome.of(_holds(0.0, condition)), {"value": 0.0, **limit})
    ends = {_holds(trend.low, condition), _holds(trend.high, condition)}
    outcome = CheckOutcome.of(ends.pop()) if len(ends) == 1 else CheckOutcome.NOT_DONE
    numbers = {"value": trend.per_second, "low": trend.low, "high": trend.high}
    reason = {"reason": NOT_PROVEN} if outcome is CheckOutcome.NOT_DONE else {}
    return Check(name, outcome, {**numbers, **limit, **reason})


def _holds(value: float, condition: CounterCondition) -> bool:
    return {
        "<": value < condition.value,
        "<=": value <= condition.value,
        ">": value > condition.value,
        ">=": value >= condition.value,
    }[condition.operator]
