"""What a stress run will do: defaults filled in, bad values refused, needs held against limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError, UsageError
from vmtool.machine.preflight import Demand, SizeOption
from vmtool.memory import device_ordinal, methods_of
from vmtool.memory.backing import MisalignedError
from vmtool.results.stress import StressSettings
from vmtool.stress.worker.workloads import (
    PATTERNS,
    largest_commit,
    live_granules,
    worst_mappings,
)
from vmtool.units import MIB, align_down, align_up, format_size

if TYPE_CHECKING:
    from vmtool.memory.backing import VirtualBacking

TOUCHES: Final = ("none", "first", "full")
VERIFIES: Final = ("off", "sample", "full")
_DEFAULT_CAPACITY: Final = 256 * MIB
_DEFAULT_GRANULE: Final = 2 * MIB
_DEFAULT_DURATION_NS: Final = 3 * 10**9
#: More threads than this would only measure the scheduler.
MAX_PARALLEL: Final = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; ``None`` is up to us.

    Attributes:
        methods: Names of commit methods; all must belong to the backing.
        safe_bytes: What may be committed on this machine, or on the device.
        device_free_bytes: What the device has free, where it is one.
        bound: What *safe_bytes* comes from, in words.
        widen: What would make it more.
    """

    methods: tuple[str, ...]
    safe_bytes: int
    backing: str = "host"
    pattern: str = "tail"
    capacity_bytes: int | None = None
    budget_bytes: int | None = None
    granule_bytes: int | None = None
    cycles: int | None = None
    duration_ns: int | None = None
    touch: str = "full"
    verify: str = "sample"
    huge: bool = False
    prefault: bool = False
    threads: int = 1
    workers: int = 1
    seed: int = 0
    inject: tuple[str, ...] = ()
    chunk_bytes: int | None = None
    retain_bytes: int | None = None
    device_free_bytes: int | None = None
    bound: str | None = None
    widen: str | None = None


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
    if wanted not in known:
        raise UsageError(
            f"unknown method {wanted!r} of {kind}", hint=f"use one of {', '.join(known)}, or all"
        )
    return (wanted,)


def make_settings(request: Request, backing: VirtualBacking) -> StressSettings:
    """Return *request* with its gaps filled for *backing*; nothing is reserved.

    Raises:
        UsageError: If values are misaligned or contradict each other.
        RefusedError: If the budget does not hold one granule for each thread.
    """
    _check_names(request)
    granule = request.granule_bytes or align_up(_DEFAULT_GRANULE, backing.granularity)
    if granule % backing.granularity:
        raise MisalignedError("granule", granule, backing.granularity)
    capacity = request.capacity_bytes or max(align_down(_DEFAULT_CAPACITY, granule), granule)
    if capacity < granule:
        raise UsageError(
            f"the capacity {capacity} is less than one granule of {granule} bytes",
            hint=f"use a capacity of {format_size(granule)} or more, or a smaller granule",
        )
    if capacity % granule:
        raise MisalignedError("capacity", capacity, granule)
    cycles, duration = request.cycles, request.duration_ns
    if cycles is None and duration is None:
        duration = _DEFAULT_DURATION_NS
    return StressSettings(
        backing=request.backing,
        methods=request.methods,
        pattern=request.pattern,
        capacity_bytes=capacity,
        budget_bytes=_budget(request, capacity, granule),
        granule_bytes=granule,
        cycles=cycles,
        duration_ns=duration,
        touch=request.touch,
        # Without a touch there is nothing to verify.
        verify="off" if request.touch == "none" else request.verify,
        huge=request.huge,
        prefault=request.prefault,
        threads=request.threads,
        workers=request.workers,
        seed=request.seed,
        inject=request.inject,
        chunk_bytes=request.chunk_bytes,
        retain_bytes=request.retain_bytes,
    )


def worker_budget(settings: StressSettings) -> int:
    """Return what one worker may commit, in bytes."""
    return settings.budget_bytes // settings.workers


