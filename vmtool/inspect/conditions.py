"""Conditions on the counters of a process, such as ``resident.slope<1MiB/min``, and whether they hold; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.compare.condition_syntax import holds, split_condition
from vmtool.errors import UsageError
from vmtool.results.check_outcomes import NOT_PROVEN, Check, CheckOutcome
from vmtool.units import parse_count, parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vmtool.results.check_outcomes import Value
    from vmtool.results.inspect import Sample

from vmtool.inspect.trends import COUNTERS, LEAST_SAMPLES, fresh, trend

_PER_S: Final = {"s": 1, "min": 60, "h": 3600}
_EXAMPLES: Final = "write it like resident.slope<1MiB/min or resident.max<2GiB"
_FIGURES: Final = ("last", "max", "slope")


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
    counter = COUNTERS.get(name)
    if counter is None or (kind and kind not in _FIGURES):
        from difflib import get_close_matches

        near = get_close_matches(name, COUNTERS, n=1) or [name if counter else "resident"]
        raise UsageError(
            f"{text!r}: {figure!r} is neither a counter nor the .max or .slope of one",
            hint=f"did you mean {near[0]}{f'.{kind}' if kind in _FIGURES else ''}? "
            f"The counters are {', '.join(COUNTERS)}",
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
        samples = fresh(condition.counter, of_program, read_at or {})
    values = [v for s in samples if (v := getattr(s, condition.counter)) is not None]
    name = f"assert {condition.text}"
    limit: dict[str, Value] = {"limit": condition.value, "unit": condition.unit}
    if not values:
        reason = "not available" if samples else "not measured"
        return Check(name, CheckOutcome.NOT_DONE, {"reason": reason})
    if condition.figure != "slope":
        value = max(values) if condition.figure == "max" else values[-1]
        return Check(name, CheckOutcome.of(condition.holds(value)), {"value": value, **limit})
    found = trend(condition.counter, samples)
    if found is None and len(values) < LEAST_SAMPLES:
        few: dict[str, Value] = {"reason": "too few samples", "samples": len(values)}
        return Check(name, CheckOutcome.NOT_DONE, {**few, "needed": LEAST_SAMPLES})
    if found is None:  # it never changed
        return Check(name, CheckOutcome.of(condition.holds(0.0)), {"value": 0.0, **limit})
    numbers = {"value": found.per_second, "low": found.low, "high": found.high}
    ends = {condition.holds(found.low), condition.holds(found.high)}
    if len(ends) > 1:
        return Check(name, CheckOutcome.NOT_DONE, {**numbers, **limit, "reason": NOT_PROVEN})
    return Check(name, CheckOutcome.of(ends.pop()), {**numbers, **limit})
