"""Whether a plan fits this machine, before anything is mapped; if not, what would."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError
from vmtool.machine.facts import FREE_RAM, KEEP_BYTES, SPARE_BYTES, describe_bound, safe_part
from vmtool.memory.diagnosis import lift_address_space_limit
from vmtool.units import align_down, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from vmtool.machine.facts import MachineFacts

# One 8-byte entry maps a page; the tables above that last level add less than 1 %.
_ENTRY_BYTES: Final = 8
# Left for the interpreter and its libraries, which also map, grow and split areas.
_SPARE_MAPPINGS: Final = 1024
#: What gives a plan more memory to commit, by what binds.
_WIDENS: Final = {
    "device-memory": "free some of it first: nvidia-smi shows who holds it",
    "data-limit": "ulimit -d unlimited",
    "available-memory": FREE_RAM,
    "cgroup-limit": "raise the limit of that control group",
    "commit-limit": "raise the commit limit: sysctl -w vm.overcommit_ratio=95, or add swap",
    "unknown": "commit less",
}
# User addresses of x86-64 and arm64 have 47 or 48 bits; not all of them are free.
_USABLE_SPACE: Final = 1 << 46


@dataclass(frozen=True, slots=True)
class Lever:
    """The option by which the user makes a plan need less.

    Attributes:
        option: Its name; or what to lower, where no number can be given for it.
        unit: What its value is a multiple of; ``None`` where no number can be given.
        times: How many bytes are needed for each byte of the value.
    """

    option: str
    unit: int | None = None
    times: Fraction | int = 1

    def lower(self, safe: int) -> str | None:
        """Return how to need no more than *safe* bytes; ``None`` if no value does that."""
        if self.unit is None:
            return f"use a smaller {self.option}: {format_size(safe)} ({safe} bytes) is safe"
        value = align_down(safe // self.times, self.unit)
        return f"use {self.option} {value} ({format_size(value)}) or less" if value else None


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
        device_bytes: Memory of the device.
        device_free_bytes: What the device's driver says is free; ``None`` if it was not asked.
        reserve_lever: What lowers *reserve_bytes*; a hint then names it, not only a number.
        commit_lever: What lowers *commit_bytes* (*device_bytes* of a device).
        writable_lever: What lowers *writable_bytes*.
    """

    reserve_bytes: int = 0
    commit_bytes: int = 0
    mappings: int = 0
    page_table_bytes: int | None = None
    largest_commit_bytes: int = 0
    writable_bytes: int | None = None
    processes: int = 1
    device_bytes: int = 0
    device_free_bytes: int | None = None
    reserve_lever: Lever | None = None
    commit_lever: Lever | None = None
    writable_lever: Lever | None = None


class Verdict(enum.Enum):
    """What a finding means for the plan."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit that the plan meets.

    Attributes:
        kind: A short stable name, as in :class:`vmtool.memory.diagnosis.Diagnosis`.
        verdict: Whether the plan must not run.
        message: What is asked for and what there is.
        safe: The number that would be safe, in the unit of what is asked for.
        remedy: What to do.
    """

    kind: str
    verdict: Verdict
    message: str
    safe: int
    remedy: str


def check(demand: Demand, facts: MachineFacts) -> tuple[Finding, ...]:
    """Return every limit of this machine that *demand* meets, the hard ones first."""
    found = [
        finding
        for rule in (_memory, _device, _mappings, _address_space, _data, _charge, _single_commit)
        if (finding := rule(demand, facts)) is not None
    ]
    return tuple(sorted(found, key=lambda finding: finding.verdict is Verdict.WARN))


def refuse_unsafe(findings: Iterable[Finding]) -> None:
    """Raise for the first finding that refuses the plan.

    Raises:
        RefusedError: If there is one; the error names the number that would be safe.
    """
    for finding in findings:
        if finding.verdict is Verdict.REFUSE:
            raise RefusedError(finding.message, hint=finding.remedy)


def describe_safe(facts: MachineFacts, device_free: int | None = None) -> tuple[str, str]:
    """Return what binds what is safe to commit, and what would make it more.

    Args:
        facts: The machine.
        device_free: What the device has free, where one is asked about.
    """
    if device_free is not None:
        return f"the device has {format_size(device_free)} free", _WIDENS["device-memory"]
    kind = facts.binds
    kept = SPARE_BYTES if kind in facts.process_bounds else KEEP_BYTES
    words = f"{describe_bound(kind, facts)}; {format_size(kept)} of it are left alone"
    return words, _widen(kind, facts)


def _widen(kind: str, facts: MachineFacts) -> str:
    """Return what gives more memory to commit where the limit called *kind* binds."""
    if kind == "address-space-limit":
        return lift_address_space_limit(linux=facts.system.os == "Linux")
    return _WIDENS[kind]


def safe_device_part(free: int) -> int:
    """Return the part of a device's *free* bytes that a plan may commit: nine tenths.

    Under WDDM, and with other users of the device, not all that is free is to be had.
    """
    return free * 9 // 10


