"""Whether a plan fits this machine, checked before anything is mapped, and what would fit instead."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError
from vmtool.machine.facts import safe_part
from vmtool.machine.memory_limit_sentences import (
    describe_bound,
    describe_huge_pages,
    describe_safe,
    how_to_raise_bound,
)
from vmtool.memory.rlimits_and_privileges import how_to_raise
from vmtool.memory.threads import SMALLER_STACKS
from vmtool.units import MIB, align_down, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from vmtool.machine.facts import MachineFacts

# One 8-byte entry maps a page; the tables above that last level add less than 1 %.
_ENTRY_BYTES: Final = 8
# Kept for the interpreter and its libraries, which also map, grow and split areas; no more than an
# eighth of the limit.
_SPARE_MAPPINGS: Final = 1024
#: Kept for what the interpreter and its libraries open for a moment.
_SPARE_DESCRIPTORS: Final = 8
#: What a worker takes for itself: an interpreter with the modules of vmtool (16 to 20 MiB resident).
WORKER_BYTES: Final = 20 * MIB
#: What the next process may have mapped more than this one, so that advice can be followed.
_NEXT_BYTES: Final = MIB
# User addresses of x86-64 and arm64 have 47 or 48 bits; not all of them are free.
_USABLE_SPACE: Final = 1 << 46


@dataclass(frozen=True, slots=True)
class SizeOption:
    """The option by which the user makes a plan need less.

    Attributes:
        name: Its name, or what to lower where no number can be given for it.
        unit: What its value is a multiple of; ``None`` where no number can be given.
        times: How many bytes are needed for each byte of the value.
    """

    name: str
    unit: int | None = None
    times: Fraction | int = 1

    def advise(self, safe: int) -> str | None:
        """Return how to need no more than *safe* bytes; ``None`` if no value does that."""
        if self.unit is None:
            return f"use a smaller {self.name}: {format_size(safe)} ({safe} bytes) is safe"
        value = align_down(safe // self.times, self.unit)
        return f"use {self.name} {value} ({format_size(value)}) or less" if value else None


@dataclass(frozen=True, slots=True)
class Demand:
    """What a plan needs at its peak.

    Attributes:
        reserve_bytes: Address space, per process.
        commit_bytes: Committed and touched memory, all processes together.
        mappings: Memory areas at the worst moment, per process.
        page_table_bytes: Page tables; ``None`` to work them out from *commit_bytes*.
        largest_commit_bytes: The longest single commit.
        writable_bytes: Private writable memory, per process; ``None`` if that is its share of
            *commit_bytes*, and not a reservation that is writable as a whole (``advise``).
        processes: Worker processes.
        threads: Threads of each that commit memory.
        worker_bytes: What each of them takes for itself; 0 where the plan starts none.
        stack_bytes: Stacks of the threads of each of them.
        own_stack_bytes: Stacks of the threads that this process starts for them.
        tasks: Processes and threads that the plan starts, all together.
        descriptors: Files that this process opens for them.
        huge_page_bytes: The size of the reserved huge pages that *commit_bytes* are; ``None``: none.
        device_bytes: Memory of the device.
        device_free_bytes: Free memory of the device; ``None`` for the host.
        reserve_option: The option that lowers *reserve_bytes*, for the hint.
        commit_option: The option that lowers *commit_bytes* (*device_bytes* of a device).
        writable_option: The option that lowers *writable_bytes*.
    """

    reserve_bytes: int = 0
    commit_bytes: int = 0
    mappings: int = 0
    page_table_bytes: int | None = None
    largest_commit_bytes: int = 0
    writable_bytes: int | None = None
    processes: int = 1
    threads: int = 1
    worker_bytes: int = 0
    stack_bytes: int = 0
    own_stack_bytes: int = 0
    tasks: int = 0
    descriptors: int = 0
    huge_page_bytes: int | None = None
    device_bytes: int = 0
    device_free_bytes: int | None = None
    reserve_option: SizeOption | None = None
    commit_option: SizeOption | None = None
    writable_option: SizeOption | None = None


class Severity(enum.Enum):
    """Whether a plan that exceeds a limit must not run."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Shortage:
    """One limit that the plan exceeds.

    Attributes:
        kind: A short stable name, as in :class:`vmtool.memory.errors.Diagnosis`.
        severity: Whether the plan must not run.
        message: What the plan needs and what the limit leaves.
        safe: The number that would be safe, in the unit of what the plan needs.
        remedy: What to do.
    """

    kind: str
    severity: Severity
    message: str
    safe: int
    remedy: str


def check(demand: Demand, facts: MachineFacts) -> tuple[Shortage, ...]:
    """Return every limit of this machine that *demand* exceeds, those that refuse it first."""
    found = [shortage for rule in _RULES if (shortage := rule(demand, facts)) is not None]
    return tuple(sorted(found, key=lambda shortage: shortage.severity is Severity.WARN))


