"""The memory areas of another Windows process, by ``VirtualQueryEx``."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

from typing import Final

from vmtool.inspect.areas import MemoryArea
from vmtool.memory.windows.counters import opened_process, read_regions

_LAST_ADDRESS: Final = (1 << 64) - 1


def read_areas(pid: int) -> list[MemoryArea]:
    """Return the areas of the process *pid*; what is resident in each is not read.

    Raises:
        OSError: If the process may not be opened.
    """
    with opened_process(pid) as process:
        return [
            MemoryArea(
                region.start,
                region.end,
                "rw-p" if region.committed else "---p",
                int(region.image),
                "image" if region.image else "",
            )
            for region in read_regions(0, _LAST_ADDRESS, process)
        ]
