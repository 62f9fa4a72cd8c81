"""One CUDA device as text: what it is, what it offers, and the granularity of each allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.memory.cuda.absence import dotted
from vmtool.report.console import plain_table
from vmtool.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.memory.cuda.allocations import AllocationGranularity
    from vmtool.memory.cuda.devices import DeviceInfo
    from vmtool.trials.survey import BackingSurvey

_OFFERS: Final = {
    "vmm": "virtual memory management",
    "posix_fd": "sharing by file descriptor",
    "fabric": "sharing by fabric handle",
    "rdma": "GPUDirect RDMA",
    "compression": "compression",
    "multicast": "multicast",
    "dma_buf": "dma-buf",
    "host": "host memory by handle",
    "host_numa": "host NUMA memory by handle",
}
_WORDS: Final = {None: "unknown", False: "no", True: "yes"}


def print_device(survey: BackingSurvey, device: DeviceInfo, console: Console) -> None:
    """Print what the driver says of one device."""
    console.print(Text(f"\n{survey.name}: {device.name}", style="bold"))
    table = plain_table("", ("", "left"))
    for label, text in _facts(survey, device):
        table.add_row(label, text)
    console.print(table)
    if survey.allocations:
        console.print(Text(f"\n{survey.name}: granularity by allocation", style="bold"))
        table = plain_table("", ("offered", "left"), "minimum", "recommended")
        for kind in survey.allocations:
            table.add_row(_name(kind), _WORDS[kind.supported], *_granularities(kind))
        console.print(table)


def _facts(survey: BackingSurvey, device: DeviceInfo) -> list[tuple[str, str]]:
    model = f", {device.driver_model}" if device.driver_model else ""
    free = "unknown" if survey.free_bytes is None else format_size(survey.free_bytes)
    shared = {True: "integrated: it shares the host's RAM", False: "its own", None: "unknown"}
    rows = [
        ("driver", f"CUDA {dotted(device.driver_version)}{model}"),
        ("compute capability", device.compute_capability),
        ("memory", f"{format_size(device.total_bytes)}, {free} free"),
        ("memory is", shared[device.integrated]),
    ]
    for key, label in _OFFERS.items():
        value = device.attributes[key]
        rows.append((label, _WORDS[None if value is None else bool(value)]))
    node = device.attributes["host_numa_id"]
    if node is not None:
        rows.append(("host NUMA node", str(node) if node >= 0 else "none"))
    return rows


def _name(kind: AllocationGranularity) -> str:
    parts = [kind.location]
    if kind.handle != "none":
        parts.append(kind.handle)
    if kind.flag is not None:
        parts.append(kind.flag)
    return ", ".join(parts)


def _granularities(kind: AllocationGranularity) -> tuple[str, str]:
    if kind.minimum_bytes is None or kind.recommended_bytes is None:
        return kind.refusal or "-", ""
    return format_size(kind.minimum_bytes), format_size(kind.recommended_bytes)
