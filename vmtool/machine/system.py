"""The software and the processor: what Python tells on every platform."""

from __future__ import annotations

import os
import platform
import sys

from vmtool import __version__
from vmtool.machine.facts import SystemFacts
from vmtool.memory.wine import wine_version


def read_system(cpu_model: str | None) -> SystemFacts:
    """Return the facts of the running system.

    Args:
        cpu_model: The processor's name where a better source than Python knows it.
    """
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    else:  # mypy needs both branches spelled out
        usable = None
    wine = wine_version()
    return SystemFacts(
        os=platform.system() if wine is None else "Wine",
        kernel=wine or platform.release(),
        arch=platform.machine(),
        cpu_model=cpu_model or platform.processor() or None,
        cpus=os.cpu_count(),
        cpus_usable=usable,
        python=platform.python_version(),
        vmtool=__version__,
    )