def refuse_unsafe(shortages: Iterable[Shortage]) -> None:
    """Raise for the first shortage that refuses the plan.

    Raises:
        RefusedError: If there is one; the error names the number that would be safe.
    """
    for shortage in shortages:
        if shortage.severity is Severity.REFUSE:
            raise RefusedError(shortage.message, hint=shortage.remedy)


def safe_for_workers(facts: MachineFacts, workers: int) -> int:
    """Return what *workers* may commit together, beside what each takes of the machine for itself.

    Limits of a process hold for each of them, so that a worker's own memory is in what is used.
    """
    own = workers * WORKER_BYTES
    bounds = facts.safe_bounds
    for name in bounds.keys() - facts.process_bounds.keys():
        bounds[name] = max(bounds[name] - own, 0)
    return min(bounds.values())


def refuse_without_memory(facts: MachineFacts) -> None:
    """Raise where this machine lets nothing be committed safely.

    Raises:
        RefusedError: If so; the error names the limit.
    """
    if facts.safe_bytes == 0:
        words, remedy = describe_safe(facts)
        raise RefusedError(f"nothing is safe to commit: {words}", hint=remedy)


def safe_device_part(free: int) -> int:
    """Return the part of a device's *free* bytes that a plan may commit: nine tenths.

    Under WDDM, and with other users of the device, not all that is free can be had.
    """
    return free * 9 // 10


