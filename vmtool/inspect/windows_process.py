"""What Windows reports about another process: its memory areas and its limits."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

from typing import TYPE_CHECKING, Final

from vmtool.inspect.areas_and_reservations import MemoryArea
from vmtool.memory.windows.counters import (
    count_resident,
    opened_process,
    read_regions,
    read_system_memory,
)
from vmtool.memory.windows.jobs import is_in_job, read_job_limits
from vmtool.results.inspect import LimitUse

if TYPE_CHECKING:
    from vmtool.results.inspect import Sample

_LAST_ADDRESS: Final = (1 << 64) - 1
#: What is resident is asked page by page: more than this would take seconds.
_MOST_RESIDENT: Final = 8 << 30


def read_areas(pid: int, *, residency: bool = False) -> tuple[list[MemoryArea], bool]:
    """Return the areas of the process *pid*, and whether their resident bytes were read too.

    Raises:
        OSError: If the process may not be opened.
    """
    with opened_process(pid) as process:
        areas = [
            MemoryArea(
                region.start,
                region.end,
                "rw-p" if region.committed else "---p",
                int(region.image),
                "image" if region.image else "",
            )
            for region in read_regions(0, _LAST_ADDRESS, process)
        ]
        committed = sum(a.end - a.start for a in areas if a.permissions != "---p")
        if not residency or committed > _MOST_RESIDENT:
            return areas, False
        read = []
        for area in areas:
            resident: int | None = 0
            if area.permissions != "---p":
                resident = count_resident(area.start, area.end, process)
            if resident is None:
                return areas, False
            read.append(area._replace(resident=resident))
        return read, True


def read_limits(pid: int, counters: Sample, *, own_job: bool) -> tuple[list[LimitUse], bool]:
    """Return the limits of the process *pid*, and whether it is in a job whose limits are hidden.

    Args:
        pid: Its number.
        counters: The latest sample.
        own_job: Whether it shares the job of this process, as what was started here does.

    Raises:
        OSError: If the process may not be opened.
    """
    found = []
    memory = read_system_memory()
    if memory is not None:
        used, most = memory.charge_bytes, memory.charge_limit_bytes
        found.append(LimitUse("system commit limit", "charge_bytes", used, most, None, "machine"))
    with opened_process(pid) as process:
        if not is_in_job(process):
            return found, False
    job = read_job_limits() if own_job else None
    if job is None:
        return found, True
    charge = counters.charge_bytes
    for name, used_bytes, limit in (
        ("ProcessMemoryLimit", charge, job.process_bytes),
        ("JobMemoryLimit", None, job.job_bytes),
    ):
        if limit is not None:
            found.append(LimitUse(name, "charge_bytes", used_bytes, limit, None, "group"))
    if job.processes is not None:
        found.append(
            LimitUse("ActiveProcessLimit", "group_tasks", None, job.processes, None, "group")
        )
    return found, False
