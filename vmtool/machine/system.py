"""The software and the processor: what Python tells on every platform."""

from __future__ import annotations

import os
import platform
import sys

from vmtool import __version__
from vmtool.machine.facts import SystemFacts
from vmtool.memory.process import wine_version


def read_system(cpu_model: str | None) -> SystemFacts:
    """Return the facts of the running system.

    Args:
        cpu_model: The processor's name, from wherever the platform keeps it.
    """
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    else:  # mypy needs both branches spelled out
        usable = None
    name, kernel, arch = _identify()
    return SystemFacts(
        os=name,
        kernel=kernel,
        arch=arch,
        cpu_model=cpu_model,
        cpus=os.cpu_count(),
        cpus_usable=usable,
        python=platform.python_version(),
        vmtool=__version__,
    )


def _identify() -> tuple[str, str, str]:
    """Return the system's name, its kernel's version and the architecture.

    Python's ``platform`` starts ``cmd /c ver`` for the first two on Windows.
    """
    if sys.platform == "win32":
        arch = os.environ.get("PROCESSOR_ARCHITECTURE", "unknown")
        wine = wine_version()
        if wine is not None:
            return "Wine", wine, arch
        return "Windows", ".".join(map(str, sys.getwindowsversion().platform_version)), arch
    else:  # mypy needs both branches spelled out
        uname = os.uname()
        return uname.sysname, uname.release, uname.machine
