"""The facts of a macOS machine: what Python, psutil and sysctl tell; the rest is unknown."""

from __future__ import annotations

import ctypes
import mmap

from vmtool.machine.facts import MachineFacts, MemoryFacts
from vmtool.machine.system import read_system
from vmtool.memory.pressure import read_process_facts


def read_other_facts() -> MachineFacts:
    """Return the facts of this machine."""
    return MachineFacts(
        system=read_system(_read_cpu_model()),
        page_bytes=mmap.PAGESIZE,
        allocation_bytes=mmap.ALLOCATIONGRANULARITY,
        memory=_read_memory(),
        process=read_process_facts(),
    )


def _read_cpu_model() -> str | None:
    """Return what ``sysctl machdep.cpu.brand_string`` prints on macOS, such as ``Apple M2``."""
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return None
    text = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(text))
    if sysctl(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return text.value.decode("utf-8", errors="replace") or None


def _read_memory() -> MemoryFacts:
    import psutil  # loaded only where Linux's files are missing

    ram, swap = psutil.virtual_memory(), psutil.swap_memory()
    return MemoryFacts(ram.total, ram.available, swap.total, swap.free)