def page_table_bytes(committed: int, page_bytes: int) -> int:
    """Return what the last level of page tables takes for *committed* bytes of small pages."""
    return -(-committed // page_bytes) * _ENTRY_BYTES


def _memory(demand: Demand, facts: MachineFacts) -> Finding | None:
    page = facts.page_bytes
    tables = demand.page_table_bytes
    if tables is None:
        tables = page_table_bytes(demand.commit_bytes, page)
    need = demand.commit_bytes + tables
    available = facts.machine_available_bytes
    most = safe_part(available)
    if not demand.commit_bytes or need <= most:
        return None
    if demand.page_table_bytes is None:
        safe = most * page // (page + _ENTRY_BYTES)
    else:
        safe = most * demand.commit_bytes // need
    safe = align_down(safe, page)
    bounds = facts.machine_bounds
    kind = min(bounds, key=bounds.__getitem__, default="unknown")
    verdict = Verdict.REFUSE if available is not None else Verdict.WARN
    return Finding(
        kind,
        verdict,
        f"the plan commits {format_size(demand.commit_bytes)} and {format_size(tables)} of page "
        f"tables; {describe_bound(kind, facts)}",
        safe,
        _at_most(
            "use",
            demand.commit_lever,
            safe,
            f"{_WIDENS[kind]}; {format_size(KEEP_BYTES)} of it are left alone",
        ),
    )


def _at_most(
    verb: str, lever: Lever | None, safe: int, otherwise: str, *, also: bool = False
) -> str:
    """Return what to do: *verb* no more than *safe*, or *otherwise* where nothing at all is safe.

    Args:
        verb: Such as ``use``, where there is no lever.
        lever: What the user can lower.
        safe: Bytes.
        otherwise: What changes the limit.
        also: Whether to say *otherwise* in any case.
    """
    less: str | None = f"{verb} {format_size(safe)} ({safe} bytes) or less"
    if lever is not None:
        less = lever.lower(safe)
    if not safe or less is None:
        return otherwise
    return f"{less}, or {otherwise}" if also else less


def _device(demand: Demand, _facts: MachineFacts) -> Finding | None:
    free = demand.device_free_bytes
    if free is None:
        return None
    safe = safe_device_part(free)
    if demand.device_bytes <= safe:
        return None
    return Finding(
        "device-memory",
        Verdict.REFUSE,
        f"the plan commits {format_size(demand.device_bytes)} on the device, which has "
        f"{format_size(free)} free",
        safe,
        _at_most("use", demand.commit_lever, safe, _WIDENS["device-memory"]),
    )


def _mappings(demand: Demand, facts: MachineFacts) -> Finding | None:
    limit = facts.process.max_mappings
    if limit is None:
        return None
    safe = max(limit - (facts.process.mappings or 0) - _SPARE_MAPPINGS, 0)
    if demand.mappings <= safe:
        return None
    return Finding(
        "mapping-limit",
        Verdict.REFUSE,
        f"the plan may need {demand.mappings:,} memory areas, vm.max_map_count is {limit:,} and "
        f"{facts.process.mappings or 0:,} are in use",
        safe,
        (f"use {safe:,} areas or less (" if safe else "need fewer areas (")
        + "larger granules, a smaller capacity, growth at the tail), or "
        f"sysctl -w vm.max_map_count={max(limit, demand.mappings + _SPARE_MAPPINGS) * 2}",
    )


def _address_space(demand: Demand, facts: MachineFacts) -> Finding | None:
    safe = facts.safe_bounds.get("address-space-limit")
    if safe is None:
        if demand.reserve_bytes <= _USABLE_SPACE:
            return None
        return Finding(
            "no-address-range",
            Verdict.WARN,
            f"{format_size(demand.reserve_bytes)} may be more than any free range of addresses",
            _USABLE_SPACE,
            "`vmtool granularity` shows the largest reservation that works here",
        )
    if demand.reserve_bytes <= safe:
        return None
    return Finding(
        "address-space-limit",
        Verdict.REFUSE,
        f"the plan reserves {format_size(demand.reserve_bytes)}, "
        f"{describe_bound('address-space-limit', facts)}; reservations count although they hold "
        "no memory",
        safe,
        _at_most(
            "reserve",
            demand.reserve_lever,
            safe,
            _widen("address-space-limit", facts),
            also=True,
        ),
    )


def _data(demand: Demand, facts: MachineFacts) -> Finding | None:
    safe = facts.safe_bounds.get("data-limit")
    if safe is None or _writable(demand) <= safe:
        return None
    return Finding(
        "data-limit",
        Verdict.REFUSE,
        f"each process has {format_size(_writable(demand))} of private writable memory at its "
        f"peak, {describe_bound('data-limit', facts)}",
        safe,
        _at_most("use", demand.writable_lever, safe, _widen("data-limit", facts), also=True),
    )


def _charge(demand: Demand, facts: MachineFacts) -> Finding | None:
    """In mode 2 writable memory is charged where it is reserved, MAP_NORESERVE or not."""
    headroom = facts.commit.headroom_bytes
    charge = _writable(demand) * demand.processes
    if facts.commit.mode != 2 or headroom is None or charge <= demand.commit_bytes:
        return None
    safe = safe_part(headroom)
    if charge <= safe:
        return None
    lever = demand.writable_lever
    if lever is not None:
        lever = replace(lever, times=lever.times * demand.processes)
    return Finding(
        "commit-limit",
        Verdict.REFUSE,
        f"the plan reserves {format_size(charge)} of writable memory, which vm.overcommit_memory=2 "
        f"charges at once; {describe_bound('commit-limit', facts)}",
        safe,
        _at_most(
            "reserve", lever, safe, f"{_WIDENS['commit-limit']}, or another --method", also=True
        ),
    )


def _writable(demand: Demand) -> int:
    """Return the private writable memory of one process at its peak."""
    if demand.writable_bytes is not None:
        return demand.writable_bytes
    return demand.commit_bytes // max(demand.processes, 1)


def _single_commit(demand: Demand, facts: MachineFacts) -> Finding | None:
    safe = facts.most_at_once_bytes
    if safe is None or demand.largest_commit_bytes <= safe:
        return None
    return Finding(
        "heuristic-overcommit",
        Verdict.REFUSE,
        f"one commit of {format_size(demand.largest_commit_bytes)} is more than all RAM and swap "
        f"({format_size(safe)}), which vm.overcommit_memory=0 refuses",
        safe,
        f"commit {format_size(safe)} ({safe} bytes) or less at once",
    )
