"""How counters change while a process is watched: slopes, and the time to a limit; pure."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from vmtool.results.inspect import Sample, Trend
from vmtool.slopes import growth
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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
#: Fewer have no slope with a 99 % interval.
LEAST_SAMPLES: Final = 6


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
        trend(
            field.name,
            fresh(field.name, samples, read_at),
            _first_limit(field.name, known),
        )
        for field in fields(Sample)
        if field.name != "at_ns" and field.name not in _NOT_TRENDS
    )
    return tuple(each for each in found if each is not None)


def fresh(
    counter: str, samples: Sequence[Sample], read_at: Mapping[str, Collection[int]]
) -> Sequence[Sample]:
    """Return the *samples* with a new reading of *counter*; see :func:`trends`."""
    moments = read_at.get(counter)
    return samples if moments is None else [s for s in samples if s.at_ns in moments]


def trend(counter: str, samples: Sequence[Sample], limit: LimitUse | None = None) -> Trend | None:
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
