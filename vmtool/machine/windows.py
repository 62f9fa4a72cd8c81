"""The facts of a Windows machine, or of Wine."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

import mmap
import winreg
from dataclasses import replace

from vmtool.machine.facts import CommitFacts, HugePageFacts, MachineFacts, MemoryFacts
from vmtool.machine.facts_on_every_system import read_memory, read_system
from vmtool.memory.windows.counters import SystemMemory, read_system_memory
from vmtool.memory.windows.large_pages import large_page_bytes, may_lock_memory
from vmtool.memory.windows.wine import wine_version


def read_windows_facts() -> MachineFacts:
    """Return the facts of this machine; Windows has neither limits of a process nor huge pages."""
    counters = read_system_memory()
    return MachineFacts(
        system=read_system(_read_cpu_model()),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=_memory(),
        huge_pages=HugePageFacts(large_bytes=large_page_bytes(), large_privilege=may_lock_memory()),
        commit=CommitFacts() if counters is None else _commit(counters),
    )


def _read_cpu_model() -> str | None:
    try:
        with winreg.OpenKey(
            winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        ) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip() or None
    except OSError:
        return None


def _memory() -> MemoryFacts:
    memory = read_memory()
    # Swap is the commit limit without RAM; Wine makes that limit up.
    return (
        replace(memory, swap_total_bytes=None, swap_free_bytes=None) if wine_version() else memory
    )


def _commit(counters: SystemMemory) -> CommitFacts:
    return CommitFacts(
        limit_bytes=counters.charge_limit_bytes,
        charge_bytes=counters.charge_bytes,
        enforced=wine_version() is None,  # Wine reports a limit and lets it be exceeded
    )
