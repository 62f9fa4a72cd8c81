"""Whether a worker leaks: slopes through its checkpoints, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.device_memory import shared_device
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.stress import COUNTERS, DEVICE_IN_USE, Checkpoint, CounterSlope
from vmtool.slopes import growth
from vmtool.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_HEAP_COUNTERS: Final = ("address_space", "charge", "resident")
#: Growth of the whole process below this is the interpreter's, not a leak: its heap takes memory
#: in arenas of 1 MiB, and a few of them while it warms up. Bytes; mappings are counted.
LEAK_FLOORS: Final = {
    "address_space": 6 * MIB,
    "charge": 6 * MIB,
    "resident": 4 * MIB,
    "mappings": 16,
    "device_memory": 8 * MIB,
    DEVICE_IN_USE: 8 * MIB,
}
#: What vmtool itself notes about a granule while it is committed, rounded up (some 300 bytes of
#: Python's integers, tuples and tables). It is taken when more are committed than ever before.
_NOTES_BYTES: Final = 512


def leak_slopes(
    runs: Sequence[Sequence[tuple[int, Mapping[str, int | None]]]], worker: int, live: int = 0
) -> tuple[CounterSlope, ...]:
    """Return the growth per cycle of each counter, over all runs of one worker.

    A leak is growth that lasts (see :func:`vmtool.slopes.growth`) and reaches the floor.

    Args:
        runs: For each run the points of (cycle, counts), in order.
        worker: Whose they are.
        live: Granules that are committed at once at most; notes about them are no leak.
    """
    found = []
    for name in LEAK_FLOORS:
        series = [
            [(float(cycle), float(v)) for cycle, at in points if (v := at.get(name)) is not None]
            for points in runs
        ]
        series = [points for points in series if points]
        floor = LEAK_FLOORS[name] + (live * _NOTES_BYTES if name in _HEAP_COUNTERS else 0)
        found_growth = growth(series, floor)
        if found_growth is None:
            continue
        line = found_growth.slope
        span = max(points[-1][0] - points[0][0] for points in series)
        found.append(
            CounterSlope(
                counter=name,
                worker=worker,
                per_cycle=line.per_step,
                low=line.low,
                high=line.high,
                confidence=line.confidence,
                points=line.points,
                grown=round(found_growth.grown),
                floor=floor,
                detectable_per_cycle=max(floor / span if span else 0.0, (line.high - line.low) / 2),
                leaks=found_growth.lasts,
            )
        )
    return tuple(found)


def worker_slopes(checkpoints: Sequence[Checkpoint], live: int) -> tuple[CounterSlope, ...]:
    """Return the slopes of every worker in *checkpoints*, those of all runs together."""
    found: list[CounterSlope] = []
    for worker in sorted({point.worker for point in checkpoints}):
        runs: dict[int, list[tuple[int, Mapping[str, int | None]]]] = {}
        for point in sorted(checkpoints, key=lambda point: point.at_ns):
            if point.worker == worker:
                runs.setdefault(point.run, []).append((point.cycle, point.process))
        found += leak_slopes(list(runs.values()), worker, live)
    return tuple(found)


def leak_checks(
    slopes: Sequence[CounterSlope], checkpoints: Sequence[Checkpoint]
) -> tuple[Check, ...]:
    """Return one check for each counter: failed if any worker leaks by it."""
    counted = {
        name for point in checkpoints for name, value in point.process.items() if value is not None
    }
    sloped = {slope.counter for slope in slopes}
    checks = []
    for name in LEAK_FLOORS:
        if name not in COUNTERS and name not in counted | sloped:
            continue  # there is no device
        check = f"leak.{'device_memory' if name == DEVICE_IN_USE else name}"
        found = [slope for slope in slopes if slope.counter == name]
        if not found:
            reason = "too few checkpoints" if name in counted else "not available"
            checks.append(Check.not_done(check, reason))
            continue
        slope = max(found, key=lambda slope: (slope.leaks, slope.per_cycle))
        if name == DEVICE_IN_USE and slope.leaks:  # it may be anybody's
            shared = shared_device(grown=slope.grown)
            checks.append(Check(check, CheckOutcome.NOT_DONE, shared))
            continue
        checks.append(
            Check(
                check,
                CheckOutcome.of(not slope.leaks),
                {
                    "per_cycle": slope.per_cycle,
                    "low": slope.low,
                    "high": slope.high,
                    "confidence": slope.confidence,
                    "grown": slope.grown,
                    "floor": slope.floor,
                    "detectable_per_cycle": slope.detectable_per_cycle,
                    "points": slope.points,
                    "worker": slope.worker,
                },
            )
        )
    return tuple(checks)