def live_limit(settings: StressSettings) -> int:
    """Return how many granules one thread has committed at once, at most."""
    share = worker_budget(settings) // settings.threads
    granule = settings.granule_bytes
    return live_granules(settings.pattern, settings.capacity_bytes // granule, share // granule)


def demand(settings: StressSettings, device_free: int | None = None) -> Demand:
    """Return what *settings* need at their peak, for the preflight.

    Args:
        settings: What will be done.
        device_free: What the device has free, where it is one.
    """
    granule = settings.granule_bytes
    limit = live_limit(settings)
    block = largest_commit(settings.pattern, limit)
    ever = settings.capacity_bytes // granule
    if settings.cycles is not None:
        ever = min(ever, settings.cycles * block)
    live = min(limit, ever)
    threads = settings.threads
    budget = SizeOption("--budget", granule * threads * settings.workers)
    if device_ordinal(settings.backing) is not None:
        # A pool is emptied before another method's turn, so that they never hold memory together.
        commit = live * granule * threads * settings.workers
        return Demand(
            device_bytes=commit,
            device_free_bytes=device_free,
            processes=settings.workers,
            commit_option=budget,
        )
    areas = sum(worst_mappings(settings.pattern, m, live, ever) for m in settings.methods)
    commit = live * granule * threads
    reserve = settings.capacity_bytes * threads
    advised = settings.methods.count("advise")  # its reservations are writable
    mixed = advised < len(settings.methods)
    # Of the other methods only what is committed is writable, which is no more than the capacity.
    writable = (
        SizeOption("--capacity", granule, threads * (advised + mixed))
        if advised
        else replace(budget, times=Fraction(1, settings.workers))
    )
    return Demand(
        reserve_bytes=reserve * len(settings.methods),
        commit_bytes=commit * settings.workers,
        mappings=areas * threads,
        largest_commit_bytes=block * granule,
        writable_bytes=reserve * advised + (commit if mixed else 0),
        processes=settings.workers,
        reserve_option=SizeOption("--capacity", granule, threads * len(settings.methods)),
        commit_option=budget,
        writable_option=writable,
    )


def alone(settings: StressSettings) -> StressSettings:
    """Return *settings* for one worker with one thread, each with the same share of the budget."""
    parts = settings.workers * settings.threads
    return replace(
        settings, workers=1, threads=1, budget_bytes=settings.budget_bytes // parts, inject=()
    )


def _check_names(request: Request) -> None:
    if request.pattern not in PATTERNS:
        raise UsageError(
            f"unknown pattern {request.pattern!r}", hint=f"use one of {', '.join(PATTERNS)}"
        )
    if request.cycles is not None and request.duration_ns is not None:
        raise UsageError(
            "cycles and a duration contradict each other", hint="give --cycles or --duration"
        )
    for name, value in (("cycles", request.cycles), ("duration", request.duration_ns)):
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be positive, not {value}", hint="use 1 or more")
    for name, value in (("threads", request.threads), ("workers", request.workers)):
        if not 1 <= value <= MAX_PARALLEL:
            raise UsageError(f"{name} must be 1 to {MAX_PARALLEL}, not {value}")
    if request.touch == "none" and request.verify == "full":
        raise UsageError(
            "nothing can be verified when nothing is touched",
            hint="use --touch first or full, or --verify off",
        )


def _budget(request: Request, capacity: int, granule: int) -> int:
    parts = request.threads * request.workers
    total = capacity * parts
    budget = request.budget_bytes
    if budget is None:
        budget = min(total, request.safe_bytes // 2)
    elif budget > total:
        raise UsageError(
            f"the budget {budget} is more than the capacity {total} of all buffers together",
            hint="raise --capacity, or leave --budget out",
        )
    if budget // parts < granule:
        safe = request.safe_bytes
        if request.budget_bytes is None and safe < granule * parts:
            raise RefusedError(
                f"{format_size(safe)} is safe to commit here, which does not hold one granule of "
                f"{format_size(granule)} for each thread ({parts})"
                if safe
                else "nothing is safe to commit here",
                cause=request.bound,
                hint=f"use a smaller granule, or {request.widen}" if safe else request.widen,
            )
        given = request.budget_bytes is not None
        owner = "a budget of" if given else "half of what is safe to commit here,"
        raise RefusedError(
            f"{owner} {format_size(budget)}{'' if given else ','} does not hold one granule of "
            f"{format_size(granule)} for each thread ({parts})",
            cause=None if given else "`vmtool doctor` tells what limits this machine",
            hint=f"use a budget of {format_size(granule * parts)} ({granule * parts} bytes) or "
            "more, or a smaller granule",
        )
    return budget