def page_table_bytes(committed: int, page_bytes: int) -> int:
    """Return what the last level of page tables takes for *committed* bytes of small pages."""
    return -(-committed // page_bytes) * _ENTRY_BYTES


def _memory(demand: Demand, facts: MachineFacts) -> Shortage | None:
    page = facts.page_bytes
    tables = demand.page_table_bytes
    if tables is None:
        tables = page_table_bytes(demand.commit_bytes, page)
    workers = demand.worker_bytes * demand.processes
    need = demand.commit_bytes + tables + workers
    available = facts.machine_available_bytes
    most = safe_part(available)
    if demand.huge_page_bytes is not None or not demand.commit_bytes or need <= most:
        return None
    most = max(most - workers, 0)
    if demand.page_table_bytes is None:
        safe = most * page // (page + _ENTRY_BYTES)
    else:
        safe = most * demand.commit_bytes // (need - workers)
    safe = align_down(safe, page)
    bounds = facts.machine_bounds
    kind = min(bounds, key=bounds.__getitem__, default="unknown")
    severity = Severity.REFUSE if available is not None else Severity.WARN
    return Shortage(
        kind,
        severity,
        f"the plan commits {format_size(demand.commit_bytes)} and {format_size(tables)} of page "
        f"tables{_for_workers(demand)}; {describe_bound(kind, facts)}",
        safe,
        _at_most(
            "use",
            demand.commit_option,
            safe,
            _fewer_workers(demand) + how_to_raise_bound(kind, facts),
        ),
    )


def _huge_page_pool(demand: Demand, facts: MachineFacts) -> Shortage | None:
    page = demand.huge_page_bytes
    bounds = {} if page is None else facts.huge_page_bounds(page)
    safe = min(bounds.values(), default=demand.commit_bytes)
    if page is None or demand.commit_bytes <= safe:
        return None
    words, remedy = describe_huge_pages(facts, page, demand.commit_bytes)
    return Shortage(
        min(bounds, key=bounds.__getitem__),
        Severity.REFUSE,
        f"the plan commits {format_size(demand.commit_bytes)} in reserved huge pages; {words}",
        safe,
        _at_most("use", demand.commit_option, safe, remedy, also=True),
    )


def _for_workers(demand: Demand) -> str:
    if not demand.worker_bytes:
        return ""
    each = format_size(demand.worker_bytes)
    if demand.processes == 1:
        return f", and its worker needs {each} of its own"
    return f", and {demand.processes:,} workers need {each} each of their own"


def _fewer_workers(demand: Demand) -> str:
    return _use_fewer(demand.processes if demand.worker_bytes else 1)


def _at_most(
    verb: str, option: SizeOption | None, safe: int, otherwise: str, *, also: bool = False
) -> str:
    """Return what to do: *verb* no more than *safe*, or *otherwise* where nothing at all is safe.

    Args:
        verb: Such as ``use``, where there is no option.
        option: What the user can lower.
        safe: Bytes.
        otherwise: What changes the limit.
        also: Whether to say *otherwise* in any case.
    """
    less: str | None = f"{verb} {format_size(safe)} ({safe} bytes) or less"
    if option is not None:
        less = option.advise(safe)
    if not safe or less is None:
        return otherwise
    return f"{less}, or {otherwise}" if also else less


def _device(demand: Demand, facts: MachineFacts) -> Shortage | None:
    free = demand.device_free_bytes
    if free is None:
        return None
    safe = safe_device_part(free)
    if demand.device_bytes <= safe:
        return None
    return Shortage(
        "device-memory",
        Severity.REFUSE,
        f"the plan commits {format_size(demand.device_bytes)} on the device, which has "
        f"{format_size(free)} free",
        safe,
        _at_most("use", demand.commit_option, safe, how_to_raise_bound("device-memory", facts)),
    )


def safe_mappings(facts: MachineFacts) -> int | None:
    """Return the memory areas that a plan may have; ``None`` where there is no limit."""
    limit = facts.process.max_mappings
    if limit is None:
        return None
    spare = min(_SPARE_MAPPINGS, limit // 8)
    return max(limit - (facts.process.mappings or 0) - spare, 0)


def _mappings(demand: Demand, facts: MachineFacts) -> Shortage | None:
    limit, safe = facts.process.max_mappings, safe_mappings(facts)
    if limit is None or safe is None or demand.mappings <= safe:
        return None
    return Shortage(
        "mapping-limit",
        Severity.REFUSE,
        f"the plan may need {demand.mappings:,} memory areas, vm.max_map_count is {limit:,} and "
        f"{facts.process.mappings or 0:,} are in use",
        safe,
        (f"use {safe:,} areas or fewer (" if safe else "use fewer areas (")
        + "larger granules, a smaller capacity, growth at the tail), or "
        f"sysctl -w vm.max_map_count={max(limit, demand.mappings + _SPARE_MAPPINGS) * 2}",
    )


def tasks_left(facts: MachineFacts) -> tuple[int, str, str] | None:
    """Return how many processes and threads can be started, what limits them, and how to raise it.

    ``None`` where nothing limits them, or what is used is not known.
    """
    found = []
    group, limits = facts.cgroup.tasks, facts.limits
    if group is not None:
        words = f"pids.max of control group {group.path} is {group.limit:,}, {group.used:,} in use"
        remedy = f"raise {group.path}/pids.max: TasksMax= of the unit, docker run --pids-limit=..."
        found.append((max(group.limit - group.used, 0), words, remedy))
    soft = None if limits.tasks is None else limits.tasks.soft
    if soft is not None and not limits.tasks_exempt and limits.tasks_used is not None:
        words = f"RLIMIT_NPROC is {soft:,}, this user has {limits.tasks_used:,} tasks"
        remedy = how_to_raise("RLIMIT_NPROC", limit=limits.tasks)
        found.append((max(soft - limits.tasks_used, 0), words, remedy))
    return min(found, default=None)


def _tasks(demand: Demand, facts: MachineFacts) -> Shortage | None:
    found = tasks_left(facts)
    if found is None or demand.tasks <= found[0]:
        return None
    left, words, remedy = found
    return Shortage(
        "task-limit",
        Severity.REFUSE,
        f"the plan starts {demand.tasks:,} processes and threads; {words}",
        left,
        _use_fewer(demand.processes, demand.threads) + remedy,
    )


def fewer_of(workers: int, threads: int) -> str:
    """Return what of a plan can be made fewer; empty for one worker with one thread."""
    options = [
        name for name, count in (("--workers", workers), ("--threads", threads)) if count > 1
    ]
    return f"fewer {' or '.join(options)}" if options else ""


def _use_fewer(workers: int, threads: int = 1) -> str:
    fewer = fewer_of(workers, threads)
    return f"use {fewer}, or " if fewer else ""


def descriptors_left(facts: MachineFacts) -> int | None:
    """Return how many files a plan may open; ``None`` where nothing limits them."""
    limit, used = facts.limits.descriptors, facts.limits.descriptors_used
    if limit is None or limit.soft is None or used is None:
        return None
    return max(limit.soft - used - _SPARE_DESCRIPTORS, 0)


def _descriptors(demand: Demand, facts: MachineFacts) -> Shortage | None:
    left, limit = descriptors_left(facts), facts.limits.descriptors
    if left is None or limit is None or demand.descriptors <= left:
        return None
    fewer = _use_fewer(demand.processes)
    return Shortage(
        "descriptor-limit",
        Severity.REFUSE,
        f"the plan opens {demand.descriptors:,} files; RLIMIT_NOFILE is {limit.soft:,}, "
        f"{facts.limits.descriptors_used:,} are open and {_SPARE_DESCRIPTORS} are kept in reserve",
        left,
        fewer + how_to_raise("RLIMIT_NOFILE", limit=limit),
    )


def _address_space(demand: Demand, facts: MachineFacts) -> Shortage | None:
    safe = facts.safe_bounds.get("address-space-limit")
    if safe is None:
        if demand.reserve_bytes <= _USABLE_SPACE:
            return None
        return Shortage(
            "no-address-range",
            Severity.WARN,
            f"{format_size(demand.reserve_bytes)} may be larger than any free range of addresses",
            _USABLE_SPACE,
            "`vmtool granularity` shows the largest reservation that works here",
        )
    safe, stacks, smaller = _beside_stacks("address-space-limit", safe, demand, facts)
    if demand.reserve_bytes <= safe:
        return None
    return Shortage(
        "address-space-limit",
        Severity.REFUSE,
        f"the plan reserves {format_size(demand.reserve_bytes)}{stacks}, "
        f"{describe_bound('address-space-limit', facts)}; reservations count although they hold "
        "no memory",
        safe,
        _at_most(
            "reserve",
            demand.reserve_option,
            max(safe - _NEXT_BYTES, 0),
            smaller + how_to_raise_bound("address-space-limit", facts),
            also=True,
        ),
    )


def _beside_stacks(
    kind: str, safe: int, demand: Demand, facts: MachineFacts
) -> tuple[int, str, str]:
    """Return what a limit lets a worker have beside the stacks of its threads.

    They may take what is kept in reserve. With it come what to say of them and what to do about
    them, where they are in the way.
    """
    left = max(facts.process_bounds[kind] - demand.stack_bytes, 0) // MIB * MIB
    if left >= safe:
        return safe, "", ""
    return (
        left,
        f" beside {format_size(demand.stack_bytes)} for the stacks of threads",
        f"{SMALLER_STACKS}, or ",
    )


def _own_stacks(demand: Demand, facts: MachineFacts) -> Shortage | None:
    for kind, left in facts.process_bounds.items():
        if demand.own_stack_bytes > left:
            return Shortage(
                kind,
                Severity.REFUSE,
                f"the threads that read from the workers need {format_size(demand.own_stack_bytes)} "
                f"for their stacks; {describe_bound(kind, facts)}",
                left,
                f"{_fewer_workers(demand)}{SMALLER_STACKS}, or {how_to_raise_bound(kind, facts)}",
            )
    return None


def _data(demand: Demand, facts: MachineFacts) -> Shortage | None:
    safe = facts.safe_bounds.get("data-limit")
    if safe is None:
        return None
    safe, stacks, smaller = _beside_stacks("data-limit", safe, demand, facts)
    if _writable(demand) <= safe:
        return None
    return Shortage(
        "data-limit",
        Severity.REFUSE,
        f"each process has {format_size(_writable(demand))} of private writable memory at its "
        f"peak{stacks}, {describe_bound('data-limit', facts)}",
        safe,
        _at_most(
            "use",
            demand.writable_option,
            max(safe - _NEXT_BYTES, 0),
            smaller + how_to_raise_bound("data-limit", facts),
            also=True,
        ),
    )


def _charge(demand: Demand, facts: MachineFacts) -> Shortage | None:
    """In mode 2 writable memory is charged where it is reserved, MAP_NORESERVE or not."""
    headroom = facts.commit.headroom_bytes
    charge = _writable(demand) * demand.processes
    if facts.commit.mode != 2 or headroom is None or charge <= demand.commit_bytes:
        return None
    safe = safe_part(headroom)
    if charge <= safe:
        return None
    option = demand.writable_option
    if option is not None:
        option = replace(option, times=option.times * demand.processes)
    return Shortage(
        "commit-limit",
        Severity.REFUSE,
        f"the plan reserves {format_size(charge)} of writable memory, which vm.overcommit_memory=2 "
        f"charges at once; {describe_bound('commit-limit', facts)}",
        safe,
        _at_most(
            "reserve",
            option,
            safe,
            f"{how_to_raise_bound('commit-limit', facts)}, or use another --method",
            also=True,
        ),
    )


def _writable(demand: Demand) -> int:
    """Return the private writable memory of one process at its peak."""
    if demand.writable_bytes is not None:
        return demand.writable_bytes
    return demand.commit_bytes // max(demand.processes, 1)


def _single_commit(demand: Demand, facts: MachineFacts) -> Shortage | None:
    safe = facts.most_at_once_bytes
    if safe is None or demand.largest_commit_bytes <= safe:
        return None
    return Shortage(
        "heuristic-overcommit",
        Severity.REFUSE,
        f"one commit of {format_size(demand.largest_commit_bytes)} is more than all RAM and swap "
        f"({format_size(safe)}), which vm.overcommit_memory=0 refuses",
        safe,
        f"commit {format_size(safe)} ({safe} bytes) or less at once",
    )


_RULES: Final = (
    _memory,
    _huge_page_pool,
    _device,
    _mappings,
    _address_space,
    _data,
    _own_stacks,
    _charge,
    _single_commit,
    _tasks,
    _descriptors,
)
