"""How counters change while a process is watched, and conditions on that; pure.

Trends are slopes and the time to a limit; a condition is one such as ``resident.slope<1MiB/min``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from vmtool.compare.condition_syntax import holds, split_condition
from vmtool.errors import UsageError
from vmtool.results.check_outcomes import NOT_PROVEN, Check, CheckOutcome
from vmtool.results.inspect import Sample, Trend
from vmtool.slopes import growth
from vmtool.units import MIB, parse_count, parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from vmtool.results.check_outcomes import Value
    from vmtool.results.inspect import LimitUse

#: The counters that can grow without end, by the name that reports and conditions use.
_COUNTERS: Final = {
    field.name.removesuffix("_bytes").removesuffix("_ns").replace("_", "-"): field.name
    for field in fields(Sample)
    if field.name != "at_ns"
}
_NOT_TRENDS: Final = frozenset({"minor_faults", "major_faults", "cpu_ns"})
#: Growth below this over the whole watch is not called growth, however steady it is.
_LEAST: Final = {True: MIB, False: 8}
_LEAST_SHARE: Final = 0.01
#: Fewer have no slope with a 99 % interval.
_LEAST_SAMPLES: Final = 6
_PER_S: Final = {"s": 1, "min": 60, "h": 3600}
_EXAMPLES: Final = "write it like resident.slope<1MiB/min or resident.max<2GiB"
_FIGURES: Final = ("last", "max", "slope")


def trends(
    samples: Sequence[Sample],
    limits: Iterable[LimitUse],
    read_at: Mapping[str, Collection[int]] | None = None,
) -> tuple[Trend, ...]:
    """Return the trend of every counter that has at least six samples and changed.

    The slope is Theil and Sen's with a 99 % interval (see ``vmtool.slopes.pooled_slope``). It is called
    growth if it lasts, by the rule of ``stress`` (see ``vmtool.slopes.growth``), and is at least 1 MiB
    (8 of what is counted) and 1 % of the counter over the whole watch.

    Args:
        samples: In order.
        limits: Of the process.
        read_at: By counter the moments of the samples that have a new reading of it. Between two
            readings a sample repeats the former, and says nothing of its own. A counter that is
            missing is read at each sample.
    """
    read_at = read_at or {}
    known = [limit for limit in limits if limit.soft is not None]
    found = (
        _trend(
            field.name,
            _fresh(field.name, samples, read_at),
            _first_limit(field.name, known),
        )
        for field in fields(Sample)
        if field.name != "at_ns" and field.name not in _NOT_TRENDS
    )
    return tuple(each for each in found if each is not None)


def _fresh(
    counter: str, samples: Sequence[Sample], read_at: Mapping[str, Collection[int]]
) -> Sequence[Sample]:
    """Return the *samples* with a new reading of *counter*; see :func:`trends`."""
    moments = read_at.get(counter)
    return samples if moments is None else [s for s in samples if s.at_ns in moments]


def _trend(counter: str, samples: Sequence[Sample], limit: LimitUse | None = None) -> Trend | None:
    """Return the trend of one counter; ``None`` where it never changed or has too few samples."""
    points = [
        (sample.at_ns / 1e9, float(value))
        for sample in samples
        if (value := getattr(sample, counter)) is not None
    ]
    if len({value for _, value in points}) < 2:
        return None
    least = max(_LEAST[counter.endswith("_bytes")], points[-1][1] * _LEAST_SHARE)
    grown = growth([points], least)
    if grown is None:
        return None
    found, grows = grown.slope, grown.lasts
    watched_s = points[-1][0] - points[0][0]
    full_in_s = None
    if grows and limit is not None and limit.soft is not None:
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
        growth=grown.grown,
        growth_most=found.high * watched_s,
        growth_least=least,
    )


def _first_limit(counter: str, limits: Iterable[LimitUse]) -> LimitUse | None:
    """Return the limit with the least left of those that *counter* adds to."""
    # Its threads are tasks of its user and of its group.
    names = {counter, *(("user_tasks", "group_tasks") if counter == "threads" else ())}
    return min(
        (limit for limit in limits if limit.counter in names),
        key=lambda limit: (limit.soft or 0) - (limit.used or 0),
        default=None,
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

    @property
    def unit(self) -> str:
        """``bytes``, ``ns`` or nothing, with ``/s`` for a slope."""
        kind = next((k for k in ("bytes", "ns") if self.counter.endswith(f"_{k}")), "")
        return kind + ("/s" if self.figure == "slope" else "")

    def holds(self, value: float) -> bool:
        """Return whether *value* meets it."""
        return holds(value, self.operator, self.value)


def parse_condition(text: str) -> CounterCondition:
    """Return the condition in *text*.

    Raises:
        UsageError: If it is none; the message says what would be.
    """
    figure, operator, bound = split_condition(text, "resident.slope<1MiB/min")
    name, _, kind = figure.partition(".")
    counter = _COUNTERS.get(name)
    if counter is None or (kind and kind not in _FIGURES):
        from difflib import get_close_matches

        near = get_close_matches(name, _COUNTERS, n=1) or [name if counter else "resident"]
        raise UsageError(
            f"{text!r}: {figure!r} is neither a counter nor the .max or .slope of one",
            hint=f"did you mean {near[0]}{f'.{kind}' if kind in _FIGURES else ''}? "
            f"The counters are {', '.join(_COUNTERS)}",
        )
    value, slash, per = (part.strip() for part in bound.partition("/"))
    if (kind == "slope") != bool(slash) or (slash and per not in _PER_S):
        raise UsageError(
            f"{text!r}: only a slope has a bound per s, min or h, and it must have one",
            hint=_EXAMPLES,
        )
    parse = {"bytes": parse_size, "ns": parse_duration}.get(counter.rpartition("_")[2], parse_count)
    try:
        number = parse(value)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", hint=_EXAMPLES) from error
    return CounterCondition(
        text, counter, kind or "last", operator, number / _PER_S[per] if slash else number
    )


def evaluate(
    condition: CounterCondition,
    samples: Sequence[Sample],
    since: Sequence[Sample] | None = None,
    read_at: Mapping[str, Collection[int]] | None = None,
) -> Check:
    """Return whether *condition* holds.

    Args:
        condition: What has to hold; ``.max`` is about all samples.
        samples: All of them.
        since: Those since the process started the program that it runs, if not all: a slope is of
            these.
        read_at: As for :func:`trends`.

    A slope is judged by its interval: the condition fails only where the whole interval breaks it,
    and is not proven where the interval is on both sides. What was not measured is not done.
    """
    if condition.figure == "slope":
        of_program = samples if since is None else since
        samples = _fresh(condition.counter, of_program, read_at or {})
    values = [v for s in samples if (v := getattr(s, condition.counter)) is not None]
    name = f"assert {condition.text}"
    limit: dict[str, Value] = {"limit": condition.value, "unit": condition.unit}
    if not values:
        reason = "not available" if samples else "not measured"
        return Check(name, CheckOutcome.NOT_DONE, {"reason": reason})
    if condition.figure != "slope":
        value = max(values) if condition.figure == "max" else values[-1]
        return Check(name, CheckOutcome.of(condition.holds(value)), {"value": value, **limit})
    found = _trend(condition.counter, samples)
    if found is None and len(values) < _LEAST_SAMPLES:
        few: dict[str, Value] = {"reason": "too few samples", "samples": len(values)}
        return Check(name, CheckOutcome.NOT_DONE, {**few, "needed": _LEAST_SAMPLES})
    if found is None:  # it never changed
        return Check(name, CheckOutcome.of(condition.holds(0.0)), {"value": 0.0, **limit})
    numbers = {"value": found.per_second, "low": found.low, "high": found.high}
    ends = {condition.holds(found.low), condition.holds(found.high)}
    if len(ends) > 1:
        return Check(name, CheckOutcome.NOT_DONE, {**numbers, **limit, "reason": NOT_PROVEN})
    return Check(name, CheckOutcome.of(ends.pop()), {**numbers, **limit})
