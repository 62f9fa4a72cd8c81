"""What a run needs of this machine at its peak: areas, address space, commits, descriptors and tasks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from vmtool.machine.preflight import WORKER_BYTES, Demand, SizeOption
from vmtool.memory.backing_by_name import is_device
from vmtool.memory.threads import stack_bytes
from vmtool.results.stress import StressSettings, base_method
from vmtool.stress.plan import live_limit, worker_budget
from vmtool.stress.workloads import largest_commit

#: Of a worker: to its stdin, from its stdout and from its stderr.
_PIPES: Final = 3
#: Threads of the parent that read from a worker.
_READERS: Final = 2


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
    if settings.hold:
        share = worker_budget(settings) // settings.threads
        live = max(live, min(share, settings.capacity_bytes) // granule)
        ever = max(ever, live)
    threads = settings.threads
    budget = SizeOption("--budget", granule * threads * settings.workers)
    if is_device(settings.backing):
        # A pool is emptied before another method's turn, so that they never hold memory together.
        commit = live * granule * threads * settings.workers
        return Demand(
            device_bytes=commit,
            device_free_bytes=device_free,
            processes=settings.workers,
            threads=threads,
            tasks=_tasks(settings),
            descriptors=_PIPES * settings.workers,
            commit_option=budget,
        )
    methods = [base_method(name) for name in settings.methods]
    areas = sum(worst_mappings(settings.pattern, m, live, ever) for m in methods)
    commit = live * granule * threads
    reserve = settings.capacity_bytes * threads
    advised = methods.count("advise")  # its reservations are writable
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
        threads=threads,
        worker_bytes=WORKER_BYTES,
        stack_bytes=threads * stack_bytes(),  # all but the first, and what listens
        own_stack_bytes=settings.workers * _READERS * stack_bytes(),
        huge_page_bytes=settings.huge_page_bytes,
        tasks=_tasks(settings),
        descriptors=_PIPES * settings.workers,
        reserve_option=SizeOption("--capacity", granule, threads * len(settings.methods)),
        commit_option=budget,
        writable_option=writable,
    )


def _tasks(settings: StressSettings) -> int:
    """Return the processes and threads of a run.

    A worker has its threads and one that listens to the parent; the parent has two to read from it.
    """
    return settings.workers * (settings.threads + 1 + _READERS)


def worst_mappings(pattern: str, method: str, live: int, ever: int) -> int:
    """Return the most memory areas that *pattern* makes of one reservation.

    Args:
        pattern: Its name.
        method: How it is committed.
        live: Granules that are committed at once.
        ever: Granules that are committed at some time.
    """
    if method == "advise":
        return 1
    if pattern not in {"random", "hole-punch"}:
        return 2 * largest_commit(pattern, live) + 2  # what grows in order joins
    # Every committed granule and every gap may be an area of its own: neighbours committed out of
    # order do not always join. What mprotect took back does not join either.
    return (ever if method == "protect" else live) + live + 1
