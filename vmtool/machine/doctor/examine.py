"""All rules of the doctor, applied to the facts of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.machine.doctor.memory_rules import (
    LOADED_LATER_BYTES,
    allocation_granularity,
    available_memory,
    commit_limit_of_windows,
    control_group,
    large_pages,
    numa_nodes,
    oom_kills,
    overcommit,
    page_file,
    page_size,
    reserved_huge_pages,
    swap,
    transparent_huge_pages,
)
from vmtool.machine.doctor.process_and_system_rules import (
    address_space,
    container,
    data_segment,
    descriptors,
    fork_headroom,
    gvisor,
    kernel,
    locked_memory,
    macos,
    mappings,
    processor_time,
    tasks,
    wine,
    wsl,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.machine.doctor.findings import Finding
    from vmtool.machine.facts import MachineFacts


def examine(
    facts: MachineFacts, *, loaded_later_bytes: int = LOADED_LATER_BYTES
) -> tuple[Finding, ...]:
    """Return a rating of everything that *facts* say; what is unknown is not rated.

    Args:
        facts: The machine.
        loaded_later_bytes: What a process that makes a plan has loaded beside this one.
    """
    ratings = (
        control_group(facts, loaded_later_bytes) if rule is control_group else rule(facts)
        for rule in _RULES
    )
    return tuple(finding for finding in ratings if finding is not None)


#: In the order of the report.
_RULES: Final[tuple[Callable[[MachineFacts], Finding | None], ...]] = (
    available_memory,
    swap,
    overcommit,
    commit_limit_of_windows,
    control_group,
    oom_kills,
    numa_nodes,
    mappings,
    address_space,
    data_segment,
    tasks,
    descriptors,
    locked_memory,
    processor_time,
    fork_headroom,
    transparent_huge_pages,
    reserved_huge_pages,
    page_size,
    allocation_granularity,
    kernel,
    container,
    wsl,
    gvisor,
    wine,
    macos,
    page_file,
    large_pages,
)
