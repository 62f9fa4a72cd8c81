"""The facts of a macOS machine: Python, psutil and sysctl; not run on a real Mac."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from vmtool.machine.facts import EnvironmentFacts, MachineFacts
from vmtool.machine.facts_on_every_system import read_limits, read_memory, read_system
from vmtool.memory.counters import read_process_limits
from vmtool.memory.macos_calls import read_integer, read_text

if TYPE_CHECKING:
    from collections.abc import Callable


def read_macos_facts(
    read_number: Callable[[str], int | None] = read_integer,
) -> MachineFacts:
    """Return the facts of this machine.

    Args:
        read_number: Reads an integer of sysctl by name.
    """
    return MachineFacts(
        system=read_system(read_text("machdep.cpu.brand_string")),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=read_memory(),
        process=read_process_limits(),
        limits=read_limits(),
        # macOS says that there is a hypervisor, not which.
        environment=EnvironmentFacts(
            hypervisor="unknown" if read_number("kern.hv_vmm_present") else None
        ),
    )
