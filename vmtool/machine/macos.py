"""The facts of a macOS machine: what Python, psutil and sysctl tell; the rest is unknown."""

from __future__ import annotations

import mmap

from vmtool.machine.facts import EnvironmentFacts, MachineFacts, MemoryFacts
from vmtool.machine.system import read_system
from vmtool.memory.darwin import read_integer, read_text
from vmtool.memory.pressure import read_process_facts


def read_other_facts() -> MachineFacts:
    """Return the facts of this machine."""
    return MachineFacts(
        system=read_system(read_text("machdep.cpu.brand_string")),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=_read_memory(),
        process=read_process_facts(),
        # macOS says that there is one, not which.
        environment=EnvironmentFacts(
            hypervisor="unknown" if read_integer("kern.hv_vmm_present") else None
        ),
    )


def _read_memory() -> MemoryFacts:
    import psutil  # loaded only where Linux's files are missing

    ram, swap = psutil.virtual_memory(), psutil.swap_memory()
    return MemoryFacts(ram.total, ram.available, swap.total, swap.free)
