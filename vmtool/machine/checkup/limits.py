"""What one process may have: memory areas, address space, private memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.checkup.check import Check, note, ok, problem
from vmtool.memory.diagnosis import lift_address_space_limit
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts

#: What engines with many small mappings ask for; the kernel's default is 65,530.
_MANY_MAPPINGS: Final = 262_144


def check_limits(facts: MachineFacts) -> list[Check]:
    """Return what this process may have of each limited thing."""
    found = [_mappings(facts), _address_space(facts), _data(facts)]
    return [check for check in found if check is not None]


def _mappings(facts: MachineFacts) -> Check | None:
    limit, used = facts.process.max_mappings, facts.process.mappings or 0
    if limit is None:
        return None
    words = f"{used:,} of {limit:,} memory areas (vm.max_map_count) in use"
    remedy = f"sysctl -w vm.max_map_count={max(4 * limit, _MANY_MAPPINGS)}"
    if limit - used < limit // 10:
        return problem("mapping-limit", words, remedy)
    if limit < _MANY_MAPPINGS:
        scattered = max(limit - used, 0) // 2
        return note(
            "mapping-limit",
            f"{words}: room for about {scattered:,} scattered granules; growth at the tail takes one",
            remedy,
        )
    return ok("mapping-limit", words)


def _address_space(facts: MachineFacts) -> Check | None:
    if (
        facts.process.address_space_bytes is None
        and facts.process.address_space_limit_bytes is None
    ):
        return None
    limit = facts.process.address_space_limit_bytes
    if limit is None:
        return ok("address-space-limit", "RLIMIT_AS is unlimited")
    total = facts.memory.total_bytes
    words = f"RLIMIT_AS is {format_size(limit)}: reservations count although they hold no memory"
    remedy = lift_address_space_limit(linux=facts.system.os == "Linux")
    if total is None or limit < 2 * total:
        return problem("address-space-limit", words, remedy)
    return note("address-space-limit", words, remedy)


def _data(facts: MachineFacts) -> Check | None:
    limit, used = facts.process.data_limit_bytes, facts.process.data_bytes
    if limit is None:
        return None if used is None else ok("data-limit", "RLIMIT_DATA is unlimited")
    words = (
        f"RLIMIT_DATA is {format_size(limit)}, {format_size(used or 0)} in use: what is committed "
        "counts; on Linux one mmap over a reservation (--method fixed) may go past it, and then no "
        "call gets any more memory"
    )
    available = facts.machine_available_bytes
    if available is None or limit < available:
        return problem("data-limit", words, "ulimit -d unlimited")
    return note("data-limit", words, "ulimit -d unlimited")
