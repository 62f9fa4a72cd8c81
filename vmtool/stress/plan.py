"""The plan of a stress run: checked settings with defaults filled in, and the backings they name."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError, UsageError
from vmtool.machine.preflight import fewer_of
from vmtool.memory.backing_by_name import (
    ALL_DEVICES,
    device_ordinal,
    is_device,
    methods_of,
    open_backing,
    open_device,
)
from vmtool.memory.cuda.devices import devices, peers_of
from vmtool.memory.errors import MisalignedError
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import FaultyCalls
from vmtool.results.stress import HUGE, StressSettings, base_method
from vmtool.stress.workloads import PATTERNS, live_granules
from vmtool.units import MIB, SIZES_HINT, align_down, align_up, count_of, format_size, two_sizes

if TYPE_CHECKING:
    from vmtool.memory.backing import VirtualBacking
    from vmtool.stress.safe_memory import Room

_DEFAULT_CAPACITY: Final = 256 * MIB
_DEFAULT_GRANULE: Final = 2 * MIB
_DEFAULT_DURATION_NS: Final = 3 * 10**9
#: Below four runs a side no comparison proves anything; five leave one to spare.
_DEFAULT_RUNS: Final = 5
#: More runs than this would make a document of hundreds of megabytes.
_MAX_RUNS: Final = 100
#: More threads than this would only measure the scheduler.
_MAX_PARALLEL: Final = 1024


def method_names(kind: str, wanted: str | None) -> tuple[str, ...]:
    """Return the methods that the user means: one, or ``all`` that a backing has, default first.

    Raises:
        UsageError: If the backing has no such method.
    """
    known = methods_of(kind)
    if wanted is None:
        return known[:1]
    if wanted == "all":
        return known
    if wanted not in known and not (
        wanted.endswith(HUGE) and base_method(wanted) in known and not is_device(kind)
    ):
        huge = not is_device(kind) and wanted.split()[-1:] == ["--huge"]
        name = wanted.split()[0] + HUGE if huge else ""
        raise UsageError(
            f"unknown method {wanted!r} of {kind}",
            hint=f"write {name}"
            if base_method(name) in known
            else f"use one of {', '.join(known)}, or all",
        )
    return (wanted,)


def with_huge(
    methods: tuple[str, ...], settings: StressSettings, thp: str | None
) -> tuple[str, ...]:
    """Return *methods*, each followed by itself with huge pages where they are there on request.

    Args:
        methods: Those of the backing.
        settings: What was requested.
        thp: The mode of transparent huge pages; only ``madvise`` gives them on request.
    """
    chosen = settings.huge or settings.huge_page_bytes is not None
    if thp != "madvise" or chosen or is_device(settings.backing):
        return methods
    return tuple(name for method in methods for name in (method, method + HUGE))


def settle(settings: StressSettings, backing: VirtualBacking, room: Room) -> StressSettings:
    """Return *settings* with its gaps filled for *backing*; nothing is reserved.

    Raises:
        UsageError: If values are misaligned or contradict each other.
        RefusedError: If the budget does not hold one granule for each thread.
    """
    _check_values(settings)
    granule = settings.granule_bytes or align_up(_DEFAULT_GRANULE, backing.granularity)
    if granule % backing.granularity:
        raise MisalignedError("granule", granule, backing.granularity)
    capacity = settings.capacity_bytes or max(align_down(_DEFAULT_CAPACITY, granule), granule)
    if capacity < granule:
        less, one = two_sizes(capacity, granule)
        raise UsageError(
            f"the capacity of {less} is less than one granule of {one}",
            hint=f"use a capacity of {format_size(granule)} or more, or a smaller granule",
        )
    if capacity % granule:
        raise MisalignedError("capacity", capacity, granule)
    cycles, duration = settings.cycles, settings.duration_ns
    if cycles is None and duration is None:
        duration = _DEFAULT_DURATION_NS
    return replace(
        settings,
        capacity_bytes=capacity,
        budget_bytes=_budget(settings, capacity, granule, room),
        granule_bytes=granule,
        duration_ns=duration,
        # Without a touch there is nothing to verify.
        verify="off" if settings.touch == "none" else settings.verify or "sample",
        runs=_runs(settings),
    )


def run_settings(settings: StressSettings, run: int) -> StressSettings:
    """Return what run number *run* of *settings* does: its share, its methods in another order."""
    order = list(settings.methods)
    if settings.runs > 1:
        Random(f"{settings.seed}/order/{run}").shuffle(order)
    cycles, duration = settings.cycles, settings.duration_ns
    return replace(
        settings,
        methods=tuple(order),
        cycles=None if cycles is None else (cycles + run) // settings.runs,
        duration_ns=None if duration is None else max(duration // settings.runs, 1),
        hold=settings.hold and run == 0,
        runs=1,
    )


def _runs(settings: StressSettings) -> int:
    """Return how many runs to make; a fault is counted within one process, so there is one then."""
    runs = settings.runs or (1 if settings.inject else _DEFAULT_RUNS)
    return runs if settings.cycles is None else max(min(runs, settings.cycles), 1)


def worker_budget(settings: StressSettings) -> int:
    """Return what one worker may commit, in bytes."""
    return settings.budget_bytes // settings.workers


def live_limit(settings: StressSettings) -> int:
    """Return how many granules one thread has committed at once, at most."""
    share = worker_budget(settings) // settings.threads
    granule = settings.granule_bytes
    return live_granules(settings.pattern, settings.capacity_bytes // granule, share // granule)


def device_peers(settings: StressSettings, backing: str) -> tuple[int, ...]:
    """Return the other devices of *settings* that can reach the memory of *backing*.

    Raises:
        UnavailableError: If there is no usable driver.
        CudaError: If the driver call fails.
    """
    if not settings.devices:
        return ()
    ordinals = [device_ordinal(place) or 0 for place in settings.devices]
    return peers_of(device_ordinal(backing) or 0, ordinals)


def alone(settings: StressSettings) -> StressSettings:
    """Return *settings* for one worker with one thread, each with the same share of the budget."""
    parts = settings.workers * settings.threads
    return replace(
        settings,
        workers=1,
        threads=1,
        budget_bytes=settings.budget_bytes // parts,
        inject=(),
    )


def _check_values(settings: StressSettings) -> None:
    if settings.pattern not in PATTERNS:
        raise UsageError(
            f"unknown pattern {settings.pattern!r}", hint=f"use one of {', '.join(PATTERNS)}"
        )
    for name, value in (("cycles", settings.cycles), ("duration", settings.duration_ns)):
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be positive, not {value}", hint="use 1 or more")
    for name, count in (("threads", settings.threads), ("workers", settings.workers)):
        if not 1 <= count <= _MAX_PARALLEL:
            raise UsageError(f"{name} must be 1 to {_MAX_PARALLEL}, not {count}")
    if not 0 <= settings.runs <= _MAX_RUNS:
        raise UsageError(f"runs must be 1 to {_MAX_RUNS}, not {settings.runs}")
    if settings.touch == "none" and settings.verify not in {"", "off", "sample"}:
        raise UsageError(
            "nothing can be verified when nothing is touched",
            hint="use --touch first or full, or --verify off",
        )


def _budget(settings: StressSettings, capacity: int, granule: int, room: Room) -> int:
    parts = settings.threads * settings.workers
    total = capacity * parts
    given = settings.budget_bytes
    budget = given or min(total, room.safe_bytes // 2)
    if budget > total:
        more, less = two_sizes(budget, total)
        raise UsageError(
            f"the budget of {more} is more than the capacity of all buffers together, {less}",
            hint="raise --capacity, or leave --budget out",
        )
    if budget // parts >= granule:
        return budget
    safe = room.safe_bytes
    # What the machine has room for does not matter for a budget that was given.
    ways = [fewer_of(settings.workers, settings.threads), "" if given else room.how_to_raise]
    otherwise = ", or ".join(filter(None, ways))
    if not given and safe < granule * parts:
        raise RefusedError(
            f"{format_size(safe)} is safe to commit here, which is less than one granule of "
            f"{format_size(granule)} per thread ({count_of(parts, 'thread')})"
            if safe
            else "nothing is safe to commit here",
            cause=room.bound,
            hint=f"use a smaller granule, or {otherwise}"
            if safe
            else f"use {otherwise}"
            if ways[0]
            else otherwise,
        )
    owner = "a budget of" if given else "half of what is safe to commit here,"
    raise RefusedError(
        f"{owner} {format_size(budget)}{'' if given else ','} is less than one granule of "
        f"{format_size(granule)} per thread ({count_of(parts, 'thread')})",
        cause=None if given else room.bound,
        hint=SIZES_HINT
        if 0 < given < MIB
        else f"use a budget of {format_size(granule * parts)} ({granule * parts} bytes) or "
        "more, or a smaller granule" + (f", or {otherwise}" if otherwise else ""),
    )


def with_devices(settings: StressSettings) -> StressSettings:
    """Return *settings* with each device where they mean all; the workers are then those of each.

    Raises:
        UnavailableError: If there is no usable driver or no device.
    """
    if settings.backing != ALL_DEVICES:
        return settings
    found = tuple(f"cuda:{device.ordinal}" for device in devices())
    return replace(settings, devices=found, workers=settings.workers * len(found))


def open_backings(settings: StressSettings) -> list[VirtualBacking]:
    """Open what the workers will open, so that what cannot work is said before they start."""
    if settings.retain_bytes is not None and "pooled" not in settings.methods:
        raise UsageError("only a pool retains memory", hint="use --method pooled or all")
    if not settings.clear and "pooled" not in settings.methods:
        raise UsageError("only memory of a pool is cleared", hint="use --method pooled or all")
    faults = FaultyCalls([parse_fault(text) for text in settings.inject])
    if settings.devices:
        return [
            open_device(
                place,
                method=method,
                chunk=settings.chunk_bytes,
                peers=device_peers(settings, place),
                faults=faults if settings.inject else None,
            )
            for method in settings.methods
            for place in settings.places
        ]
    return [
        open_backing(
            settings.backing,
            method=base_method(method),
            prefault=settings.prefault,
            huge=settings.uses_huge(method),
            huge_page_bytes=settings.huge_page_bytes,
            node=settings.node,
            chunk=settings.chunk_bytes,
            faults=faults if settings.inject else None,
        )
        for method in settings.methods
    ]
